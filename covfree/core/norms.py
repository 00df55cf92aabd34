"""Scale a vector down to a given norm, without underflow or overflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.types import Scalar


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
