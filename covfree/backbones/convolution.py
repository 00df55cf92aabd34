"""Convolutions and maxima over positions, each in the form that is fast where it runs.

On a CPU XLA's own forms take 3 to 26 times as long for one channel a group, twice as long for 1 × 1 kernels,
and up to 6 times as long for maxima (``benchmarks/backbones.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

# "SAME", or for each side how many positions are added before and after.
Padding: TypeAlias = str | Sequence[tuple[int, int]]


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Padding,
    *,
    feature_group_count: int = 1,
    precision: Any = None,
    **settings: Any,
) -> jax.Array:
    """``lax.conv_general_dilated`` of images, channels last, as Flax's convolutions call it."""
    height, width, _, channels = kernel.shape
    if (height, width, feature_group_count, *strides) == (1, 1, 1, 1, 1):
        return jnp.einsum("bhwi,io->bhwo", x, kernel[0, 0], precision=precision)
    general = partial(
        lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        feature_group_count=feature_group_count,
        precision=precision,
        **settings,
    )
    if feature_group_count == channels == x.shape[-1]:
        # Accelerators have kernels of their own for this.
        return lax.platform_dependent(
            x, kernel, cpu=partial(_depthwise, strides=strides, padding=padding), default=general
        )
    return general(x, kernel)


def max_pooled(x: jax.Array, padding: Padding) -> jax.Array:
    """The largest of every 3 × 3 positions, two steps apart; what pads never is."""
    return functools.reduce(jnp.maximum, _moved(x, (3, 3), (2, 2), padding, -jnp.inf))


def _depthwise(x: jax.Array, kernel: jax.Array, *, strides: Sequence[int], padding: Padding) -> jax.Array:
    """Each channel by itself, summed in float32 at least."""
    size = kernel.shape[:2]
    images = _moved(x, size, strides, padding, 0.0)
    weights = kernel.astype(jnp.promote_types(x.dtype, jnp.float32)).reshape(-1, 1, 1, 1, x.shape[-1])
    terms = [image * weight for image, weight in zip(images, weights, strict=True)]
    return functools.reduce(jnp.add, terms).astype(x.dtype)


def _moved(
    x: jax.Array, size: Sequence[int], strides: Sequence[int], padding: Padding, value: float
) -> Iterator[jax.Array]:
    """For each position in a window, row by row: what lies there in all windows.

    Sums and maxima of these become one loop over memory, as XLA fuses slices and arithmetic.
    """
    pads = lax.padtype_to_pads(x.shape[1:3], size, strides, padding) if isinstance(padding, str) else padding
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=value)
    batch, height, width, channels = x.shape
    for i in range(size[0]):
        for j in range(size[1]):
            stop = (batch, height - size[0] + i + 1, width - size[1] + j + 1, channels)
            yield lax.slice(x, (0, i, j, 0), stop, (1, *strides, 1))
