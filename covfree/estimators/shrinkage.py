"""Shrink a covariance towards a multiple of the identity by one of several rules.

Every rule here chooses (a, b) in a·Σ̂ + b·I. An estimate Σ̂ from few rows underestimates the small
eigenvalues of the covariance, which dominate its inverse. The data-driven rules use ν, the degrees of freedom
of Σ̂ (`Freedom`), instead of the number of rows. For FedCOF's Σ̂, from K_c rows of class c, ν is
Σ_c (K_c − 1) over classes of weight above 0. `oas`, `ledoit_wolf` and `empirical_bayes` use
`Freedom.effective`, which is lower if weights differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_strength
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


def trace_and_square(covariance: Scatter) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return tr Σ̂ and tr Σ̂². If Σ̂ is YᵀY with Y of few rows, both are computed from the smaller Y Yᵀ."""
    core, shift, dim = covariance.core(), covariance.shift, covariance.dim
    trace = jnp.trace(core)
    square = jnp.sum(jnp.square(core)) + 2 * shift * trace + dim * jnp.square(shift)
    return trace + dim * shift, square


def _identity(strength, covariance, moments, freedom, statistics):
    return jnp.ones_like(covariance.shift), strength


def diagonal_loading(gamma: Scalar) -> Shrinkage:
    """Shrink to Σ̂ + γI, as FedCOF does. The right γ depends on the features' scale.

    Source: FedCOF (Goswami et al. 2024), eq. 6.
    """
    return Shrinkage(check_strength("gamma", gamma), _identity)


def _relative(strength, covariance, moments, freedom, statistics):
    return jnp.ones_like(covariance.shift), strength * mean_variance(covariance)


def relative(gamma: Scalar) -> Shrinkage:
    """Shrink to Σ̂ + γ·tr(Σ̂)/d·I: γ is in units of the mean variance, so the features' scale cancels.

    On the command line ``10%`` is γ = 0.1: ``covfree compare --set shrinkage=1%,10%``.
    """
    return Shrinkage(check_strength("gamma", gamma), _relative)


def _pseudo_observations(strength, covariance, moments, freedom, statistics):
    share = covariance.dim / jnp.maximum(freedom.degrees.sum(), 1)
    return jnp.ones_like(covariance.shift), jnp.minimum(1, share) * mean_variance(covariance)


def pseudo_observations() -> Shrinkage:
    """Shrink to Σ̂ + t·min(1, d/ν)·I, with t = tr(Σ̂)/d and ν the degrees of freedom of Σ̂; no tuning.

    The added term acts like min(d, ν) additional observations of covariance t·I. The rule is a baseline for
    `automatic`.

    Source: covfree.
    """
    return Shrinkage(0.0, _pseudo_observations)


def _empirical_bayes(strength, covariance, moments, freedom, statistics):
    return freedom.effective / covariance.dim, mean_variance(covariance)


def empirical_bayes() -> Shrinkage:
    """Shrink a covariance Σ̂ to (ν Σ̂ + tr(Σ̂) I)/d, for d features and ν degrees of freedom of Σ̂.

    The inverse of the result is an empirical Bayes estimate of the precision, the inverse of the true
    covariance. The result is ν/d times Σ̂ + (tr(Σ̂)/ν) I. So an LDA head's weights are multiplied by d/ν, and
    its scores are not log-probabilities. If they must be, use a rule such as `pseudo_observations`; in
    `with_prior_means`, ``strength`` can undo the factor.

    Source: Kubokawa and Srivastava (2008), as used by GDA-CLIP (Wang et al. 2024). There ν = n − 1 for n
    examples. Here ν is N − C (N examples of C classes) if the scatter is exact, and less if it is estimated
    from means.
    """
    return Shrinkage(0.0, _empirical_bayes)


def _convex(numerator: jax.Array, denominator: jax.Array, covariance: Scatter) -> tuple[jax.Array, jax.Array]:
    """Return a = 1 − ρ and b = ρ·tr(Σ̂)/d, the coefficients of the shrunk covariance aΣ̂ + bI.

    Σ̂ [d, d] is ``covariance``. ρ is numerator/denominator, clipped to [0, 1]; it is 1 if the denominator is
    not above 0.
    """
    known = denominator > 0
    weight = jnp.where(known, jnp.clip(numerator / jnp.where(known, denominator, 1), 0, 1), 1)
    return 1 - weight, weight * mean_variance(covariance)


# Factors for a covariance whose trace is below 2⁻³⁰, up to 2³⁰, or above. They keep squares within float32's
# range, and as powers of two cause no rounding. The compiler may square them, so their squares are in range
# too.
_SCALES = (2.0**60, 1.0, 2.0**-60)
# Caps on squared norms of rows, one for each scale. In the scale that is used, no row exceeds its cap; in the
# other scales, caps keep sums of squares finite.
_CAPS = (2.0**50, 2.0**50, math.inf)


def in_scale(covariance: Scatter) -> tuple[Scatter, jax.Array]:
    """Scale Σ̂ so that squares neither overflow nor vanish; return it and the scale's index in `_SCALES`."""
    trace = covariance.dim * mean_variance(covariance)
    which = (trace > 2.0**-30).astype(jnp.int32) + (trace > 2.0**30).astype(jnp.int32)
    return covariance.scaled(jnp.asarray(_SCALES, trace.dtype)[which]), which


