"""Where to cut between two classes whose covariances differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage import mean_variance
from covfree.heads.columns import log_priors
from covfree.linalg import Factorisation, Scatter, factorise, solve
from covfree.products import product
from covfree.types import LinearHead, Moments

# Observations that the classes' variances are worth before one was made: with them they are equal.
_OBSERVATIONS = 2.0
# Most of a class's degrees of freedom that its part of the covariance may seem to have lost to H.
_MOST_LOST = 0.99


class Parts(NamedTuple):
    """What the second of two classes adds to what was observed of a covariance.

    Attributes:
        second: its part A₂ of A in Σ̃ = A + bI.
        freedom: ν_c degrees of freedom of each class's scatter, and how much it weighs in A.
    """

    second: Scatter
    freedom: Freedom


def unequal_cut(covariance: Scatter, moments: Moments, parts: Parts, head: LinearHead) -> LinearHead:
    r"""LDA's head for two classes, cut where the densities of two different variances cross.

    Along u = wᵀx, w = Σ̃⁻¹(μ₂ − μ₁), LDA takes both classes to have the variance D = wᵀ(μ₂ − μ₁) = wᵀΣ̃w.
    Here class c has r_c D, which has the mean D over the classes, weighed by shares ν_c w_c of Σ̃. With
    y the distance from halfway between the means the log-odds are α y² + β y + κ,

        α = (1/r₁ − 1/r₂)/(2D),  β = (1/r₁ + 1/r₂)/2,  κ = log(π₂/π₁) − ½ log(r₂/r₁) + (1/r₁ − 1/r₂) D/8,

    and the cut is their root −2κ/(β + √(β² − 4ακ)), at which they increase with y: LDA's where r₁ = r₂.

    r_c is proportional to wᵀΣ̃_c w, with each class's covariance shrunk as the common one is:
    Σ̃_c ∝ Σ_c + b (t_c/t) I, t_c = tr(Σ_c)/d. Of Σ_c is known S_c = A_c/(ν_c w_c), the class's share of A.
    As Σ̃ was made with it, w avoids the directions in which it varies, and the variance of a new example is
    wᵀS_c w/(1 − k_c)², k_c = tr(Σ̃⁻¹A_c)/ν_c: each of the ν_c observations z is in Σ̃ itself, so that
    Σ̃⁻¹z = M⁻¹z/(1 + zᵀM⁻¹z) with M = Σ̃ − zzᵀ, and k_c is what zᵀΣ̃⁻¹z = 1 − 1/(1 + zᵀM⁻¹z) comes to. Both
    variances and both t_c are means with 2 observations of what they are where the classes are alike.

    Derivatives take the r_c as given.

    Args:
        covariance: Σ̃.
        moments: phase one of all rows, of two classes.
        parts: see `Parts`.
        head: `lda_head` of Σ̃.

    Returns:
        The head with another bias; as it is where a class is absent or nothing was observed.

    Source: covfree. The rule is that of Gaussian classes along Fisher's direction (Hastie, Tibshirani and
    Friedman, The Elements of Statistical Learning, section 4.3); the correction extends the deterministic
    equivalents of `automatic` to classes of different covariance.
    """
    column = (head.weight[:, 1] - head.weight[:, 0])[:, None]
    apart = jnp.where(moments.present.all(), product((moments.mean[1] - moments.mean[0])[None, :], column), 0)
    apart = apart[0, 0]
    ratio = _variance_ratios(*jax.lax.stop_gradient((covariance, parts, column)))
    # Equal means have no cut between them: then what follows is LDA's.
    between = apart > 0
    apart, ratio = jnp.where(between, apart, 1), jnp.where(between, ratio, 1)
    odds = log_priors(moments)[1] - log_priors(moments)[0]
    less, inverse = 1 / ratio[0] - 1 / ratio[1], 1 / ratio
    curve, slope = less / (2 * apart), inverse.mean()
    level = odds - 0.5 * jnp.log(ratio[1] / ratio[0]) + less * apart / 8
    root = jnp.sqrt(jnp.maximum(jnp.square(slope) - 4 * curve * level, jnp.finfo(apart.dtype).tiny))
    # LDA cuts at y = −log(π₂/π₁).
    further = 2 * level / (slope + root) - odds
    return head._replace(bias=head.bias + jnp.stack([-further, further]) / 2)


def _variance_ratios(covariance: Scatter, parts: Parts, column: Float[Array, "dim 1"]) -> Float[Array, "2"]:
    """r_c of `unequal_cut`."""
    observed = covariance.unshifted
    factorisation = factorise(covariance)
    degrees, share = parts.freedom.degrees, parts.freedom.degrees * parts.freedom.weight

    def by_class(measure: Callable[[Scatter], jax.Array]) -> Float[Array, "2"]:
        """Of what each class adds to A."""
        second = measure(parts.second)
        return jnp.maximum(jnp.stack([measure(observed) - second, second]), 0)

    def drawn(values: jax.Array) -> jax.Array:
        """Of each class's covariance, and drawn together."""
        common = values.sum() / jnp.where(share.sum() > 0, share.sum(), 1)
        own = jnp.where(share > 0, values / jnp.where(share > 0, share, 1), 0)
        return (degrees * own + _OBSERVATIONS * common) / (degrees + _OBSERVATIONS)

    lost = by_class(lambda part: _trace_of_solution(factorisation, part)) / jnp.maximum(degrees, 1)
    seen = by_class(lambda part: product(column.T, part.times(column))[0, 0])
    variance = drawn(seen / jnp.square(1 - jnp.minimum(lost, _MOST_LOST)))
    size = drawn(by_class(mean_variance))
    whole = mean_variance(observed)
    added = covariance.shift * jnp.square(column).sum() / jnp.where(whole > 0, whole, 1)
    variance = variance + added * size
    mean = (share * variance).sum() / jnp.where(share.sum() > 0, share.sum(), 1)
    return jnp.where(mean > 0, variance / jnp.where(mean > 0, mean, 1), 1)


def _trace_of_solution(factorisation: Factorisation, part: Scatter) -> Float[Array, ""]:
    """tr(Σ̃⁻¹ P)."""
    right = part.value.T if part.factored else part.value
    solution = solve(factorisation, right)
    return (solution * right).sum() if part.factored else jnp.trace(solution)
