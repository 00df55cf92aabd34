"""Matrix products in full precision; products ``XᵀX`` in fewer operations; division that gives 0, not NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Num

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


# Factors that keep squares of numbers ≥ 0 in float32's range, if the numbers' sum is below 2⁻³⁰, up to 2³⁰,
# or above. Powers of two cause no rounding. The compiler may square a factor first, so 2^±120 must be in
# range too.
_SCALES = (2.0**60, 1.0, 2.0**-60)


def scale_for(total: Float[Array, ""]) -> tuple[Float[Array, ""], Integer[Array, ""]]:
    """Choose s for numbers x ≥ 0 of sum ``total``, such that Σ (s x)² neither overflows nor vanishes.

    Returns:
        s, and its index i: entry i of ``squares_in_scales(x)`` is Σ (s x)².
    """
    which = (total > 2.0**-30).astype(jnp.int32) + (total > 2.0**30).astype(jnp.int32)
    return jnp.asarray(_SCALES, total.dtype)[which], which


def squares_in_scales(numbers: Float[Array, " numbers"]) -> Float[Array, "scales"]:
    """Return Σ (s x)² over numbers x ≥ 0, once for each of three factors s.

    Only with the right factor do the squares stay in float32's range. `scale_for` chooses it by the sum of
    all numbers, which a client that has only some of them does not know. So clients compute the result for
    every factor, and the results add up.
    """
    # Cap numbers at 2⁵⁰, so that with a wrong factor the sum of up to 2²⁷ squares is not infinite. With the
    # right factor the cap changes nothing, if the sum of the numbers is below 2¹¹⁰.
    scaled = jnp.minimum(numbers[None, :] * jnp.asarray(_SCALES, numbers.dtype)[:, None], 2.0**50)
    return jnp.sum(jnp.square(scaled), axis=1)


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
