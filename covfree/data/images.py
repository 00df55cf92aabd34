"""Image sets by name, and from arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.array_file import read_npz
from covfree.core.checks import num_classes_of
from covfree.data.dataset import StrPath
from covfree.data.folders import image_folder
from covfree.data.from_tfds import tfds
from covfree.data.image_set import ImageSet

_PREFIX = "tfds:"


def load_images(source: StrPath) -> ImageSet:
    """Open an image set by its name or path.

    Args:
        source: a folder, see `image_folder`; ``"tfds:NAME"``, see `tfds`; or an ``.npz`` file, see below.
            To pass more arguments, call these functions.

    An ``.npz`` file holds ``images`` (uint8 ``[n, height, width, 3]`` or ``[n, height, width]``) and
    ``labels [n]``, and, if there are any, ``clients [n]``, ``is_test [n]`` and ``class_names [C]``, as
    `image_arrays` takes them. All of it is read into memory.

    Raises:
        ValueError: if the source is none of these, or does not hold what is expected.
        FileNotFoundError: if there is no such file or folder.
    """
    name = str(source)
    if name.startswith(_PREFIX):
        return tfds(name.removeprefix(_PREFIX))
    path = Path(source)
    if path.is_dir():
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
        images: uint8 ``[n, height, width, 3]``, or ``[n, height, width]`` for grey images.
        labels: [n] integers from 0.
        clients: [n] strings, or integers of which those below 0 are no client.
        is_test: [n] booleans.
        class_names: [C] strings; the labels themselves if not given.
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
    if labels.size and labels.min() < 0:
        raise ValueError(f"{name}: labels: expected indices of classes from 0, got {labels.min()}")
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
        labels=labels.astype(np.int32),
        class_names=tuple(str(each) for each in class_names),
        read=partial(_row, images),
        fingerprint=digest.hexdigest(),
        clients=None if clients is None else np.asarray(clients),
        is_test=None if is_test is None else np.asarray(is_test),
    )


# Not a closure: those cannot be pickled, so the image set could not be sent to another process.
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
