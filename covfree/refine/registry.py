"""The named refined methods, which the command line compares beside those of one round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from covfree.estimators import Shrinkage
from covfree.methods import fedcof
from covfree.refine.refined import Refined, refined
from covfree.types import Scalar


class Entry(NamedTuple):
    """A named refined method; the attributes are those of `covfree.methods.registry`'s entries."""

    title: str
    make: Callable[..., Refined]
    accepts: frozenset[str]


def _fedcof_refined(
    shrinkage: Scalar | str | Shrinkage = "auto", rounds: int = 3, directions: int | None = None
) -> Refined:
    return refined(fedcof(shrinkage), rounds, directions)


_REGISTRY: Mapping[str, Entry] = MappingProxyType(
    {
        "fedcof-refined": Entry(
            "FedCOF, refined (3 rounds)", _fedcof_refined, frozenset({"shrinkage", "rounds", "directions"})
        )
    }
)


def registry() -> Mapping[str, Entry]:
    """Every named refined method; a read-only mapping.

    >>> registry()["fedcof-refined"].make(rounds=2).name
    'fedcof-refined'
    """
    return _REGISTRY
