"""Describe each client's features by a Gaussian in a subspace, and compute the Gaussians' barycentre."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from covfree.core.checks import check_example_structure, check_positive, check_type
from covfree.core.doors import compiled
from covfree.core.lapack import eigh
from covfree.core.linalg import rank_cut
from covfree.core.products import magnitude, product, symmetric_product
from covfree.core.types import AnyArray, Rows, is_traced
from covfree.estimators import estimate_covariance, first_moments, ledoit_wolf
from covfree.estimators.scatter import centred_rows

# The largest number of steps to the barycentre. For covariances with eigenvalues from 1 to 100 or 10,000, the
# relative change fell to 4e-11 in 13 to 41 steps.
_STEPS = 100
# The largest allowed entry of QᵀQ − I for a basis Q, which may be in half precision.
_ORTHONORMAL = 0.02


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of a client's features in the subspace of a basis Q; or of many clients, stacked.

    Attributes:
        mean: m, the mean of Qᵀx over the client's features x.
        covariance: Σ, the covariance of Qᵀx.
        count: number of examples.
    """

    mean: Float[Array, "*clients rank"]
    covariance: Float[Array, "*clients rank rank"]
    count: Num[Array, "*clients"]


def principal_basis(rows: Rows, num_components: int) -> Float[Array, "dim rank"]:
    """Compute the leading principal directions of rows that the server has, as the subspace to align in.

    Args:
        rows: class means that clients sent, or public examples (`Rows.from_examples`); classes do not matter.
        num_components: r, at most d; static.

    Returns:
        Q, orthonormal columns: eigenvectors, by falling eigenvalue, of Σ_i n_i (x_i − μ)(x_i − μ)ᵀ, for rows
        x_i of n_i examples and the mean μ of all examples.

    Raises:
        ValueError: if r is below 1 or above d.
    """
    check_type("rows", rows, Rows)
    check_positive("num_components", num_components)
    dim = jnp.shape(rows.mean)[1]
    if num_components > dim:
        raise ValueError(
            f"num_components: expected at most {dim}, the size of the features, got {num_components}"
        )
    whole = Rows(rows.mean, rows.count, jnp.minimum(jnp.asarray(rows.label), 0))
    moments = first_moments(whole, 1)
    factor = centred_rows(whole, moments)
    return eigh(symmetric_product(factor))[1][:, ::-1][:, :num_components]


def _check_features(features: AnyArray, basis: AnyArray) -> None:
    check_example_structure(features, np.zeros(np.shape(features)[:1], int))
    check_basis(features, basis)


@compiled(check=_check_features)
def client_gaussian(
    features: Float[AnyArray, "examples dim"], basis: Float[AnyArray, "dim rank"]
) -> Gaussian:
    """Compute what a client sends: mean and Ledoit-Wolf covariance of its features in the subspace.

    Args:
        features: features of the client's examples; labels are not needed.
        basis: Q, with orthonormal columns, the same for all clients.

    Returns:
        Mean and covariance of Qᵀx (r + r² numbers), and the number of examples. The covariance of one example
        is 0; without examples everything is 0.

    Raises:
        ValueError: if shapes do not fit.
    """
    inside = product(jnp.asarray(features), jnp.asarray(basis))
    count = jnp.ones(len(features), jnp.int32)
    # Scale first: the Ledoit-Wolf rule has fourth powers.
    unit = power_of_two(inside - inside[:1])
    covariance = estimate_covariance(inside / unit, count, shrinkage=ledoit_wolf())
    mean = (inside / unit).sum(0) / max(1, len(features))
    return Gaussian(mean * unit, covariance * unit * unit, count.sum())


def _check_gaussians(gaussians: Gaussian) -> None:
    if jnp.ndim(gaussians.mean) != 2:
        raise ValueError(
            f"gaussians: expected means [clients, rank], got {list(jnp.shape(gaussians.mean))}; stack them"
        )


