"""Resize, crop and normalise images for a backbone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from covfree.backbones.table import Preprocessing, Spec
from covfree.core.optional import optional
from covfree.core.types import AnyArray

# The largest allowed ratio of an image's sides. An image is resized before it is cropped, so with the
# sizes in a damaged header the resized image could be huge.
_LONGEST = 1000


def preprocess(image: Any, spec: Spec) -> Float[np.ndarray, "crop crop 3"]:
    """Resize, crop and normalise one image, as the backbone's published weights require.

    The shorter side becomes ``spec.preprocessing.resize`` pixels; if that is a width and a height, the image
    is squeezed to them. A square is cut from the middle, and its pixels are normalised. Needs Pillow.

    Args:
        image: a Pillow image, or its pixels: uint8 ``[height, width, 3]``, or ``[height, width]`` for a
            grey image.
        spec: the backbone's entry in `BACKBONES`.

    Returns:
        The normalised pixels, in float32.

    Raises:
        TypeError: if the image is an array of another type than uint8.
        ValueError: if the image is an array of another shape, or one side is more than 1000 times the other.

    >>> import numpy as np
    >>> from covfree.backbones import BACKBONES
    >>> preprocess(np.zeros((300, 400, 3), np.uint8), BACKBONES["resnet18"]).shape
    (224, 224, 3)
    """
    return np.asarray(normalise(crop(image, spec.preprocessing), spec.preprocessing))


def crop(image: Any, preprocessing: Preprocessing) -> UInt8[np.ndarray, "crop crop 3"]:
    """Resize an image and cut a square from the middle; see `preprocess`."""
    pillow = optional("PIL.Image", "pretrained")
    if isinstance(image, np.ndarray | jax.Array):
        if image.dtype != np.uint8:
            raise TypeError(f"image: expected uint8 pixels, got {image.dtype}")
        if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[2] != 3):
            raise ValueError(
                f"image: expected [height, width, 3] or [height, width], got {list(image.shape)}"
            )
        image = pillow.fromarray(np.ascontiguousarray(image))
    image = image.convert("RGB")
    short, size = min(image.size), preprocessing.crop
    # As in torchvision, round the longer side down to whole pixels, and margins to the nearest pixel.
    resize = preprocessing.resize
    width, height = resize if isinstance(resize, tuple) else (side * resize // short for side in image.size)
    if max(image.size) > _LONGEST * short:
        raise ValueError(
            f"image: expected sides of at most {_LONGEST}:1, got {image.width} × {image.height} pixels"
        )
    method = getattr(pillow.Resampling, preprocessing.interpolation.upper())
    resized = np.asarray(image.resize((width, height), method))
    top, left = round((height - size) / 2), round((width - size) / 2)
    return resized[top : top + size, left : left + size]


def normalise(
    pixels: UInt8[AnyArray, "*batch height width 3"], preprocessing: Preprocessing
) -> Float[AnyArray, "*batch height width 3"]:
    """Standardise each channel by the mean and standard deviation in ``preprocessing``.

    NumPy arrays are normalised on the host, JAX arrays on their device.
    """
    shape = (1,) * (pixels.ndim - 1) + (3,)
    mean = np.array(preprocessing.mean, np.float32).reshape(shape)
    std = np.array(preprocessing.std, np.float32).reshape(shape)
    return (pixels.astype(np.float32) - mean) / std
