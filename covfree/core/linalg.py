"""Solve systems with symmetric positive semi-definite matrices: factorise once, solve often; report the rank.

A `Scatter` stores a matrix in full, or as a factor Y of YᵀY if it has few rows. `factorise` chooses the
cheapest stable route (never an inverse or ``pinv``), and `solve` applies it to right-hand sides:

- Cholesky of the diagonally scaled matrix [dim, dim]; or, for a factor with rows + 1 < dim, of its dual YYᵀ
  [rows, rows], by the Woodbury identity;
- if Cholesky breaks down (the matrix is numerically singular), ``eigh`` with eigenvalues up to eps·size·λ_max
  taken as 0, which gives the solution of minimum norm.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.lapack import cholesky, cond_of_lanes, eigh, lanes, triangular_solve
from covfree.core.products import Scatter as Scatter
from covfree.core.products import as_scatter as as_scatter
from covfree.core.products import divide_or_zero, product
from covfree.core.types import AnyArray

# Cholesky has failed if a squared pivot is below this many eps, with the matrix scaled to a diagonal of about
# 1. If features depend on one another exactly, pivots of up to 2 eps or below 0 were seen (sizes 64 to 2048).
# A float32 system of condition 1e6 keeps pivots above 15 eps, even if half of its eigenvalues are at the
# lower end.
_PIVOT_NOISE = 4.0


class Route(enum.IntEnum):
    """How the matrix of a linear system was factorised: by Cholesky's factorisation, or by ``eigh``.

    For a matrix YᵀY + λI where Y has fewer rows than columns, the DUAL routes factorise the smaller YYᵀ + λI.
    """

    CHOLESKY = 0
    EIGH = 1
    DUAL_CHOLESKY = 2
    DUAL_EIGH = 3


class Diagnostics(NamedTuple):
    """How a system was solved, and how near to singular it was.

    Attributes:
        route: a `Route`.
        rank: numerical rank of the matrix (dim, unless ``eigh`` took eigenvalues as 0).
        condition: λ_max / λ_min of the eigenvalues not taken as 0, or 1 if all are. A value near 1/eps is
            only a lower bound, as smaller eigenvalues are rounding error.
        smallest_pivot: the smallest squared pivot of Cholesky, on the matrix (or YYᵀ) scaled to a diagonal
            between ½ and 2; NaN if a squared pivot was not above 0.
    """

    route: Integer[Array, ""]
    rank: Integer[Array, ""]
    condition: Float[Array, ""]
    smallest_pivot: Float[Array, ""]


class Factorisation(NamedTuple):
    """A symmetric matrix A, factorised so that `solve` can solve linear systems A X = B.

    Either A itself is factorised or, if A = YᵀY + s I has a smaller dual YYᵀ + s I, this dual. The factorised
    matrix is the core, [size, size].

    Attributes:
        scatter: A.
        basis: the Cholesky factor of D·core·D, for a diagonal matrix D that scales the core; if
            ``deficient``, the eigenvectors of the core.
        diagonal: the diagonal of D (see `factorise`). If ``deficient``, the inverses of the core's
            eigenvalues, with 0 for an eigenvalue that may be rounding error.
        deficient: whether eigenvectors are stored, because Cholesky failed or s is 0 in the dual.
        smallest_pivot: see `Diagnostics`.
    """

    scatter: Scatter
    basis: Float[Array, "size size"]
    diagonal: Float[Array, " size"]
    deficient: Bool[Array, ""]
    smallest_pivot: Float[Array, ""]


@jax.jit
def factorise(matrix: Float[AnyArray, "dim dim"] | Scatter) -> Factorisation:
    """Factorise a positive semi-definite matrix A for `solve`.

    Cholesky factorises D A D, whose diagonal is between ½ and 2; D is a diagonal matrix of powers of two, so
    that scaling is exact. This keeps accuracy if features have very different scales.

    Args:
        matrix: symmetric positive semi-definite, as an array or a `Scatter`.

    Returns:
        The factorisation. It has no gradient: `solve` is differentiated implicitly.
    """
    scatter = as_scatter(matrix)
    core, shift = jax.lax.stop_gradient((scatter.core(), scatter.shift))
    # With a factor, the solution by Cholesky (Woodbury's identity) divides by the shift. With a shift of 0
    # use ``eigh`` of the smaller matrix instead, which gives the solution of minimum norm.
    allowed = shift > 0 if scatter.factored else jnp.array(True)
    return Factorisation(scatter, *_factors(core, shift, allowed))


@lanes
def _factors(
    core: Float[Array, "size size"], shift: Float[Array, ""], allowed: Bool[Array, ""]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Factorise ``core + shift·I`` by Cholesky, or by ``eigh`` if Cholesky fails or is not ``allowed``.

    Returns:
        The fields of a `Factorisation`, without the first one, ``scatter``.
    """
    core = core + shift * jnp.eye(core.shape[0], dtype=core.dtype)
    diagonal = jnp.diagonal(core)
    exponent = -jnp.round(0.5 * jnp.log2(jnp.where(diagonal > 0, diagonal, 1))).astype(jnp.int32)
    scale = jnp.ldexp(jnp.ones_like(diagonal), exponent)
    root = cholesky(core * scale[:, None] * scale[None, :])
    smallest = jnp.square(jnp.diagonal(root)).min(initial=jnp.inf)
    # A comparison with NaN is False, so a NaN pivot counts as a breakdown.
    sound = allowed & (smallest > _PIVOT_NOISE * jnp.finfo(core.dtype).eps)

    def eigen(core: jax.Array, root: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        values, vectors = eigh(core)
        inverse = divide_or_zero(1, values, values > rank_cut(values))
        # If sums overflowed, return NaN: rank 0, with a solution of 0, would look like a valid result.
        return vectors, jnp.where(jnp.isfinite(core).all(), inverse, jnp.nan)

    basis, diagonal = cond_of_lanes(~sound, eigen, lambda core, *found: found, core, root, scale)
    return basis, diagonal, ~sound, smallest


@jax.jit
def solve(factorisation: Factorisation, right: Float[Array, "dim columns"]) -> Float[Array, "dim columns"]:
    """Solve A X = B; if A is numerically singular, return the solution of minimum norm.

    It is differentiable in A and B (implicitly: dX = A⁻¹(dB − dA X)).

    Args:
        factorisation: A, from `factorise`.
        right: B.

    Raises:
        ValueError: if B does not fit A.

    Returns:
        X; NaN if A is not finite. Equivalent to ``scipy.linalg.solve(A, B, assume_a="pos")``, or to
        ``scipy.linalg.pinvh(A) @ B`` where A is singular.

    >>> import jax.numpy as jnp
    >>> solve(factorise(jnp.array([[4.0, 0.0], [0.0, 0.0]])), jnp.ones((2, 1))).T
    Array([[0.25, 0.  ]], dtype=float32)
    """
    if right.ndim != 2 or right.shape[0] != factorisation.scatter.dim:
        raise ValueError(
            f"right: expected [{factorisation.scatter.dim}, columns], as the matrix, got {list(right.shape)}"
        )
    scatter, basis, diagonal, deficient, _ = factorisation

    def inverse(_: object, b: jax.Array) -> jax.Array:
        if scatter.factored:
            return _apply_dual(basis, diagonal, deficient, b, scatter.value, scatter.shift)
        return _apply_primal(basis, diagonal, deficient, b)

    return jax.lax.custom_linear_solve(scatter.times, right, inverse, symmetric=True)


@jax.jit
def diagnostics(factorisation: Factorisation) -> Diagnostics:
    """Report how a matrix was factorised, its rank and its condition number, as `Diagnostics`.

    This computes all eigenvalues, which takes several times as long as a Cholesky factorisation: do not call
    it in a loop.
    """
    scatter = factorisation.scatter
    core = scatter.core()
    values = eigh(core)[0] + scatter.shift
    cut = rank_cut(values)
    # If a factor Y is stored, its core YYᵀ lacks this many eigenvalues of YᵀY + shift·I: all equal the shift.
    hidden = scatter.dim - core.shape[0]
    kept = jnp.where(factorisation.deficient, values > cut, True)
    hidden_kept = jnp.logical_and(~factorisation.deficient, hidden > 0)
    # Eigenvalues below eps·λ_max may be rounding, and `eigh` may even return negative ones: raise all to
    # eps·λ_max.
    values = jnp.maximum(values, jnp.finfo(values.dtype).eps * values.max(initial=0))
    smallest = jnp.where(kept, values, jnp.inf).min(initial=jnp.inf)
    smallest = jnp.where(hidden_kept, jnp.minimum(smallest, scatter.shift), smallest)
    some = jnp.isfinite(smallest)
    return Diagnostics(
        route=factorisation.deficient.astype(jnp.int32) + jnp.int32(2 * scatter.factored),
        rank=kept.sum() + jnp.where(hidden_kept, hidden, 0),
        condition=jnp.where(some, values.max(initial=0) / jnp.where(some, smallest, 1), 1.0),
        smallest_pivot=factorisation.smallest_pivot,
    )


def rank_cut(values: Float[Array, " size"]) -> Float[Array, ""]:
    """Return eps·size·max |λ|, the bound up to which an eigenvalue may be rounding error."""
    return jnp.finfo(values.dtype).eps * values.shape[0] * jnp.abs(values).max(initial=0)


def _by_cholesky(root: jax.Array, scale: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply B = ``right`` by the inverse of a symmetric matrix A: return A⁻¹ B = D L⁻ᵀ L⁻¹ D B.

    L = ``root`` is the Cholesky factor of D A D, with the diagonal matrix D = diag(``scale``).
    """
    half = triangular_solve(root, scale[:, None] * right)
    return scale[:, None] * triangular_solve(root, half, transposed=True)


def _by_eigenvectors(vectors: jax.Array, inverse: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply B = ``right`` by the pseudo-inverse of a symmetric matrix: return V diag(1/λ) Vᵀ B.

    V = ``vectors`` has the matrix's eigenvectors. ``inverse`` has 1/λ for each eigenvalue λ, and 0 instead
    if λ may be rounding error.
    """
    return product(vectors, inverse[:, None] * product(vectors.T, right))


@lanes
def _apply_primal(
    basis: Float[Array, "size size"],
    diagonal: Float[Array, " size"],
    deficient: Bool[Array, ""],
    right: Float[Array, "size columns"],
) -> Float[Array, "size columns"]:
    """Compute A⁻¹ B, or the pseudo-inverse times B if ``deficient``, from the factorisation of a full A."""
    return cond_of_lanes(deficient, _by_eigenvectors, _by_cholesky, basis, diagonal, right)


@lanes
def _apply_dual(
    basis: Float[Array, "size size"],
    diagonal: Float[Array, " size"],
    deficient: Bool[Array, ""],
    right: Float[Array, "dim columns"],
    factor: Float[Array, "size dim"],
    shift: Float[Array, ""],
) -> Float[Array, "dim columns"]:
    """Solve (YᵀY + s I) X = B for X, from the factorisation of YYᵀ + s I (``basis``, ``diagonal``).

    Y is ``factor``, s is ``shift`` and B is ``right``. By the Woodbury identity,
    X = (B − Yᵀ (YYᵀ + s I)⁻¹ Y B) / s. If s is small, the difference cancels; one step of iterative
    refinement repairs this. If s = 0, or if YYᵀ + s I is numerically singular (``deficient``), s is ignored,
    and the minimum-norm solution is Yᵀ (YYᵀ)⁺ (YYᵀ)⁺ Y B.
    """
    return cond_of_lanes(deficient, _minimum_norm, _woodbury, basis, diagonal, right, factor, shift)


def _woodbury(
    root: jax.Array, scale: jax.Array, right: jax.Array, factor: jax.Array, shift: jax.Array
) -> jax.Array:
    def once(b: jax.Array) -> jax.Array:
        return (b - product(factor.T, _by_cholesky(root, scale, product(factor, b)))) / shift

    first = once(right)
    return first + once(right - Scatter(factor, shift, factored=True).times(first))


def _minimum_norm(
    vectors: jax.Array, inverse: jax.Array, right: jax.Array, factor: jax.Array, shift: jax.Array
) -> jax.Array:
    inner = _by_eigenvectors(vectors, inverse, product(factor, right))
    return product(factor.T, _by_eigenvectors(vectors, inverse, inner))
