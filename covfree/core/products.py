"""Matrix products in full precision, and the symmetric one at less than the price of a full one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Halving the columns twice leaves 5/8 of the work; smaller blocks cost more than they save.
_HALVINGS = 2
_SMALLEST = 128
_FEWEST = 64


def product(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    """Matrix product in full precision: no TF32 or bfloat16 passes on accelerators."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def magnitude(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The largest of the numbers, without sign; 1 if all are 0. It has no derivative.

    Divided by it, squares of huge numbers do not overflow, and those of tiny ones do not vanish.
    """
    largest = jax.lax.stop_gradient(jnp.abs(values).max(initial=0))
    return jnp.where(largest > 0, largest, 1)


def symmetric_product(factor: Float[Array, "rows dim"], halvings: int = _HALVINGS) -> Float[Array, "dim dim"]:
    """``factorᵀ factor``, of which the lower triangle is copied from the upper, block by block.

    With the columns in halves A and B, AᵀB is computed once, and AᵀA and BᵀB in the same way again.

    >>> import jax.numpy as jnp
    >>> symmetric_product(jnp.array([[1.0, 2.0]]))
    Array([[1., 2.],
           [2., 4.]], dtype=float32)
    """
    # A multiple of 64 keeps the blocks aligned for the kernels below.
    half = factor.shape[1] // 128 * 64
    # A few rows cost less to multiply than the blocks to put together.
    few = isinstance(factor.shape[0], int) and factor.shape[0] < _FEWEST
    if halvings == 0 or half < _SMALLEST or few:
        return product(factor.T, factor)
    left, right = factor[:, :half], factor[:, half:]
    cross = product(left.T, right)
    upper, lower = (symmetric_product(part, halvings - 1) for part in (left, right))
    return jnp.block([[upper, cross], [cross.T, lower]])
