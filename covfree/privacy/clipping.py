"""Vectors clipped to norm 1 and rounded to integers of a bounded norm, whatever numbers they hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from covfree.core.types import Scalar


def clipped(vectors: Float[np.ndarray, "rows dim"], clip: float) -> Float[np.ndarray, "rows dim"]:
    """Divide vectors by ``clip``, and scale those of a norm above 1 down to it.

    A vector that holds a number that is not finite becomes 0. The largest number of each vector is taken out
    before squares are summed, so that they neither overflow nor vanish.
    """
    size = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    sound = np.isfinite(size)
    scale = np.where(sound & (size > 0), size, 1)
    direction = np.where(sound, vectors, 0) / scale
    norm = np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1)
    with np.errstate(over="ignore"):
        return direction * np.minimum(scale / clip, 1 / norm)


def on_grid(vectors: Float[np.ndarray, "rows dim"], bound: int) -> Int[np.ndarray, "rows dim"]:
    """Round vectors of norm 1 or less to integers whose norm is at most ``bound``, exactly."""
    scaled = vectors * bound
    integers = np.rint(scaled).astype(np.int64)
    for shrink in (1.0, 1 - 1e-9, 0.0):
        # If rounding exceeded the bound, round towards 0; then only the last bit of a float can be too large.
        over = (integers**2).sum(1) > bound**2
        if not over.any():
            break
        integers[over] = np.trunc(scaled[over] * shrink).astype(np.int64)
    return bounded(integers, bound)


def bounded(integers: Int[np.ndarray, "rows dim"], bound: int) -> Int[np.ndarray, "rows dim"]:
    """Return integers, or raise if the norm of a row is above ``bound``.

    Floats do not wrap as squares of integers do. They are off by a last bit, less than what they allow for.

    Raises:
        ArithmeticError: if a norm is above the bound: the promise would not hold.
    """
    norm = np.linalg.norm(integers.astype(np.float64), axis=1)
    if not (norm <= bound * (1 + 1e-12)).all():
        raise ArithmeticError(f"integers: expected a norm of at most {bound}, got {norm.max()}")
    return integers


def shortened(tree: Any, clip: Scalar) -> Any:
    """Scale a pytree of floats, as one vector, down to norm ``clip`` if its norm is above; traced.

    It is `clipped` for traced arrays, without the division: all 0 if a number is not finite. The result is at
    least in float32; `toward_zero` rounds it to another data type.
    """
    leaves, structure = jax.tree.flatten(tree)
    dtype = jnp.result_type(jnp.float32, *leaves)
    leaves = [leaf.astype(dtype) for leaf in leaves]
    size = jnp.stack([jnp.zeros((), dtype), *(jnp.abs(leaf).max(initial=0) for leaf in leaves)]).max()
    # Arithmetic takes subnormal numbers for 0, also as reciprocals of huge ones.
    tiny = jnp.finfo(dtype).tiny
    sound = jnp.isfinite(size) & (size >= tiny)
    scale = jnp.where(sound, jnp.minimum(size, 1 / tiny), 1)
    parts = [jnp.where(sound, leaf, 0) / scale for leaf in leaves]
    norm = jnp.maximum(jnp.sqrt(sum(jnp.square(part).sum() for part in parts)), 1)
    # Sums of squares are off by some last bits.
    most = jnp.asarray(clip, dtype) * (1 - 1e-6) / norm
    made = [
        jnp.where(sound & (scale <= most), leaf, part * most)
        for leaf, part in zip(leaves, parts, strict=True)
    ]
    return structure.unflatten(made)


def toward_zero(values: jax.Array, dtype: Any) -> jax.Array:
    """Convert to another float type without making a number larger."""
    made = values.astype(dtype)
    larger = jnp.abs(made.astype(values.dtype)) > jnp.abs(values)
    return jnp.where(larger, jnp.nextafter(made, jnp.zeros_like(made)), made)
