"""The linear discriminant analysis head."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from covfree.heads.columns import fitting, head_for_present, log_priors
from covfree.linalg import Scatter, factorise, solve
from covfree.types import AnyArray, LinearHead, Moments


def lda_head(
    covariance: Float[AnyArray, "dim dim"] | Scatter,
    moments: Moments,
    *,
    priors: Float[AnyArray, " classes"] | None = None,
) -> LinearHead:
    """w_c = Σ⁻¹ μ_c and b_c = −½ μ_cᵀ Σ⁻¹ μ_c + log π_c: Bayes' rule for Gaussian classes of one covariance.

    Args:
        covariance: Σ, usually a shrunk within-class covariance. Where it is singular, the solution of
            minimum norm.
        moments: phase one of all rows.
        priors: π_c, at least 0; any scale. By default the classes' shares N_c/N.

    Returns:
        The head; its scores are log-posteriors up to a constant, so that a softmax gives probabilities.
        A class without examples (or with prior 0) has bias −∞.

    Raises:
        ValueError: if Σ and the moments differ in size, or ``priors`` has another shape than [classes].

    Source: Fisher (1936); Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, eq. 4.10.
    Equivalent to ``sklearn.discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr")``.

    >>> import jax.numpy as jnp
    >>> moments = Moments(jnp.array([1, 1]), jnp.array([1, 1]), jnp.array([[2.0], [0.0]]))
    >>> head = lda_head(jnp.eye(1), moments)
    >>> head.weight.ravel().tolist(), (head.bias - head.bias[1]).tolist()
    ([2.0, 0.0], [-2.0, 0.0])
    """
    mean = moments.mean
    weight = solve(factorise(fitting("covariance", covariance, moments)), mean.T)
    if priors is None:
        log_prior = log_priors(moments)
    else:
        priors = jnp.asarray(priors)
        if priors.shape != moments.count.shape:
            raise ValueError(f"priors: expected shape {moments.count.shape}, got {priors.shape}")
        log_prior = jnp.log(priors) - jnp.log(priors.sum())
    bias = -0.5 * jnp.sum(mean.T * weight, axis=0) + log_prior
    return head_for_present(weight, bias, moments)
