"""Predict a linear head's test error without test examples, from the mean and variance of its margins.

A margin is the score of an example's own class minus the score of another class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.compiling import jit
from covfree.core.types import Moments
from covfree.estimators.scatter import Freedom

# The error is averaged over at most this many classes: enough for the mean, at a bounded cost.
_MOST_CLASSES = 128
# 16 Gauss-Hermite nodes: the quadrature error is below 1e-8 with one rival, below 0.003 with 100 rivals that
# are equally near, and below 0.009 with 1,000.
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(16)


class Margins(NamedTuple):
    """Predicted margins: a test example's score of its own class minus its score of another class.

    Axes of the arrays: "candidates" are the strengths γ of shrinkage, "chosen" the own class (one of
    `sampled_classes`), and "classes" the other class.

    Attributes:
        mean: the mean margin, without the term from class frequencies.
        variance: the margin's variance.
        odds: the term from class frequencies: the log-odds of the own class against the other class.
        rival: True if the other class can be predicted wrongly: it is present, and not the own class.
        share: the share of all examples that each chosen class represents.
    """

    mean: Float[Array, "candidates chosen classes"]
    variance: Float[Array, "candidates chosen classes"]
    odds: Float[Array, "chosen classes"]
    rival: Bool[Array, "chosen classes"]
    share: Float[Array, " chosen"]


def sampled_classes(
    moments: Moments,
) -> tuple[Integer[Array, " chosen"], Float[Array, " chosen"]]:
    """Choose classes; return their indices, and the share of all examples that each chosen class represents.

    Up to 128 classes are all chosen. With more, 128 are drawn by systematic sampling, with probability
    proportional to their numbers of examples; a large class may be drawn several times.
    """
    count = moments.count.astype(moments.total.dtype)
    prior = count / jnp.maximum(count.sum(), 1)
    num_classes = prior.shape[0]
    if num_classes <= _MOST_CLASSES:
        return jnp.arange(num_classes), prior
    points = (jnp.arange(_MOST_CLASSES, dtype=prior.dtype) + 0.5) / _MOST_CLASSES
    chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(prior), points), num_classes - 1)
    return chosen, jnp.full(_MOST_CLASSES, 1 / _MOST_CLASSES, prior.dtype)


def misclassification_probability(
    mean: Float[Array, "chosen classes"],
    variance: Float[Array, "chosen classes"],
    rival: Bool[Array, "chosen classes"],
) -> Float[Array, " chosen"]:
    """Compute the probability that an example of a chosen class is predicted as one of its rival classes.

    The example's margin over rival j, its own class's score minus that of j, is Gaussian, with mean m_j and
    variance s_j². All margins contain the same own score, so they correlate: by ½ if the class means are
    equally far apart, which is assumed throughout. With a standard normal g that the margins share, the
    probability is 1 − E_g Π_j Φ(√2 m_j/s_j + g), computed by Gauss-Hermite quadrature with g = √2 x and
    Φ(√2 y) = ½ (1 + erf y). For one rival this is Φ(−m/s). If there are many near rivals, taking the margins
    as independent would overestimate the error by far.

    Args:
        mean: m_j for each chosen class and rival j.
        variance: s_j².
        rival: whether class j may be predicted.
    """
    ratio = mean / jnp.sqrt(jnp.maximum(variance, jnp.finfo(mean.dtype).tiny))
    ratio = jnp.where(rival, ratio, jnp.inf)

    def add(wrong: jax.Array, node: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        point, weight = node
        return wrong + weight * (1 - (0.5 + 0.5 * erf(ratio + point)).prod(1)), None

    nodes = (jnp.asarray(_NODES, ratio.dtype), jnp.asarray(_WEIGHTS / _WEIGHTS.sum(), ratio.dtype))
    return jax.lax.scan(add, jnp.zeros_like(ratio[:, 0]), nodes)[0]


# Compile this separately, with all optimisations, as it is nearly all of the rule's work.
@jit
def predicted_error(
    margins: Margins, candidates: Float[Array, " candidates"], scales: Float[Array, " scales"]
) -> Float[Array, "candidates scales"]:
    """Predict LDA's error rate with the covariance (Σ̂ + γtI) s/(1 + γ), for each γ and s.

    Σ̂ is the estimated covariance of d features, and t = tr(Σ̂)/d. γ is one of ``candidates``, for which
    ``margins`` were predicted, and s is one of ``scales``.
    """

    def one_candidate(case: tuple[jax.Array, ...]) -> jax.Array:
        mean, variance, gamma = case

        def one_scale(scale: jax.Array) -> jax.Array:
            own = mean + scale / (1 + gamma) * margins.odds
            return (margins.share * misclassification_probability(own, variance, margins.rival)).sum()

        return jax.vmap(one_scale)(scales)

    return jax.lax.map(one_candidate, (margins.mean, margins.variance, candidates))


def deterministic_equivalents(
    trace: Float[Array, ""], freedom: Freedom
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Estimate tr(HΣ) for the unknown true covariance Σ, where H = (Σ̂ + γI)⁻¹ comes from its estimate Σ̂.

    Args:
        trace: tr(HΣ̂).
        freedom: the degrees of freedom of Σ̂.

    Returns:
        An estimate of tr(HΣ); and a factor φ with HΣH ≈ HΣ̂H/φ.
    """
    degrees, weight = jnp.where(freedom.weight > 0, freedom.degrees, 0), freedom.weight
    # tr(HΣ̂) is below Σ_j ν_j, as HΣ̂ has at most so many eigenvalues above 0, each below 1. Keep it so
    # despite rounding.
    root = implied_trace(jnp.maximum(degrees.sum() - trace, 1e-6 * degrees.sum()), degrees, weight)
    optimism = (degrees * weight / jnp.square(1 + weight * root)).sum()
    return root, jnp.where(optimism > 0, optimism, 1)


def implied_trace(
    left: Float[Array, ""], degrees: Float[Array, " scatters"], weight: Float[Array, " scatters"]
) -> Float[Array, ""]:
    """Solve the equation Σ_j ν_j/(1 + w_j T) = ``left`` for T ≥ 0, and return T.

    ν_j are ``degrees``, and w_j ``weight``. `deterministic_equivalents` uses T as an estimate of
    tr((Σ̂ + γI)⁻¹Σ). The sum is convex and decreasing in T, so Newton's method climbs from 0 to the root
    without overshooting; far from the root each step at least doubles T.
    """

    def climb(_: Any, root: jax.Array) -> jax.Array:
        ratio = 1 / (1 + weight * root)
        slope = (degrees * weight * jnp.square(ratio)).sum()
        return root + jnp.maximum((degrees * ratio).sum() - left, 0) / jnp.where(slope > 0, slope, 1)

    return jax.lax.fori_loop(0, 40, climb, jnp.zeros_like(left))