@compiled(check=_check_gaussians)
def barycentre(gaussians: Gaussian) -> Gaussian:
    """Compute the Bures-Wasserstein barycentre of the clients' Gaussians, weighted by their counts.

    Its mean is the mean of all examples. Let w_k be client k's share of the examples, and B the Bures
    distance. The covariance S minimises Σ_k w_k B(S, Σ_k)², and solves S = Σ_k w_k (S^½ Σ_k S^½)^½. The
    iteration S ← S^−½ (Σ_k w_k (S^½ Σ_k S^½)^½)² S^−½ starts at Σ_k w_k Σ_k. If the Σ_k commute,
    S = (Σ_k w_k Σ_k^½)².

    Args:
        gaussians: the Gaussians of all clients, each leaf with a client axis. For equal weights replace
            ``count``.

    Raises:
        ValueError: if there is no client axis.

    Source: Agueh and Carlier (2011); the iteration is that of Álvarez-Esteban, del Barrio, Cuesta-Albertos
    and Matrán (2016).
    """
    count = jnp.asarray(gaussians.count)
    # Set the moments of clients without examples to 0: they may be NaN, which a weight of 0 would not remove.
    mean, covariance = (
        jnp.where((count > 0).reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
        for x in (jnp.asarray(gaussians.mean), jnp.asarray(gaussians.covariance))
    )
    unit, covariances = scaled(covariance)
    dtype = covariances.dtype
    share = count.astype(dtype) / jnp.maximum(count.sum(), 1).astype(dtype)
    tolerance = jnp.finfo(dtype).eps ** (2 / 3)

    def unfinished(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (carry[2] < _STEPS) & (carry[1] > tolerance)

    def one_step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        matrix, _, step = carry
        root, inverse = roots(matrix)

        def add(total: jax.Array, own: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            weight, covariance = own
            return total + weight * roots(between(root, covariance))[0], None

        mean, _ = jax.lax.scan(add, jnp.zeros_like(matrix), (share, covariances))
        after = between(inverse, product(mean, mean))
        size = jnp.linalg.norm(matrix)
        return after, jnp.linalg.norm(after - matrix) / jnp.where(size > 0, size, 1), step + 1

    start = jnp.einsum("k,kij->ij", share, covariances, precision=jax.lax.Precision.HIGHEST)
    matrix = jax.lax.while_loop(unfinished, one_step, (start, jnp.ones((), dtype), jnp.int32(0)))[0]
    return Gaussian(product(share[None, :], mean)[0], matrix * unit * unit, count.sum())


def check_basis(features: AnyArray, basis: AnyArray) -> None:
    """Raise ValueError unless a basis fits the features and has orthonormal columns.

    Only the shape of a traced basis is checked.
    """
    if jnp.ndim(basis) != 2 or jnp.shape(basis)[0] != jnp.shape(features)[1]:
        raise ValueError(
            f"basis: expected shape [{jnp.shape(features)[1]}, rank], as the features, got "
            f"{list(jnp.shape(basis))}"
        )
    if is_traced(basis):
        return
    columns = np.asarray(basis, np.float64)
    apart = np.abs(columns.T @ columns - np.eye(columns.shape[1])).max(initial=0)
    if not apart < _ORTHONORMAL:
        raise ValueError(
            f"basis: expected orthonormal columns, as np.linalg.qr gives; QᵀQ differs from I by {apart:.2g}"
        )


def roots(matrix: Float[Array, "rank rank"]) -> tuple[Float[Array, "rank rank"], Float[Array, "rank rank"]]:
    """Compute A^½ and A^−½ of a positive semi-definite matrix; eigenvalues of 0 up to rounding stay 0."""
    values, vectors = eigh(matrix)
    kept = values > rank_cut(values)
    root = jnp.sqrt(jnp.where(kept, values, 1))
    scaled = (vectors * jnp.where(kept, x, 0)[None, :] for x in (root, 1 / root))
    first, second = (product(each, vectors.T) for each in scaled)
    return first, second


def scaled(covariance: Float[Array, "*clients rank rank"]) -> tuple[Float[Array, ""], jax.Array]:
    """Return a power of two u, and ``covariance``/u², whose largest entry is near 1.

    Thus products of the scaled covariance do not overflow.
    """
    unit = power_of_two(jnp.sqrt(jnp.abs(covariance)))
    return unit, covariance / unit / unit


def power_of_two(values: jax.Array) -> Float[Array, ""]:
    """Return the power of two nearest to the largest magnitude; dividing by it is exact."""
    largest = magnitude(values)
    return jnp.ldexp(jnp.ones((), largest.dtype), jnp.round(jnp.log2(largest)).astype(jnp.int32))


def between(outer: jax.Array, inner: jax.Array) -> jax.Array:
    """Compute ``outer`` · ``inner`` · ``outer``, exactly symmetric, as LAPACK reads only one triangle."""
    whole = product(product(outer, inner), outer)
    return (whole + whole.T) / 2
