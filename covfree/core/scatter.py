"""Scatter matrices, stored in full or, for a matrix YᵀY, as the factor Y if it has few rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.products import product, symmetric_product
from covfree.core.types import AnyArray, Scalar


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
