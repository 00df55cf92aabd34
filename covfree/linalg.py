"""Solves with symmetric positive semi-definite matrices: factorise once, solve many, say how it went.

A scatter matrix is held in full or, where it has few rows, by its factor (`Scatter`). `factorise`
chooses the cheapest stable route (never an inverse or ``pinv``), `solve` applies it to right-hand sides:

- Cholesky on a diagonally scaled matrix, in the primal (size dim) or, for a factor with
  rows + 1 < dim, in the dual (size rows, by the Woodbury identity);
- where Cholesky breaks down (the matrix is singular to working precision), ``eigh`` with the rank cut
  at eps·size·λ_max, which gives the solution of minimum norm.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import linalg as lax_linalg
from jaxtyping import Array, Bool, Float, Integer

from covfree.products import product, symmetric_product
from covfree.types import AnyArray, Scalar

# A squared pivot of the scaled matrix (whose diagonal is about 1) below this many eps is rounding noise:
# where features depend on one another exactly, what Cholesky leaves of the pivot was seen to reach 2 eps
# (sizes 64 to 2048) or to be negative; a float32 system of condition 1e6 shows pivots above 15 eps, even
# with half of its eigenvalues at the lower end.
_PIVOT_NOISE = 4.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scatter:
    """A positive semi-definite matrix, ``value + shift·I`` or ``valueᵀ value + shift·I``.

    Attributes:
        value: the matrix ``[dim, dim]``, or a factor ``[rows, dim]`` if ``factored``.
        shift: multiple of the identity, at least 0.
        factored: whether ``value`` is a factor. Few rows then cost rows·dim memory, not dim².
    """

    value: Float[Array, "rows dim"]
    shift: Float[Array, ""]
    factored: bool = field(default=False, metadata={"static": True})

    @classmethod
    def from_matrix(cls, matrix: Float[AnyArray, "dim dim"]) -> Scatter:
        """Wrap a full matrix."""
        matrix = jnp.asarray(matrix)
        return cls(matrix, jnp.zeros((), matrix.dtype))

    @classmethod
    def from_factor(cls, factor: Float[Array, "rows dim"]) -> Scatter:
        """Represent ``factorᵀ factor``: by the factor if rows + 1 < dim, else by the product."""
        zero = jnp.zeros((), factor.dtype)
        if factor.shape[0] + 1 < factor.shape[1]:
            return cls(factor, zero, factored=True)
        return cls(symmetric_product(factor), zero)

    @property
    def dim(self) -> int:
        """Size d of the matrix."""
        return self.value.shape[1]

    def scaled(self, scale: Scalar) -> Scatter:
        """``scale`` times the matrix; scale at least 0."""
        scale = jnp.asarray(scale, self.value.dtype)
        of_value = jnp.sqrt(scale) if self.factored else scale
        return Scatter(self.value * of_value, self.shift * scale, self.factored)

    def shifted(self, shift: Scalar) -> Scatter:
        """The matrix plus ``shift·I``."""
        return Scatter(self.value, self.shift + jnp.asarray(shift, self.value.dtype), self.factored)

    @property
    def unshifted(self) -> Scatter:
        """The matrix without its multiple of the identity."""
        return Scatter(self.value, jnp.zeros_like(self.shift), self.factored)

    def with_factor(self, factor: Float[Array, "more dim"]) -> Scatter:
        """The matrix plus ``factorᵀ factor``."""
        if not self.factored:
            return Scatter(self.value + symmetric_product(factor), self.shift)
        return Scatter.from_factor(jnp.concatenate([self.value, factor])).shifted(self.shift)

    def with_diagonal(self, diagonal: Float[Array, " dim"]) -> Scatter:
        """The matrix plus a diagonal one, in full."""
        return Scatter.from_matrix(self.dense() + jnp.diag(diagonal))

    def dense(self) -> Float[Array, "dim dim"]:
        """The matrix in full."""
        matrix = symmetric_product(self.value) if self.factored else self.value
        return matrix + self.shift * jnp.eye(self.dim, dtype=matrix.dtype)

    def core(self) -> Float[Array, "size size"]:
        """The smaller of A and its dual: the matrix itself, or ``value valueᵀ``, without the shift.

        Both have the same non-zero eigenvalues, so the same trace and Frobenius norm.
        """
        return symmetric_product(self.value.T) if self.factored else self.value

    def times(self, vectors: Float[Array, "dim columns"]) -> Float[Array, "dim columns"]:
        """The matrix times some columns."""
        image = product(self.value, vectors)
        if self.factored:
            image = product(self.value.T, image)
        return image + self.shift * vectors


def as_scatter(matrix: Float[AnyArray, "dim dim"] | Scatter) -> Scatter:
    """Take a full matrix or a `Scatter`."""
    return matrix if isinstance(matrix, Scatter) else Scatter.from_matrix(matrix)


class Route(enum.IntEnum):
    """How a system was solved."""

    CHOLESKY = 0
    EIGH = 1
    DUAL_CHOLESKY = 2
    DUAL_EIGH = 3


class Diagnostics(NamedTuple):
    """What a solve went through.

    Attributes:
        route: a `Route`.
        rank: rank of the matrix to working precision (dim, unless ``eigh`` had to cut).
        condition: λ_max / λ_min over the eigenvalues kept (1 if none was); near 1/eps a lower bound.
        smallest_pivot: smallest squared pivot of Cholesky on the matrix scaled to a diagonal between
            ½ and 2; NaN where it broke down.
    """

    route: Integer[Array, ""]
    rank: Integer[Array, ""]
    condition: Float[Array, ""]
    smallest_pivot: Float[Array, ""]


class Factorisation(NamedTuple):
    """A factorised `Scatter`: pass it to `solve`.

    Attributes:
        scatter: what was factorised.
        basis: the Cholesky factor of the scaled core, or the core's eigenvectors.
        diagonal: the scaling, or the inverse eigenvalues (0 where cut).
        deficient: whether ``basis`` holds eigenvectors, as Cholesky broke down.
        smallest_pivot: see `Diagnostics`.
    """

    scatter: Scatter
    basis: Float[Array, "size size"]
    diagonal: Float[Array, " size"]
    deficient: Bool[Array, ""]
    smallest_pivot: Float[Array, ""]


@jax.jit
def factorise(matrix: Float[AnyArray, "dim dim"] | Scatter) -> Factorisation:
    """Factorise a positive semi-definite matrix for `solve`.

    Cholesky works on D A D, with D powers of two (scaling rounds nothing) that bring the diagonal
    between ½ and 2: features of very different scale then lose no accuracy.

    Args:
        matrix: symmetric positive semi-definite; only as a `Scatter` can it be kept as a factor.

    Returns:
        The factorisation. Gradients flow through `solve` by implicit differentiation, not through this.
    """
    scatter = as_scatter(matrix)
    core = jax.lax.stop_gradient(scatter.core())
    size = core.shape[0]
    core = core + jax.lax.stop_gradient(scatter.shift) * jnp.eye(size, dtype=core.dtype)
    diagonal = jnp.diagonal(core)
    exponent = -jnp.round(0.5 * jnp.log2(jnp.where(diagonal > 0, diagonal, 1))).astype(jnp.int32)
    scale = jnp.ldexp(jnp.ones_like(diagonal), exponent)
    cholesky = lax_linalg.cholesky(core * scale[:, None] * scale[None, :], symmetrize_input=False)
    smallest = jnp.square(jnp.diagonal(cholesky)).min(initial=jnp.inf)
    eps = jnp.finfo(core.dtype).eps
    # NaN pivots compare False, so they count as a breakdown too.
    sound = smallest > _PIVOT_NOISE * eps
    if scatter.factored:
        # The Woodbury identity divides by the shift. Without one the solution of minimum norm is asked for,
        # which squares the condition and so wants eigenvalues.
        sound &= scatter.shift > 0

    def eigen() -> tuple[jax.Array, jax.Array]:
        values, vectors = jnp.linalg.eigh(core)
        kept = values > rank_cut(values)
        return vectors, jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)

    basis, diagonal = jax.lax.cond(sound, lambda: (cholesky, scale), eigen)
    return Factorisation(scatter, basis, diagonal, ~sound, smallest)


@jax.jit
def solve(factorisation: Factorisation, right: Float[Array, "dim columns"]) -> Float[Array, "dim columns"]:
    """Solve A X = B, with minimum norm where A is singular to working precision.

    Differentiable in A and B (implicitly: dX = A⁻¹(dB − dA X)).

    Args:
        factorisation: A, from `factorise`.
        right: B.

    Raises:
        ValueError: if B does not fit A.

    Returns:
        X. Equivalent to ``scipy.linalg.solve(A, B, assume_a="pos")``, or to
        ``scipy.linalg.pinvh(A) @ B`` where A is singular.

    >>> import jax.numpy as jnp
    >>> solve(factorise(jnp.array([[4.0, 0.0], [0.0, 0.0]])), jnp.ones((2, 1))).T
    Array([[0.25, 0.  ]], dtype=float32)
    """
    if right.ndim != 2 or right.shape[0] != factorisation.scatter.dim:
        raise ValueError(
            f"right: expected [{factorisation.scatter.dim}, columns], as the matrix, got {list(right.shape)}"
        )
    apply = _apply_dual if factorisation.scatter.factored else _apply
    return jax.lax.custom_linear_solve(
        factorisation.scatter.times, right, lambda _, b: apply(factorisation, b), symmetric=True
    )


@jax.jit
def diagnose(factorisation: Factorisation) -> Diagnostics:
    """Say which route a factorisation took, and how near to singular the matrix is.

    Costs an ``eigvalsh`` of the core, several times the factorisation: call it to look, not in a loop.
    """
    scatter = factorisation.scatter
    core = scatter.core()
    values = jnp.linalg.eigvalsh(core) + scatter.shift
    cut = rank_cut(values)
    hidden = scatter.dim - core.shape[0]  # eigenvalues of A that its dual lacks: all equal to the shift
    kept = jnp.where(factorisation.deficient, values > cut, True)
    hidden_kept = jnp.logical_and(~factorisation.deficient, hidden > 0)
    # An eigenvalue below eps·λ_max is known to be no larger, not more; eigvalsh may even give it a minus.
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
    """Eigenvalues up to this are rounding: eps·size·λ_max."""
    return jnp.finfo(values.dtype).eps * values.shape[0] * jnp.abs(values).max(initial=0)


def _apply(factorisation: Factorisation, right: Float[Array, "size columns"]) -> Float[Array, "size columns"]:
    """Apply the factorised core's (pseudo-)inverse."""
    basis, diagonal = factorisation.basis, factorisation.diagonal[:, None]

    def cholesky() -> jax.Array:
        half = lax_linalg.triangular_solve(basis, diagonal * right, left_side=True, lower=True)
        return diagonal * lax_linalg.triangular_solve(
            basis, half, left_side=True, lower=True, transpose_a=True
        )

    def eigen() -> jax.Array:
        return product(basis, diagonal * product(basis.T, right))

    return jax.lax.cond(factorisation.deficient, eigen, cholesky)


def _apply_dual(
    factorisation: Factorisation, right: Float[Array, "dim columns"]
) -> Float[Array, "dim columns"]:
    """Solve (YᵀY + s I) X = B by the system YYᵀ + s I of size rows.

    Woodbury: X = (B − Yᵀ (YYᵀ + s I)⁻¹ Y B) / s. The difference cancels where s is small, which one
    step of iterative refinement repairs. If s = 0, or YYᵀ + s I is singular to working precision, s counts
    for nothing and the minimum-norm solution is Yᵀ (YYᵀ)⁺ (YYᵀ)⁺ Y B.
    """
    factor, shift = factorisation.scatter.value, factorisation.scatter.shift

    def woodbury(b: jax.Array) -> jax.Array:
        return (b - product(factor.T, _apply(factorisation, product(factor, b)))) / shift

    def refined() -> jax.Array:
        first = woodbury(right)
        return first + woodbury(right - factorisation.scatter.times(first))

    def minimum_norm() -> jax.Array:
        inner = _apply(factorisation, product(factor, right))
        return product(factor.T, _apply(factorisation, inner))

    return jax.lax.cond(factorisation.deficient, minimum_norm, refined)
