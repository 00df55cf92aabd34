"""Matrix products in full precision, and `Scatter` matrices; division that gives 0, not NaN; norms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from covfree.core.types import AnyArray, Scalar

# `symmetric_product` halves the columns twice, which leaves 5/8 of the work. It does not go on to blocks of
# fewer than _SMALLEST columns, and multiplies factors of fewer than _FEWEST rows directly.
_HALVINGS = 2
_SMALLEST = 128
_FEWEST = 64


def product(left: Float[Array, "*a b"], right: Float[Array, "b c"]) -> Float[Array, "*a c"]:
    """Multiply a matrix, or several, by another in full precision: no TF32 or bfloat16 on accelerators."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def magnitude(values: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the largest absolute value; 1 if all numbers are 0. Derivatives treat it as a constant.

    Divide numbers by it before squaring them, so that squares neither overflow nor underflow.
    """
    largest = jax.lax.stop_gradient(jnp.abs(values).max(initial=0))
    return jnp.where(largest > 0, largest, 1)


def divide_or_zero(
    numerator: Num[Array, "..."] | int,
    denominator: Num[Array, "..."],
    known: Bool[Array, "..."] | None = None,
) -> Float[Array, "..."]:
    """Divide where ``known``, by default where the denominator is above 0; return 0 elsewhere.

    Where ``known`` is False, the derivatives are 0 too, not NaN.
    """
    known = denominator > 0 if known is None else known
    return jnp.where(known, numerator / jnp.where(known, denominator, 1), 0)


def symmetric_product(factor: Float[Array, "rows dim"], halvings: int = _HALVINGS) -> Float[Array, "dim dim"]:
    """Compute ``factorᵀ factor``; blocks below the diagonal are transposes of those above it.

    A and B are the halves of the columns: AᵀB is computed once, AᵀA and BᵀB recursively, ``halvings`` deep.

    >>> import jax.numpy as jnp
    >>> symmetric_product(jnp.array([[1.0, 2.0]]))
    Array([[1., 2.],
           [2., 4.]], dtype=float32)
    """
    # A multiple of 64 keeps blocks aligned for the kernels.
    half = factor.shape[1] // 128 * 64
    # With few rows, multiplying costs less than putting blocks together.
    few = isinstance(factor.shape[0], int) and factor.shape[0] < _FEWEST
    if halvings == 0 or half < _SMALLEST or few:
        return product(factor.T, factor)
    left, right = factor[:, :half], factor[:, half:]
    cross = product(left.T, right)
    upper, lower = (symmetric_product(part, halvings - 1) for part in (left, right))
    return jnp.block([[upper, cross], [cross.T, lower]])


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
        """Make a `Scatter` of a full matrix, with shift 0."""
        matrix = jnp.asarray(matrix)
        return cls(matrix, jnp.zeros((), matrix.dtype))

    @classmethod
    def from_factor(cls, factor: Float[Array, "rows dim"]) -> Scatter:
        """Make a `Scatter` of ``factorᵀ factor``; store the factor if rows + 1 < dim, else the product."""
        zero = jnp.zeros((), factor.dtype)
        # Under `jax.export`, the number of rows may be symbolic: then store the product.
        if isinstance(factor.shape[0], int) and factor.shape[0] + 1 < factor.shape[1]:
            return cls(factor, zero, factored=True)
        return cls(symmetric_product(factor), zero)

    @property
    def dim(self) -> int:
        """Size d of the matrix."""
        return self.value.shape[1]

    def scaled(self, scale: Scalar) -> Scatter:
        """Return the matrix times ``scale``, a number of at least 0."""
        scale = jnp.asarray(scale, self.value.dtype)
        of_value = jnp.sqrt(scale) if self.factored else scale
        return Scatter(self.value * of_value, self.shift * scale, self.factored)

    def shifted(self, shift: Scalar) -> Scatter:
        """Return the matrix plus ``shift·I``."""
        return Scatter(self.value, self.shift + jnp.asarray(shift, self.value.dtype), self.factored)

    @property
    def unshifted(self) -> Scatter:
        """The matrix without its multiple of the identity, ``shift``·I."""
        return Scatter(self.value, jnp.zeros_like(self.shift), self.factored)

    def with_factor(self, factor: Float[Array, "more dim"]) -> Scatter:
        """Return the matrix plus ``factorᵀ factor``."""
        if not self.factored:
            return Scatter(self.value + symmetric_product(factor), self.shift)
        return Scatter.from_factor(jnp.concatenate([self.value, factor])).shifted(self.shift)

    def with_diagonal(self, diagonal: Float[Array, " dim"]) -> Scatter:
        """Return the matrix plus ``diag(diagonal)``, stored in full."""
        return Scatter.from_matrix(self.dense() + jnp.diag(diagonal))

    def dense(self) -> Float[Array, "dim dim"]:
        """Compute the matrix [dim, dim], its ``shift·I`` included."""
        matrix = symmetric_product(self.value) if self.factored else self.value
        return matrix + self.shift * jnp.eye(self.dim, dtype=matrix.dtype)

    def core(self) -> Float[Array, "size size"]:
        """Return a square matrix with the nonzero eigenvalues that this matrix has without its shift.

        Let Y be ``value``. Without the shift, this matrix is Y or, if ``factored``, YᵀY. The result is Y or,
        if ``factored``, the smaller Y Yᵀ. It also has the same trace and Frobenius norm.
        """
        return symmetric_product(self.value.T) if self.factored else self.value

    def times(self, vectors: Float[Array, "dim columns"]) -> Float[Array, "dim columns"]:
        """Compute the matrix, ``shift·I`` included, times column vectors."""
        image = product(self.value, vectors)
        if self.factored:
            image = product(self.value.T, image)
        return image + self.shift * vectors


def as_scatter(matrix: Float[AnyArray, "dim dim"] | Scatter) -> Scatter:
    """Convert a full matrix to a `Scatter`; return a `Scatter` as it is."""
    return matrix if isinstance(matrix, Scatter) else Scatter.from_matrix(matrix)


def shortened(tree: Any, clip: Scalar) -> Any:
    """Scale a pytree of floats, taken as one vector, down to norm ``clip`` if its norm is larger.

    If a number is not finite, or all are subnormal, the result is 0. Numbers are divided by the largest
    before they are squared, so that squares neither overflow nor vanish. The result is float32, or float64 if
    a leaf is; to convert it without increasing the norm, use `toward_zero`.
    """
    leaves, structure = jax.tree.flatten(tree)
    wide = any(leaf.dtype == jnp.float64 for leaf in leaves)
    dtype = jnp.dtype(jnp.float64 if wide else jnp.float32)
    leaves = [leaf.astype(dtype) for leaf in leaves]
    size = jnp.stack([jnp.zeros((), dtype), *(jnp.abs(leaf).max(initial=0) for leaf in leaves)]).max()
    # XLA turns numbers below ``tiny`` into 0, among them the reciprocals of huge numbers. So a size below
    # ``tiny`` counts as 0, and ``scale`` is at most 1/``tiny``.
    tiny = jnp.finfo(dtype).tiny
    sound = jnp.isfinite(size) & (size >= tiny)
    scale = jnp.where(sound, jnp.minimum(size, 1 / tiny), 1)
    parts = [jnp.where(sound, leaf, 0) / scale for leaf in leaves]
    norm = jnp.maximum(jnp.sqrt(sum(jnp.square(part).sum() for part in parts)), 1)
    # Aim slightly below ``clip``: the sum of squares has a rounding error.
    most = jnp.asarray(clip, dtype) * (1 - 1e-6) / norm
    made = [
        jnp.where(sound & (scale <= most), leaf, part * most)
        for leaf, part in zip(leaves, parts, strict=True)
    ]
    return structure.unflatten(made)


def toward_zero(values: jax.Array, dtype: Any) -> jax.Array:
    """Convert floats to ``dtype``, rounded so that no absolute value grows."""
    made = values.astype(dtype)
    larger = jnp.abs(made.astype(values.dtype)) > jnp.abs(values)
    return jnp.where(larger, jnp.nextafter(made, jnp.zeros_like(made)), made)
