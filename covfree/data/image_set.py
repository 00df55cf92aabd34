"""Image sets of files or arrays, and the decoding of an image file."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np

from covfree.core.checks import num_classes_of
from covfree.core.optional import optional
from covfree.data.dataset import StrPath
from covfree.data.labelled import LabelledSet


@dataclass(frozen=True)
class ImageSet(LabelledSet):
    """Images that are read one at a time; labels and other data are known without reading images.

    `image_folder`, `tfds` and `image_arrays` make image sets; you may make your own.

    Attributes:
        name: the name of the data in tables.
        ids: [n] distinct names of the images, for errors and feature files; for a folder, paths below it.
        labels: [n] int32, in [0, C).
        class_names: [C], the names of the C classes.
        read: function that returns image i, in a form that `covfree.backbones.preprocess` takes: a Pillow
            image or a uint8 array. Threads call it in parallel; at damaged images it raises OSError or
            ValueError.
        fingerprint: a hash of the images and their order, in hexadecimal.
        clients: [n], the name or number of each image's client, if the data says so; ``""`` or below 0 for no
            client.
        is_test: [n] booleans, True in the test part, if the data is split.
        ignored: files and examples that were left out because they are no images or have no class. A folder
            that was left out as a whole is listed once, with a slash at the end.
        identities: [n] for each image, a string that distinguishes it from others, such as a file's path,
            size and modification time. An interrupted extraction continues if the finished images'
            identities are unchanged; without identities, if the fingerprint is unchanged.

    Raises:
        TypeError: if an array is of the wrong type.
        ValueError: if an array is of the wrong length, an id occurs twice or a label has no class name; the
            message names the image.
    """

    read: Callable[[int], Any]
    fingerprint: str


def image_arrays(
    images: Any,
    labels: Any,
    *,
    clients: Any = None,
    is_test: Any = None,
    class_names: Sequence[str] | np.ndarray | None = None,
    name: str = "arrays",
) -> ImageSet:
    """Make an image set from arrays in memory.

    Args:
        images: uint8 ``[n, height, width, 3]``, or ``[n, height, width]`` for grey images.
        labels: [n] integers from 0.
        clients: [n] strings, or integers, below 0 for no client.
        is_test: [n] booleans, True in the test part.
        class_names: [C] strings; by default the class numbers as strings.
        name: the name of the data in tables.

    Returns:
        The image set; its ids are the images' indices, its fingerprint the hash of their bytes and shape.

    Raises:
        TypeError: if an array is of the wrong type.
        ValueError: if an array is of the wrong shape, there is no image, or a label has no name.

    >>> import numpy as np
    >>> pixels = np.zeros((2, 32, 32, 3), np.uint8)
    >>> images = image_arrays(pixels, np.array([1, 0]), class_names=["cat", "dog"])
    >>> len(images), images.ids, images.read(0).shape
    (2, ('0', '1'), (32, 32, 3))
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8:
        raise TypeError(f"{name}: images: expected uint8 pixels, got {images.dtype}")
    if images.ndim not in (3, 4) or 0 in images.shape or (images.ndim == 4 and images.shape[3] != 3):
        raise ValueError(
            f"{name}: images: expected [n, height, width, 3] or [n, height, width] with n of at least 1, "
            f"got {list(images.shape)}"
        )
    images = np.ascontiguousarray(images)
    digest = hashlib.sha256(repr(images.shape).encode())
    digest.update(memoryview(images).cast("B"))
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{name}: labels: expected integers, got {labels.dtype}")
    if class_names is None:
        try:
            class_names = [str(label) for label in range(num_classes_of(labels))]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if clients is not None and np.asarray(clients).dtype.kind == "S":
        clients = np.char.decode(clients, "utf-8")
    return ImageSet(
        name=name,
        ids=tuple(str(i) for i in range(len(images))),
        labels=labels,
        class_names=tuple(str(each) for each in class_names),
        read=images.__getitem__,
        fingerprint=digest.hexdigest(),
        clients=None if clients is None else np.asarray(clients),
        is_test=None if is_test is None else np.asarray(is_test),
    )


# Pillow recognises these formats, but cannot decode them, or (EPS) only by running another program.
_NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}


@cache
def image_formats() -> dict[str, str]:
    """Return the extensions of image files in lower case, each with Pillow's name of the format."""
    pillow = optional("PIL.Image", "pretrained")
    extensions = pillow.registered_extensions()
    return {
        extension: name
        for extension, name in extensions.items()
        if name in pillow.OPEN and name not in _NOT_DECODED
    }


def decode_image(file: StrPath | BytesIO, name: str) -> Any:
    """Read an image file in full, as an RGB Pillow image, turned upright according to its EXIF orientation.

    Transparency is dropped and colours are kept, as in torchvision's ``ImageFolder``. An animation gives its
    first frame.
    """
    pillow, ops = optional("PIL.Image", "pretrained"), optional("PIL.ImageOps", "pretrained")
    try:
        with pillow.open(file, formats=sorted(set(image_formats().values()))) as image:
            most, pixels = pillow.MAX_IMAGE_PIXELS, image.width * image.height
            # Up to twice the limit Pillow only warns, and warning filters are not thread-safe: raise here.
            if most is not None and pixels > most:
                raise ValueError(f"{pixels} pixels, more than PIL.Image.MAX_IMAGE_PIXELS, {most}")
            upright = ops.exif_transpose(image)
            if upright.mode == "F" or upright.mode.startswith("I"):
                raise ValueError(
                    f"its mode {upright.mode} has more than 8 bits a channel; convert it to 8 bits"
                )
            if upright.mode == "P" and "transparency" in upright.info:
                # Converting via RGBA gives the same colours without Pillow's warning about a palette's
                # transparency.
                upright = upright.convert("RGBA")
            return upright.convert("RGB")
    except pillow.UnidentifiedImageError as error:
        raise ValueError(f"{name}: is no image that Pillow can read") from error
    # Catch all errors: a damaged file makes Pillow raise many kinds (SyntaxError, struct.error, …).
    except Exception as error:
        if not is_damage(error):
            raise
        raise ValueError(f"{name}: cannot be read as an image ({error})") from error


def is_damage(error: BaseException) -> bool:
    """Return whether an error comes from a file's content, and not from the system, such as a lost disk."""
    if isinstance(error, OSError):
        # In a damaged file, a reader may seek before the beginning or past the end: EINVAL, EOVERFLOW.
        return error.errno in (None, errno.EINVAL, errno.EOVERFLOW)
    return not isinstance(error, MemoryError)
