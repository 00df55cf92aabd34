"""Define the type of a shrinkage rule, which replaces a covariance Σ̂ by a·Σ̂ + b·I."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.linalg import Scatter
from covfree.core.types import Moments, Rows, Scalar
from covfree.estimators.scatter import Freedom

# Function from (strength, Σ̂, moments, freedom, row statistics) to (a, b); the shrunk covariance is a·Σ̂ + b·I.
Rule: TypeAlias = Callable[[jax.Array, Scatter, Moments, Freedom, Any], tuple[jax.Array, jax.Array]]
# Function from (y_r, rows, first moments of all rows, w_c or None) to terms that are added up over all rows.
# Here Σ̂ = Σ_r y_r y_rᵀ, and w_c is the weight of each class.
Statistics: TypeAlias = Callable[
    [Float[Array, "rows dim"], Rows, Moments, Float[Array, " classes"] | None], Any
]


def _nothing(factor, rows, moments, class_weight):
    """Return None. A shrinkage rule that needs no sums over rows has this function as its ``statistics``."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shrinkage:
    """A shrinkage rule, which replaces a covariance estimate Σ̂ by a·Σ̂ + b·I.

    It is a pytree with one leaf, ``strength``.

    Attributes:
        strength: a number that a user may sweep or differentiate; the rule defines its meaning.
        rule: the function ``(strength, covariance, moments, freedom, statistics) -> (a, b)``; `apply` says
            what its arguments are.
        statistics: a function for rules that need more sums over rows than Σ̂ = Σ_r y_r y_rᵀ. From a chunk of
            the rows, it computes the chunk's terms of these sums. Its arguments are the chunk's y_r, the
            chunk's rows, the moments of *all* rows, and the weight w_c of each class if
            y_r = √(w_c n_r) (x_r − μ_c), as in `centred_rows`, else None.
        needs_rows: whether the rule cannot work without ``statistics``.
    """

    strength: Scalar
    rule: Rule = field(metadata={"static": True})
    statistics: Statistics = field(default=_nothing, metadata={"static": True})
    needs_rows: bool = field(default=False, metadata={"static": True})

    def apply(self, covariance: Scatter, moments: Moments, freedom: Freedom, statistics: Any) -> Scatter:
        """Return the shrunk covariance a·Σ̂ + b·I, with a and b from ``rule``.

        Args:
            covariance: Σ̂.
            moments: `first_moments` of all rows.
            freedom: the degrees of freedom behind Σ̂.
            statistics: sums of ``self.statistics`` over all rows. May be None, unless the rule
                ``needs_rows``.
        """
        scale, shift = self.rule(jnp.asarray(self.strength), covariance, moments, freedom, statistics)
        return covariance.scaled(scale).shifted(shift)


def mean_variance(covariance: Scatter) -> Float[Array, ""]:
    """Return tr(Σ̂)/d, the mean variance of d features whose covariance is Σ̂.

    If Σ̂ is stored as a factor Y (Σ̂ = YᵀY), the product is not formed.
    """
    value = covariance.value
    trace = jnp.square(value).sum() if covariance.factored else jnp.trace(value)
    return trace / covariance.dim + covariance.shift
