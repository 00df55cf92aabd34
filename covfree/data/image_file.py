"""Files of single images: which are taken for such, and what they hold."""

from __future__ import annotations

import errno
from functools import cache
from io import BytesIO
from typing import Any

from covfree.core.optional import optional
from covfree.data.dataset import StrPath

# Pillow knows these when it sees them, but cannot decode them, or (EPS) only by running another program.
_NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}


@cache
def image_formats() -> dict[str, str]:
    """Extensions of the files that are taken for images, in lower case, each with Pillow's name for it."""
    pillow = optional("PIL.Image", "pretrained")
    extensions = pillow.registered_extensions()
    return {
        extension: name
        for extension, name in extensions.items()
        if name in pillow.OPEN and name not in _NOT_DECODED
    }


def decode_image(file: StrPath | BytesIO, name: str) -> Any:
    """Read an image file in full: a Pillow image in RGB, turned upright as its EXIF orientation says.

    Of an image with transparency the colours are kept and the transparency is not, as in torchvision's
    ``ImageFolder``; of an animation the first frame.

    Args:
        file: its path, or its bytes as a stream.
        name: what the error calls it.

    Raises:
        ValueError: if it is damaged, no image, has more than 8 bits a channel (Pillow would cut them off),
            or more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``.
        OSError: if the system cannot read the file.
    """
    pillow, ops = optional("PIL.Image", "pretrained"), optional("PIL.ImageOps", "pretrained")
    try:
        with pillow.open(file, formats=sorted(set(image_formats().values()))) as image:
            most, pixels = pillow.MAX_IMAGE_PIXELS, image.width * image.height
            # Pillow only warns up to twice the limit; filters of warnings are not for several threads.
            if most is not None and pixels > most:
                raise ValueError(f"{pixels} pixels, more than PIL.Image.MAX_IMAGE_PIXELS, {most}")
            upright = ops.exif_transpose(image)
            if upright.mode == "F" or upright.mode.startswith("I"):
                raise ValueError(
                    f"its mode {upright.mode} has more than 8 bits a channel; convert it to 8 bits"
                )
            if upright.mode == "P" and "transparency" in upright.info:
                # The same colours, without the warning that a palette's transparency is lost.
                upright = upright.convert("RGBA")
            return upright.convert("RGB")
    except pillow.UnidentifiedImageError as error:
        raise ValueError(f"{name}: is no image that Pillow can read") from error
    # A damaged file makes Pillow raise nearly anything: SyntaxError, struct.error, IndexError, ...
    except Exception as error:
        if not is_damage(error):
            raise
        raise ValueError(f"{name}: cannot be read as an image ({error})") from error


def is_damage(error: BaseException) -> bool:
    """Whether reading failed for what the file holds, rather than for the system: a lost disk, say."""
    if isinstance(error, OSError):
        # Damaged files may ask for a place before the beginning or past any end.
        return error.errno in (None, errno.EINVAL, errno.EOVERFLOW)
    return not isinstance(error, MemoryError)
