"""Image sets: images that are read when they are asked for, and what is known of them beforehand."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from covfree.data.dataset import MOST_CLASSES, StrPath, read_npz
from covfree.optional import optional

# Pillow knows these when it sees them, but cannot decode them, or (EPS) only by running another program.
_NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
_PREFIX = "tfds:"


@dataclass(frozen=True)
class ImageSet:
    """Images that are read one at a time, and what is known of each without reading it.

    `image_folder`, `tfds` and `image_arrays` make them; so may you.

    Attributes:
        name: how tables name the data.
        ids: [n], what errors and feature files call an image, each once; in a folder its path below it.
        labels: [n] int32, in [0, C).
        class_names: [C].
        read: gives image i as `covfree.backbones.preprocess` takes it: a Pillow image or uint8 grey levels.
            It is called from several threads, and raises OSError or ValueError where an image is damaged.
        fingerprint: a hash of the images and their order, in hexadecimal; another as soon as one of them is.
        clients: [n], the name or number of each image's client, if the data says so; ``""`` or below 0 where
            an image has none.
        is_test: [n] booleans, if the data is split.
        ignored: files that are no images, or examples without a class, that were left aside; of a folder
            that was left aside as a whole its name, with a slash at the end.

    Raises:
        TypeError: if an array is of the wrong type.
        ValueError: if an array is of the wrong length, an id occurs twice or a label has no class name; the
            message names the image.
    """

    name: str
    ids: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    read: Callable[[int], Any]
    fingerprint: str
    clients: np.ndarray | None = None
    is_test: np.ndarray | None = None
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kinds = (
            ("labels", self.labels, "iu", "integers"),
            ("clients", self.clients, "iuU", "strings or integers"),
            ("is_test", self.is_test, "b", "booleans"),
        )
        for name, array, allowed, text in kinds:
            if array is None:
                continue
            if array.dtype.kind not in allowed:
                raise TypeError(f"{self.name}: {name}: expected {text}, got {array.dtype}")
            if array.shape != (len(self.ids),):
                raise ValueError(
                    f"{self.name}: {name}: expected shape [{len(self.ids)}], got {list(array.shape)}"
                )
        if len(set(self.ids)) < len(self.ids):
            seen: set[str] = set()
            twice = next(name for name in self.ids if name in seen or seen.add(name))
            raise ValueError(f"{self.name}: ids: expected each once, got {twice!r} twice")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.class_names)))
        if len(wrong):
            raise ValueError(
                f"{self.name}: labels: {self.ids[wrong[0]]} has label {self.labels[wrong[0]]}; "
                f"expected one in [0, {len(self.class_names)})"
            )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.ids)


def load_images(source: StrPath) -> ImageSet:
    """Open an image set by its name or path.

    Args:
        source: a folder, see `image_folder`; ``"tfds:NAME"``, see `tfds`; or an ``.npz`` file, see below.
            To say more than a name, call these functions.

    An ``.npz`` file holds ``images`` (uint8 ``[n, height, width, 3]`` or ``[n, height, width]``) and
    ``labels [n]``, and, if there are any, ``clients [n]``, ``is_test [n]`` and ``class_names [C]``, as
    `image_arrays` takes them. All of it is read into memory.

    Raises:
        ValueError: if it is none of these, or does not hold what is expected.
        FileNotFoundError: if there is no such file or folder.
    """
    name = str(source)
    if name.startswith(_PREFIX):
        from covfree.data.from_tfds import tfds

        return tfds(name.removeprefix(_PREFIX))
    path = Path(source)
    if path.is_dir():
        from covfree.data.folders import image_folder

        return image_folder(path)
    if path.suffix == ".npz":
        return _load_npz(path)
    if path.exists():
        raise ValueError(f"{path}: expected a folder of images or an .npz file, got another file")
    raise FileNotFoundError(
        f"{path}: no such file or folder; expected a folder of images, an .npz file or tfds:NAME"
    )


def image_arrays(
    images: Any,
    labels: Any,
    *,
    clients: Any = None,
    is_test: Any = None,
    class_names: Sequence[str] | np.ndarray | None = None,
    name: str = "arrays",
) -> ImageSet:
    """View arrays as an image set.

    Args:
        images: uint8 ``[n, height, width, 3]``, or ``[n, height, width]`` of images without colours.
        labels: [n] integers from 0.
        clients: [n] strings, or integers of which those below 0 are no client.
        is_test: [n] booleans.
        class_names: [C] strings; the labels themselves if not given.
        name: how tables name the data.

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
        raise TypeError(f"{name}: images: expected uint8 grey levels, got {images.dtype}")
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
    if labels.size and not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"{name}: labels: expected indices of classes from 0, got {wrong}")
    if class_names is None:
        class_names = [str(label) for label in range(int(labels.max()) + 1 if labels.size else 0)]
    if clients is not None and np.asarray(clients).dtype.kind == "S":
        clients = np.char.decode(clients, "utf-8")
    return ImageSet(
        name=name,
        ids=tuple(str(i) for i in range(len(images))),
        labels=labels.astype(np.int32),
        class_names=tuple(str(each) for each in class_names),
        read=partial(_row, images),
        fingerprint=digest.hexdigest(),
        clients=None if clients is None else np.asarray(clients),
        is_test=None if is_test is None else np.asarray(is_test),
    )


# Not a closure, so that an image set can be sent to another process.
def _row(images: np.ndarray, i: int) -> np.ndarray:
    return images[i]


def _load_npz(path: Path) -> ImageSet:
    arrays = read_npz(path)
    if not {"images", "labels"} <= set(arrays):
        raise ValueError(f"{path}: expected arrays images and labels, got {sorted(arrays)}")
    known = ("images", "labels", "clients", "is_test", "class_names")
    try:
        return image_arrays(**{name: arrays[name] for name in known if name in arrays}, name=path.stem)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


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
