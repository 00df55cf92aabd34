"""The named methods: what the command line compares, the contract tests test and the docs list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from covfree.methods.fed3r import fed3r
from covfree.methods.fedcof import fedcof, fedcof_oracle
from covfree.methods.fedncm import fedncm
from covfree.methods.method import Method


class Entry(NamedTuple):
    """A named method.

    Attributes:
        title: how tables name it.
        make: the method with its defaults; takes the keywords in ``accepts``.
        accepts: the numbers that the command line may pass on.
    """

    title: str
    make: Callable[..., Method]
    accepts: frozenset[str] = frozenset()


def _fed3r_within(ridge: float = 1.0) -> Method:
    return fed3r(ridge, between_class=False)


def _fedcof_paper() -> Method:
    return fedcof(shrinkage=1.0, head="ridge")


_REGISTRY: Mapping[str, Entry] = MappingProxyType(
    {
        "fedncm": Entry("FedNCM", fedncm),
        "fed3r": Entry("Fed3R", fed3r, frozenset({"ridge"})),
        "fed3r-within": Entry("Fed3R, no between-class scatter", _fed3r_within, frozenset({"ridge"})),
        "fedcof": Entry("FedCOF", fedcof, frozenset({"shrinkage", "num_subsets"})),
        "fedcof-paper": Entry("FedCOF, paper (ridge head, γ = 1)", _fedcof_paper),
        "fedcof-oracle": Entry("FedCOF oracle", fedcof_oracle, frozenset({"shrinkage"})),
    }
)


def registry() -> Mapping[str, Entry]:
    """Every named method; a read-only mapping.

    >>> sorted(registry())
    ['fed3r', 'fed3r-within', 'fedcof', 'fedcof-oracle', 'fedcof-paper', 'fedncm']
    """
    return _REGISTRY
