"""Convolutions and max pooling, each in the form that is fastest on the device in use.

On a CPU, these are faster than XLA's own: 3 to 26 times for convolutions with one channel per group, twice
for 1 × 1 kernels, up to 6 times for max pooling (``benchmarks/backbones.py``). Inside a loop, as in training,
gradients of convolutions with a single group are up to 40 times as fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

_Pads: TypeAlias = tuple[tuple[int, int], ...]
# "SAME", "VALID", or the numbers of added positions: ((top, bottom), (left, right)).
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
    """Convolve images (channels last); a replacement for ``lax.conv_general_dilated`` in Flax's layers.

    For networks of your own, use ``nn.Conv(…, conv_general_dilated=convolve)``. Results differ only by
    rounding. On a CPU, this is faster for groups of one channel, and for derivatives inside a loop, as in
    training by rounds: there, derivatives of XLA's convolutions of 64 channels take 40 times as long.

    With one group, forward-mode derivatives (``jvp``, ``hessian``) raise a TypeError, except for 1 × 1
    kernels of stride 1, and on small kernels and images.

    Args:
        x: [batch, height, width, channels].
        kernel: [height, width, channels in a group, outputs].
        strides: strides along height and width.
        padding: "SAME", "VALID", or the numbers of added positions: ((top, bottom), (left, right)).
        feature_group_count: number of groups of channels.
        precision: precision of the products.
        settings: other arguments of ``lax.conv_general_dilated``. With most of them, and for images that
            are not two-dimensional, `convolve` only calls that function.

    Returns:
        [batch, height, width, outputs].
    """
    general = partial(
        lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        feature_group_count=feature_group_count,
        precision=precision,
        **({"dimension_numbers": _LAYOUT} if x.ndim == 4 else {}) | settings,
    )
    if not _is_plain(x, kernel, settings):
        return general(x, kernel)
    height, width, _, channels = kernel.shape
    pads = tuple((low, high) for low, high in _pads(x, (height, width), strides, padding))
    if (height, width, feature_group_count, *strides) == (1, 1, 1, 1, 1) and not np.any(pads):
        return jnp.einsum("bhwi,io->bhwo", x, kernel[0, 0], precision=precision)
    if feature_group_count == 1:
        if _is_small(x, kernel, strides, pads):
            own = partial(_by_patches, strides=strides, padding=pads, precision=precision)
            return lax.platform_dependent(x, kernel, cpu=own, default=general)
        return _dense(x, kernel, tuple(strides), pads, precision)
    if feature_group_count == channels == x.shape[-1] and np.min(pads) >= 0:
        # Use `_depthwise` on CPUs only: accelerators have fast kernels for depthwise convolutions.
        return lax.platform_dependent(
            x, kernel, cpu=partial(_depthwise, strides=strides, padding=pads), default=general
        )
    return general(x, kernel)


# The largest kernel (height · width · channels) for which `_by_patches` is used, as it is then 2 to 4 times
# as fast as XLA's convolution.
_FEW = 32
# The largest result, in bytes, for which `_by_patches` is used. For a larger one malloc would ask the system
# for memory each time.
_SMALL = 2**25
# The largest number of positions in a window for which `_maxima` is used, as its work grows with the number.
_MANY = 64
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _is_small(x: jax.Array, kernel: jax.Array, strides: Sequence[int], pads: _Pads) -> bool:
    """Return whether kernel and result are small enough for `_by_patches`; False if a size is symbolic."""
    size, channels = math.prod(kernel.shape[:-1]), kernel.shape[-1]
    sides = zip(x.shape[1:3], kernel.shape, strides, pads, strict=False)
    positions = [(side + low + high - width) // step + 1 for side, width, step, (low, high) in sides]
    if not all(isinstance(number, int) for number in (x.shape[0], *positions)):
        return False
    return size <= _FEW and x.shape[0] * math.prod(positions) * channels * x.dtype.itemsize <= _SMALL


def _is_plain(x: jax.Array, kernel: jax.Array, settings: dict[str, Any]) -> bool:
    """Return whether a call convolves images, channels last, without dilation or other special settings."""
    if x.ndim != 4:
        return False
    layout = lax.conv_dimension_numbers(x.shape, kernel.shape, _LAYOUT)
    usual = {"dimension_numbers": (None, _LAYOUT, layout), "batch_group_count": (1,)}
    return all(
        value is None or value in usual.get(name, ()) or (name.endswith("dilation") and set(value) == {1})
        for name, value in settings.items()
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _dense(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, ...], pads: _Pads, precision: Any
) -> jax.Array:
    """Convolve with one group and no dilation.

    On a CPU, XLA has fast code for one form of convolution. It rewrites other forms, such as JAX's own
    derivatives, into this one only outside loops; inside a loop they take 40 times as long. So `_backward`
    computes derivatives in the fast form (https://github.com/jax-ml/jax/issues/12868).
    """
    return lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=_LAYOUT, precision=precision)


def _forward(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, ...], pads: _Pads, precision: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _dense(x, kernel, strides, pads, precision), (x, kernel)


def _backward(
    strides: tuple[int, ...],
    pads: _Pads,
    precision: Any,
    given: tuple[jax.Array, jax.Array],
    slope: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x, kernel = given
    convolved = partial(lax.conv_general_dilated, dimension_numbers=_LAYOUT, precision=precision)
    size = kernel.shape[:2]
    # The height and width that the windows cover; with strides, they may be below the image's.
    reached = [(n - 1) * step + k for n, step, k in zip(slope.shape[1:3], strides, size, strict=True)]
    sides = [(low, r - n - low, 0) for (low, _), r, n in zip(pads, reached, x.shape[1:3], strict=True)]
    padded = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *sides, (0, 0, 0)))
    # For the kernel's gradient, convolve the image with ``slope``, the gradient with respect to the output.
    # Each entry is a sum over the images, so the batch takes the place of the channels.
    by_kernel = convolved(
        padded.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3), (1, 1), "VALID", rhs_dilation=strides
    ).transpose(1, 2, 0, 3)
    # For the image's gradient, convolve ``slope`` with the flipped kernel.
    ends = [(k - 1 - low, k - 1 - high) for k, (low, high, _) in zip(size, sides, strict=True)]
    by_x = convolved(slope, kernel[::-1, ::-1].swapaxes(2, 3), (1, 1), ends, lhs_dilation=strides)
    return by_x, by_kernel


_dense.defvjp(_forward, _backward)


def _pads(
    x: jax.Array, size: Sequence[int], strides: Sequence[int], padding: Padding
) -> Sequence[tuple[int, int]]:
    """Return how many positions padding adds before and after, along the height and along the width."""
    if isinstance(padding, str):
        # Convert to int, as older versions of jax return NumPy integers.
        return [
            (int(low), int(high)) for low, high in lax.padtype_to_pads(x.shape[1:3], size, strides, padding)
        ]
    return padding


def max_pool(
    x: Float[Array, "batch height width channels"],
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Float[Array, "batch rows columns channels"]:
    """Compute the maximum of each window, as ``flax.linen.max_pool`` does; padding is never a maximum.

    On a CPU this is faster than Flax's, especially with derivatives. As in XLA, the first of equal maxima,
    row by row, gets the gradient.

    Args:
        x: images, channels last.
        window_shape: height and width of windows.
        strides: strides along height and width; 1 by default, as in Flax.
        padding: see `convolve`.
    """
    steps = tuple(strides or (1, 1))
    pads = _pads(x, window_shape, steps, padding)
    if window_shape[0] * window_shape[1] > _MANY:
        window, moves = ((1, *sides, 1) for sides in (window_shape, steps))
        return lax.reduce_window(x, -np.inf, lax.max, window, moves, ((0, 0), *pads, (0, 0)))
    return _maxima(_padded(x, pads, -jnp.inf), tuple(window_shape), steps)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _maxima(x: jax.Array, size: tuple[int, ...], strides: tuple[int, ...]) -> jax.Array:
    return functools.reduce(jnp.maximum, _moved(x, size, strides))


@_maxima.defjvp
def _maxima_and_slope(
    size: tuple[int, ...], strides: tuple[int, ...], given: tuple[jax.Array], slopes: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (slope,) = given, slopes
    maxima = _maxima(x, size, strides)
    number = size[0] * size[1]
    # Go from last to first, so that the first of equal maxima wins.
    places = list(enumerate(_moved(x, size, strides)))[-2::-1]
    first = jnp.full(maxima.shape, number - 1, jnp.int16)
    for place, image in places:
        first = jnp.where(image == maxima, jnp.int16(place), first)
    if strides != size:
        chosen = [
            jnp.where(first == place, image, 0) for place, image in enumerate(_moved(slope, size, strides))
        ]
        return maxima, functools.reduce(jnp.add, chosen)
    # Without overlap, a reshape separates the windows. The sum above would be slower here: its derivative
    # pads each slice to the whole image, and adds them all.
    batch, rows, columns, channels = maxima.shape
    windows = slope[:, : rows * size[0], : columns * size[1]].reshape(
        batch, rows, size[0], columns, size[1], channels
    )
    place = jnp.arange(number, dtype=jnp.int16).reshape(1, 1, size[0], 1, size[1], 1)
    here = first[:, :, None, :, None, :] == place
    return maxima, jnp.where(here, windows, 0).sum((2, 4))


def _by_patches(
    x: jax.Array, kernel: jax.Array, *, strides: Sequence[int], padding: _Pads, precision: Any
) -> jax.Array:
    """Convolve by multiplying a matrix of all patches of ``x`` by the kernel, reshaped to a matrix.

    Derivatives are matrix products too.
    """
    images = list(_moved(_padded(x, padding), kernel.shape[:2], strides))
    patches = jnp.concatenate(images, axis=-1)
    return jnp.matmul(patches, kernel.reshape(-1, kernel.shape[-1]), precision=precision)


def _depthwise(x: jax.Array, kernel: jax.Array, *, strides: Sequence[int], padding: _Pads) -> jax.Array:
    """Convolve each channel with its own kernel; sums are in float32 at least."""
    size = kernel.shape[:2]
    images = _moved(_padded(x, padding), size, strides)
    weights = kernel.astype(jnp.promote_types(x.dtype, jnp.float32)).reshape(-1, 1, 1, 1, x.shape[-1])
    terms = [image * weight for image, weight in zip(images, weights, strict=True)]
    return functools.reduce(jnp.add, terms).astype(x.dtype)


def _padded(x: jax.Array, pads: Sequence[tuple[int, int]], value: float = 0.0) -> jax.Array:
    """Pad images with ``value`` along height and width; negative numbers in ``pads`` crop."""
    if np.min(pads) < 0:
        sides = [(low, high, 0) for low, high in pads]
        return lax.pad(x, jnp.array(value, x.dtype), ((0, 0, 0), *sides, (0, 0, 0)))
    # Use `jnp.pad`, which jax2onnx can export for any number of images.
    return jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=value)


def _moved(x: jax.Array, size: Sequence[int], strides: Sequence[int]) -> Iterator[jax.Array]:
    """Yield, for each position in a window, row by row, the pixels at this position in all windows.

    They are a slice of the images ``x``, [batch, windows down, windows across, channels]. ``size`` is the
    window's height and width, ``strides`` the distance between windows. XLA fuses slices with arithmetic, so
    a sum or maximum over the slices becomes one loop over memory.
    """
    batch, height, width, channels = x.shape
    for i in range(size[0]):
        for j in range(size[1]):
            stop = (batch, height - size[0] + i + 1, width - size[1] + j + 1, channels)
            yield lax.slice(x, (0, i, j, 0), stop, (1, *strides, 1))
