"""`load_images`, which opens an image set by its name or path."""

from __future__ import annotations

from pathlib import Path

from covfree.core.array_file import read_npz
from covfree.data.dataset import StrPath
from covfree.data.federations import FEDERATIONS, federation
from covfree.data.folders import image_folder
from covfree.data.from_tfds import tfds
from covfree.data.image_set import ImageSet, image_arrays

_PREFIX = "tfds:"


def load_images(source: StrPath) -> ImageSet:
    """Return an image set, opened by its name or path.

    Args:
        source: a folder, see `image_folder`; ``"tfds:NAME"``, see `tfds`; a federation's name, see
            `federation`; or an ``.npz`` file, see below. To pass more arguments to one of the functions
            named here, call that function directly.

    An ``.npz`` file holds ``images`` (uint8 ``[n, height, width, 3]`` or ``[n, height, width]``) and ``labels
    [n]``, and optionally ``clients [n]``, ``is_test [n]`` and ``class_names [C]``, see `image_arrays`.
    Everything is read into memory.

    Raises:
        ValueError: if the source is none of these, or does not contain what is expected.
        FileNotFoundError: if there is no such file or folder.
    """
    name = str(source)
    if name.startswith(_PREFIX):
        return tfds(name.removeprefix(_PREFIX))
    if name in FEDERATIONS:
        return federation(name)
    path = Path(source)
    if path.is_dir():
        return image_folder(path)
    if path.suffix == ".npz":
        return _load_npz(path)
    if path.exists():
        raise ValueError(f"{path}: expected a folder of images or an .npz file, got another file")
    raise FileNotFoundError(
        f"{path}: no such file or folder; expected a folder of images, an .npz file, tfds:NAME "
        f"or {', '.join(FEDERATIONS)}"
    )


def _load_npz(path: Path) -> ImageSet:
    arrays = read_npz(path)
    if not {"images", "labels"} <= set(arrays):
        raise ValueError(f"{path}: expected arrays images and labels, got {sorted(arrays)}")
    known = ("images", "labels", "clients", "is_test", "class_names")
    try:
        return image_arrays(**{name: arrays[name] for name in known if name in arrays}, name=path.stem)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
