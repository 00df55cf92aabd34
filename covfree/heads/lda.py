"""The linear discriminant analysis head."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.types import AnyArray, LinearHead, Moments, is_traced
from covfree.estimators.moments import centred_means
from covfree.heads.columns import fitting, head_for_present, log_priors


def lda_head(
    covariance: Float[AnyArray, "dim dim"] | Scatter,
    moments: Moments,
    *,
    priors: Float[AnyArray, " classes"] | None = None,
) -> LinearHead:
    """Make a linear classifier by Bayes' rule for Gaussian classes that share one covariance Σ.

    Class c, of mean μ_c and prior π_c, gets the weight w_c = Σ⁻¹(μ_c − μ_g) and the bias b_c =
    −½ (μ_c + μ_g)ᵀ w_c + log π_c, with μ_g the mean of all examples.

    The textbook has w_c = Σ⁻¹μ_c and b_c = −½ μ_cᵀΣ⁻¹μ_c + log π_c. The score xᵀw_c + b_c here is the
    textbook's score minus the term xᵀΣ⁻¹μ_g − ½ μ_gᵀΣ⁻¹μ_g. This term is the same for all classes, so leaving
    it out does not change predictions and softmax. If all features lie far from zero, the term is so large
    that its rounding would hide the differences between classes.

    Args:
        covariance: Σ, usually a shrunk within-class covariance. If it is singular, the solution of minimum
            norm is taken.
        moments: `first_moments` of all rows.
        priors: π_c, at least 0; any scale. By default the classes' shares N_c/N.

    Returns:
        The head; its scores are log-posteriors up to a term that all classes share, so that a softmax gives
        probabilities. A class without examples, or with prior 0, is marked absent.

    Raises:
        ValueError: if Σ and the moments differ in size, ``priors`` has another shape than [classes],
            or a prior is negative or not finite, or all are 0 (unless traced).

    Source: Fisher (1936); Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, eq. 4.10.
    Equivalent to ``sklearn.discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr")`` up to this
    common term.

    >>> import jax.numpy as jnp
    >>> moments = Moments(jnp.array([1, 1]), jnp.array([1, 1]), jnp.array([[2.0], [0.0]]))
    >>> head = lda_head(jnp.eye(1), moments)
    >>> head.weight.ravel().tolist(), (head.bias - head.bias[1]).tolist()
    ([1.0, -1.0], [-2.0, 0.0])
    """
    weight = solve(factorise(fitting("covariance", covariance, moments)), centred_means(moments).T)
    return lda_head_of(weight, moments, priors=priors)


def lda_head_of(
    weight: Float[Array, "dim classes"],
    moments: Moments,
    *,
    priors: Float[AnyArray, " classes"] | None = None,
) -> LinearHead:
    """Make the head of `lda_head` from given solutions w_c = Σ⁻¹(μ_c − μ_g)."""
    mean, centre, present = moments.mean, moments.grand_mean[None, :], moments.present
    if priors is None:
        log_prior = log_priors(moments)
    else:
        priors = jnp.asarray(priors)
        if priors.shape != moments.count.shape:
            raise ValueError(f"priors: expected shape {moments.count.shape}, got {priors.shape}")
        if not is_traced(priors) and not (jnp.isfinite(priors).all() and priors.min() >= 0 < priors.max()):
            raise ValueError(f"priors: expected finite numbers of at least 0, some above, got {priors}")
        present &= priors > 0
        log_prior = jnp.log(jnp.where(priors > 0, priors / priors.sum(), 1)).astype(mean.dtype)
    bias = -0.5 * jnp.sum((mean + centre).T * weight, axis=0) + log_prior
    return head_for_present(weight, bias, present)
