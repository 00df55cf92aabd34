"""Gaussian classifiers in which every class has its own covariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.lapack import cholesky, triangular_solve
from covfree.core.types import AnyArray, Moments, as_features, at_once, masked
from covfree.heads.columns import log_priors


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GaussianHead:
    """A Gaussian for each class: scores are log-densities plus log-priors, up to a constant.

    A class without rows is marked absent: its score is −∞, so it is never predicted. All leaves are finite
    floats, like those of `LinearHead`.

    Attributes:
        mean: the class means μ_c.
        root: lower triangular L_c with Σ_c = L_c L_cᵀ for the covariance Σ_c of class c; the standard
            deviations if Σ_c is diagonal.
        bias: log π_c − ½ log det Σ_c, with π_c the prior of class c; 0 for an absent class.
        present: 1, or 0 for an absent class; None if all classes are present.
    """

    mean: Float[Array, "classes dim"]
    root: Float[Array, "classes dim dim"] | Float[Array, "classes dim"]
    bias: Float[Array, " classes"]
    present: Float[Array, " classes"] | None = None

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch classes"]:
        """Compute the scores class by class, which takes memory for one copy of the features."""
        features = jnp.asarray(as_features(features, self.mean.shape[1]))
        flat = features.reshape(-1, features.shape[-1]).astype(
            jnp.promote_types(features.dtype, self.mean.dtype)
        )

        def one_class(part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            mean, root, bias = part
            deviation = flat - mean[None, :]
            white = deviation / root[None, :] if root.ndim == 1 else triangular_solve(root, deviation.T).T
            return bias - 0.5 * jnp.square(white).sum(1)

        scores = jax.lax.map(one_class, (self.mean, self.root, self.bias))
        return masked(scores.T.reshape(*features.shape[:-1], -1), self.present)


def gaussian_head(
    covariances: Float[AnyArray, "classes dim dim"] | Float[AnyArray, "classes dim"], moments: Moments
) -> GaussianHead:
    """Make a classifier by Bayes' rule for Gaussian classes: quadratic discriminant analysis or naive Bayes.

    The score of class c is log π_c − ½ log det Σ_c − ½ (x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c). Class c has mean μ_c,
    covariance Σ_c, and the share π_c of the examples.

    Args:
        covariances: Σ_c, in full, or their diagonals for naive Bayes; positive definite for every class that
            has examples.
        moments: `first_moments` of all rows.

    Returns:
        The head.

    Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, eq. 4.12. With
    scikit-learn's covariances, the head is equivalent to its ``QuadraticDiscriminantAnalysis``, or for
    diagonals to its ``GaussianNB``.

    >>> import jax.numpy as jnp
    >>> moments = Moments(jnp.array([1, 1]), jnp.array([1, 1]), jnp.array([[0.0], [0.0]]))
    >>> head = gaussian_head(jnp.array([[1.0], [9.0]]), moments)  # a narrow class and a wide one
    >>> head(jnp.array([[0.5], [4.0]])).argmax(-1)
    Array([0, 1], dtype=int32)
    """
    covariances = jnp.asarray(covariances)
    if covariances.ndim == 2:
        return head_of_roots(jnp.sqrt(jnp.where(moments.present[:, None], covariances, 1)), moments)
    return head_of_roots(roots_of(lambda covariance: covariance, covariances, moments), moments)


def roots_of(
    covariance: Callable[..., jax.Array], classes: Any, moments: Moments
) -> Float[Array, "classes dim dim"]:
    """Compute the Cholesky factor L_c of each class's covariance; it is I for an absent class.

    Args:
        covariance: the function that computes one class's covariance, from the class's part of ``classes``.
        classes: arrays whose first axis is the classes.
        moments: `first_moments` of all rows.
    """

    def root(of_class: tuple[Any, jax.Array]) -> jax.Array:
        given, present = of_class
        matrix = covariance(given)
        return cholesky(jnp.where(present, matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype)))

    # Take one class after the other: all covariances at once, or a batched factorisation, need another copy.
    return jax.lax.map(root, (classes, moments.present))


def head_of_roots(
    root: Float[Array, "classes dim dim"] | Float[Array, "classes dim"], moments: Moments
) -> GaussianHead:
    """Make the head of `gaussian_head` from its ``root``, which has I or ones for absent classes."""
    scale = root if root.ndim == 2 else jnp.diagonal(root, axis1=1, axis2=2)
    bias = log_priors(moments) - jnp.log(scale).sum(1)
    present = moments.present
    return GaussianHead(moments.mean, root, jnp.where(present, bias, 0), present.astype(root.dtype))
