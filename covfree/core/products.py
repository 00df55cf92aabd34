"""Matrix products in full precision; products ``XᵀX`` in fewer operations; division that gives 0, not NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

# `symmetric_product` halves the columns twice, which leaves 5/8 of the work. It does not go on to blocks of
# fewer than _SMALLEST columns, and multiplies factors of fewer than _FEWEST rows directly.
_HALVINGS = 2
_SMALLEST = 128
_FEWEST = 64


def product(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    """Multiply matrices in full precision: without TF32 or bfloat16 on accelerators."""
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
