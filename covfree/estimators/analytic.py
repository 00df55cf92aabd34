"""Compute what a client sends in analytic federated learning (AFL).

This is the client's ridge solution and the matrix of its normal equations.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_strength
from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.types import AnyArray, Scalar
from covfree.statistics import gram as gram_statistics


class Analytic(NamedTuple):
    """The message that one client of AFL (analytic federated learning) sends.

    Attributes:
        weight: W = C⁻¹ Xᵀ Y, the client's ridge solution, with X the features and Y the one-hot labels.
        gram: C = Xᵀ X + γ I, with γ the strength of the ridge.
    """

    weight: Float[Array, "dim classes"]
    gram: Float[Array, "dim dim"]


def local_solution(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    num_classes: int,
    gamma: Scalar,
) -> Analytic:
    """Compute a client's ridge solution W = (Xᵀ X + γI)⁻¹ Xᵀ Y, and C = Xᵀ X + γI.

    X holds the features, one example a row, and Y the one-hot labels; γ is ``gamma``.

    Returns:
        The message, W and C. Batch over clients with ``jax.vmap``.

    Source: AFL (He et al. 2025), the local stage. Equivalent to
    ``sklearn.linear_model.Ridge(gamma, fit_intercept=False)`` on one-hot labels.

    >>> import jax.numpy as jnp
    >>> message = local_solution(jnp.array([[3.0], [1.0]]), jnp.array([0, 1]), 2, 2.0)
    >>> (12 * message.weight).round(4).tolist(), message.gram.tolist()
    ([[3.0, 1.0]], [[12.0]])
    """
    check_strength("gamma", gamma)
    sums = gram_statistics(features, labels, num_classes)
    scatter = Scatter.from_matrix(sums.gram).shifted(gamma)
    weight = solve(factorise(scatter), sums.class_sum.T)
    return Analytic(weight, scatter.dense())
