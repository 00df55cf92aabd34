"""What the heads share: unit columns, and the meaning of an absent class."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.linalg import Scatter, as_scatter
from covfree.core.types import AnyArray, LinearHead, Moments


def unit_columns(weight: Float[Array, "dim classes"]) -> Float[Array, "dim classes"]:
    """Scale each column to norm 1; a column of zeros stays.

    The largest entry is divided out first, so that squares neither overflow nor vanish in float32.
    """
    # It cancels, and so does its derivative. A maximum's own is NaN where XLA computes the entry twice,
    # rounded in two ways.
    largest = jax.lax.stop_gradient(jnp.abs(weight).max(0, keepdims=True, initial=0))
    weight = weight / jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(weight), axis=0, keepdims=True)
    return weight / jnp.sqrt(jnp.where(square > 0, square, 1))


def fitting(name: str, matrix: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Scatter:
    """Take a matrix of the size of the class means, or raise naming it."""
    dim = moments.total.shape[1]
    shape = (matrix.dim,) * 2 if isinstance(matrix, Scatter) else jnp.shape(matrix)
    if shape != (dim, dim):
        raise ValueError(f"{name}: expected [{dim}, {dim}], the size of the class means, got {list(shape)}")
    return as_scatter(matrix)


def head_for_present(
    weight: Float[Array, "dim classes"], bias: Float[Array, " classes"], present: Bool[Array, " classes"]
) -> LinearHead:
    """A head in which an absent class has weight 0 and bias 0, and is marked as absent."""
    return LinearHead(
        jnp.where(present[None, :], weight, 0), jnp.where(present, bias, 0), present.astype(weight.dtype)
    )


def log_priors(moments: Moments) -> Float[Array, " classes"]:
    """Log π_c of the classes' shares N_c/N; finite, with a finite derivative, for an absent class too."""
    count = moments.count.astype(moments.total.dtype)
    total = count.sum()
    return jnp.log(jnp.where(count > 0, count, 1)) - jnp.log(jnp.where(total > 0, total, 1))
