"""The named refined methods, which the command line compares beside those of one round."""

from __future__ import annotations

from covfree.core.registries import Entry, Registry
from covfree.core.types import Scalar
from covfree.estimators import Shrinkage
from covfree.methods import Method, fedcof
from covfree.methods.refine.refined import refined


def _fedcof_refined(
    shrinkage: Scalar | str | Shrinkage = "auto", rounds: int = 3, directions: int | None = None
) -> Method:
    return refined(fedcof(shrinkage), rounds, directions)


_REGISTRY: Registry[Entry[Method]] = Registry(
    {
        "fedcof-refined": Entry(
            "FedCOF, refined (3 rounds)", _fedcof_refined, frozenset({"shrinkage", "rounds", "directions"})
        )
    }
)


def registry() -> Registry[Entry[Method]]:
    """Every named refined method; a read-only mapping, as `covfree.methods.registry` gives it.

    >>> registry()["fedcof-refined"].make(rounds=2).name
    'fedcof-refined'
    """
    return _REGISTRY
