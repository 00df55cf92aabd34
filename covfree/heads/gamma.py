"""Compute ratios of Gamma functions at huge arguments, without cancellation between large logarithms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Raise the argument by this many steps of Γ(a + 1) = a Γ(a) before Stirling's series is used. The series'
# first omitted term is then below 3e-10.
_STEPS = 8


def log_gamma_ratio(
    least: Float[Array, ""], extra: Float[Array, " items"], dim: int
) -> Float[Array, " items"]:
    """Compute f(least + extra) − f(least) for f(a) = log Γ(a + d/2) − log Γ(a), with d = ``dim``.

    Differences of log Γ would lose digits. For even d, Γ(a + d/2)/Γ(a) is the product of a, …, a + d/2 − 1,
    so the result is Σ_i log(1 + extra/(least + i)) for i = 0, …, d/2 − 1. For odd d a ratio Γ(a + ½)/Γ(a)
    remains, which Stirling's series gives.
    """

    def steps(start: jax.Array, number: int) -> jax.Array:
        below = start + jnp.arange(number, dtype=extra.dtype)
        return jnp.log1p(extra[:, None] / below[None, :])

    if dim % 2 == 0:
        return steps(least, dim // 2).sum(1)
    whole = steps(least + 0.5, dim // 2).sum(1)
    recurrence = steps(least, _STEPS) - steps(least + 0.5, _STEPS)
    far = least + _STEPS
    half = 0.5 * jnp.log1p(extra / far) + _series(far + extra) - _series(far)
    return whole + recurrence.sum(1) + half


def _series(z: jax.Array) -> jax.Array:
    """Return log Γ(z + ½) − log Γ(z) − ½ log z, up to terms of order z⁻⁷."""
    inverse = 1 / z
    square = jnp.square(inverse)
    return inverse * (-1 / 8 + square * (1 / 192 - square / 640))
