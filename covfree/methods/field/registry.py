"""The named methods of several rounds of sums, which the command line compares beside the others."""

from __future__ import annotations

from covfree.core.registries import Entry, Registry
from covfree.methods import Method
from covfree.methods.field.deepafl import deepafl
from covfree.methods.field.safle import safle

_REGISTRY: Registry[Entry[Method]] = Registry(
    {
        "deepafl": Entry(
            "DeepAFL (5 layers)", deepafl, frozenset({"ridge", "num_layers", "width", "inner", "layer_ridge"})
        ),
        "safle": Entry("SAFLe", safle, frozenset({"ridge", "num_buckets", "group_size"})),
    }
)


def registry() -> Registry[Entry[Method]]:
    """Every named method of several rounds of sums; a read-only mapping, as `covfree.methods.registry`.

    >>> len(registry()["deepafl"].make(num_layers=2).rounds)
    5
    """
    return _REGISTRY
