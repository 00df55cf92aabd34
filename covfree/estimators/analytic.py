"""AFL: ridge solutions of clients, put together exactly, whatever regularisation each of them needed."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.checks import check_strength
from covfree.lapack import eigh
from covfree.linalg import Scatter, factorise, rank_cut, solve
from covfree.products import product
from covfree.statistics import gram as gram_statistics
from covfree.types import AnyArray, Scalar


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Analytic:
    """What one client sends, or what several sum up to; with an axis before where ``vmap`` made many of them.

    Attributes:
        weight: W = C⁻¹ Xᵀ Y, with Y the one-hot labels.
        gram: C = Xᵀ X + Kγ I, with γ for each of the K clients.
        clients: K, the clients inside.
    """

    weight: Float[Array, "*batch dim classes"]
    gram: Float[Array, "*batch dim dim"]
    clients: Integer[Array, "*batch"]


def local_solution(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    num_classes: int,
    gamma: Scalar,
) -> Analytic:
    """A client's ridge solution: W = (Xᵀ X + γI)⁻¹ Xᵀ Y and C = Xᵀ X + γI.

    Args:
        features: features of the client's examples. Half precisions are summed in float32.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static.
        gamma: γ, at least 0, the same for all clients. It makes the system of a client with few examples
            regular, and `remove_regularisation` takes it out again. With 0, the solution of minimum norm.

    Returns:
        The message. Batch over clients with ``jax.vmap``.

    Raises:
        ValueError: if shapes do not fit, or γ is negative or not finite.
        TypeError: if labels are no integers or γ no number.

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
    return Analytic(weight, scatter.dense(), jnp.ones((), jnp.int32))


@jax.jit
def aggregate(first: Analytic, second: Analytic) -> Analytic:
    """Put two together: C = C_u + C_v and W = C⁻¹ (C_u W_u + C_v W_v).

    C_u W_u = X_uᵀ Y_u by the normal equations, so C W = Xᵀ Y of all examples, and W is the ridge solution of
    them with the clients' γ added up. The operation is therefore associative and commutative (up to
    rounding): any tree, order or ``jax.lax.scan`` over clients ends at the same W.

    Args:
        first: W_u, C_u.
        second: W_v, C_v.

    Returns:
        W and C of both.

    Raises:
        ValueError: if they differ in size.

    Source: AFL (He et al. 2025), the absolute aggregation law. The paper's 𝒲_u = I − C_u⁻¹ C_v (I − C⁻¹ C_v)
    equals C⁻¹ C_u; this form needs no inverse of a client's C_u.

    >>> import jax.numpy as jnp
    >>> parts = [local_solution(jnp.array([[x]]), jnp.array([0]), 1, 1.0) for x in (1.0, 3.0)]
    >>> both = aggregate(*parts)
    >>> both.weight.round(4), both.gram.tolist()
    (Array([[0.3333]], dtype=float32), [[12.0]])
    """
    if first.weight.shape != second.weight.shape:
        raise ValueError(
            f"second: expected a weight of {list(first.weight.shape)} as first has, "
            f"got {list(second.weight.shape)}"
        )
    gram = first.gram + second.gram
    right = product(first.gram, first.weight) + product(second.gram, second.weight)
    return Analytic(solve(factorise(gram), right), gram, first.clients + second.clients)


@jax.jit
def remove_regularisation(
    analytic: Analytic, gamma: Scalar, ridge: Scalar = 0.0
) -> Float[Array, "dim classes"]:
    """Exchange the clients' regularisation Kγ for one λ: W = (C − Kγ I + λI)⁻¹ C W_all.

    C, C − Kγ I and C − Kγ I + λI share their eigenvectors, so with C = V diag(c) Vᵀ this is
    V diag(c / (c − Kγ + λ)) Vᵀ W_all. Where c − Kγ is no larger than the rounding error of C, the examples
    have nothing in that direction and W has nothing either: the solution of minimum norm where λ = 0.

    C was rounded with Kγ inside, so C − Kγ I is known to eps·(λ_max + Kγ) only (λ_max the largest eigenvalue
    of Xᵀ X), and the relative error is about that over λ_min + λ, with λ_min its smallest one above 0. A γ
    far above the eigenvalues costs digits; far below them it costs none.

    Args:
        analytic: the aggregate of all clients.
        gamma: γ, as the clients used it.
        ridge: λ of the final solution, at least 0.

    Returns:
        The weight, as one ridge regression on all examples gives it. The column of a class that nobody
        holds is 0: no counts are sent, so who knows them must keep such a class from being predicted.

    Raises:
        ValueError: if γ or λ is negative or not finite.
        TypeError: if one is no number.

    Source: AFL (He et al. 2025), the regularisation intermediary. Equivalent to
    ``sklearn.linear_model.Ridge(ridge, fit_intercept=False)`` on one-hot labels, or with λ = 0 to
    ``numpy.linalg.lstsq``.

    >>> import jax.numpy as jnp
    >>> message = local_solution(jnp.array([[2.0]]), jnp.array([0]), 1, 12.0)
    >>> remove_regularisation(message, 12.0).tolist()
    [[0.5]]
    """
    check_strength("gamma", gamma)
    check_strength("ridge", ridge)
    dtype = analytic.gram.dtype
    removed = analytic.clients.astype(dtype) * jnp.asarray(gamma, dtype)
    # Not `factorise(C − Kγ I)`: where the difference is singular, its rounding is that of C, which may lie
    # above a cut that is relative to the difference.
    values, vectors = eigh(analytic.gram)
    own = values - removed
    kept = own > rank_cut(values)
    whole = own + jnp.asarray(ridge, dtype)
    factor = jnp.where(kept, values / jnp.where(kept, whole, 1), 0)
    return product(vectors, factor[:, None] * product(vectors.T, analytic.weight))