def _oas(strength, covariance, moments, freedom, statistics):
    dim, degrees = covariance.dim, freedom.effective
    scaled, _ = in_scale(covariance)
    # Divide both terms by d², as scikit-learn does, so that they are of order one.
    square = trace_and_square(scaled)[1] / dim**2
    mean_square = jnp.square(mean_variance(scaled))
    numerator, excess = square + mean_square, square - mean_square / dim
    return _convex(numerator, jnp.where(degrees > 0, degrees + 1, 0) * excess, covariance)


def oas() -> Shrinkage:
    """Shrink by the oracle approximating rule (OAS) to (1 − ρ) Σ̂ + ρ·tr(Σ̂)/d·I.

    ρ = (tr Σ̂² + tr² Σ̂) / ((ν + 1)(tr Σ̂² − tr² Σ̂/d)), at most 1. The source's formula has the number of
    observations, with a known mean, in place of ν, the degrees of freedom of Σ̂. Equivalent to
    ``sklearn.covariance.OAS(assume_centered=True)`` on ν observations with the same Σ̂. This rule and
    scikit-learn's lack the terms of order 1/d in the source's eq. 23.

    Source: Chen, Wiesel, Eldar and Hero (2010).
    """
    return Shrinkage(0.0, _oas)


def loading(
    shrinkage: Shrinkage, variance: Float[Array, ""], dim: int, degrees: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the γ that a loading rule (`is_loading`) adds to the diagonal of Σ̂.

    Such a rule needs only three numbers that describe Σ̂, the last three arguments.

    Args:
        shrinkage: the rule.
        variance: tr(Σ̂)/d.
        dim: d.
        degrees: ν, the degrees of freedom of Σ̂.
    """
    check_loading(shrinkage)
    # Any covariance of this dimension and trace will do, as such rules use nothing else.
    covariance = Scatter(jnp.zeros((1, dim), variance.dtype), variance, factored=True)
    freedom = Freedom(degrees[None], jnp.ones_like(degrees)[None])
    nobody: Any = None
    return shrinkage.rule(jnp.asarray(shrinkage.strength), covariance, nobody, freedom, None)[1]


def is_loading(shrinkage: Shrinkage) -> bool:
    """Return whether the rule adds γI to Σ̂, with a γ that depends on Σ̂ only through tr(Σ̂)/d, d and ν.

    ν is the degrees of freedom of Σ̂.
    """
    return shrinkage.rule in (_identity, _relative, _pseudo_observations)


def check_loading(shrinkage: Shrinkage) -> None:
    """Raise ValueError unless the rule is a loading rule: it adds γI to a covariance Σ̂, see `is_loading`."""
    if not is_loading(shrinkage):
        raise ValueError(
            "shrinkage: expected a number, relative(…) or pseudo_observations(), which need "
            f"only the trace of the exact covariance; got {shrinkage.rule.__name__.lstrip('_')}()"
        )


def _fourth_moment(factor, rows, moments, class_weight):
    """Compute what `ledoit_wolf` needs besides Σ̂: Σ_r (s ‖y_r‖²)², with y_r the rows of ``factor``.

    There is one sum for each s in `_SCALES`, as `in_scale` chooses s by the trace of Σ̂, which is known only
    after all rows.
    """
    length = jnp.sum(jnp.square(factor), axis=1)
    scales, caps = jnp.asarray(_SCALES, length.dtype), jnp.asarray(_CAPS, length.dtype)
    scaled = jnp.minimum(length[None, :] * scales[:, None], caps[:, None])
    return jnp.sum(jnp.square(scaled), axis=1)


def _ledoit_wolf(strength, covariance, moments, freedom, statistics):
    dim, degrees = covariance.dim, freedom.effective
    scaled, which = in_scale(covariance)
    square = trace_and_square(scaled)[1]
    # As z_r = √ν y_r (see `ledoit_wolf`), the first term of ρ's numerator, Σ_r ‖z_r‖⁴/ν², is Σ_r ‖y_r‖⁴.
    # ``statistics`` holds this sum in several scales.
    noise = statistics[which] - square / jnp.where(degrees > 0, degrees, 1)
    spread = square - dim * jnp.square(mean_variance(scaled))
    return _convex(noise, jnp.where(degrees > 0, spread, 0), covariance)


def ledoit_wolf() -> Shrinkage:
    """Shrink by Ledoit and Wolf's rule to (1 − ρ) Σ̂ + ρ·tr(Σ̂)/d·I.

    With Σ̂ = Σ_r y_r y_rᵀ and observations z_r = √ν y_r (so that Σ̂ = Σ_r z_r z_rᵀ/ν),
    ρ = [Σ_r ‖z_r‖⁴/ν² − tr(Σ̂²)/ν] / [tr Σ̂² − tr² Σ̂/d], between 0 and 1. Equivalent to
    ``sklearn.covariance.LedoitWolf(assume_centered=True)`` on the z_r, with ν, the degrees of freedom of Σ̂,
    in place of their number.

    Source: Ledoit and Wolf (2004).
    """
    return Shrinkage(0.0, _ledoit_wolf, _fourth_moment, needs_rows=True)
