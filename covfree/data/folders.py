"""Image sets from folders: each image's path gives its class, and perhaps its split and its client."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.core.registries import nearest
from covfree.data.dataset import StrPath
from covfree.data.image_set import ImageSet, decode_image, image_formats

# The part of the data that a folder contains, by the folder's name in lower case.
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
PARTS.update({name: "validation" for name in ("val", "valid", "validation")})
_BY_CLASS = "(?P<class>[^/]+)/"
_BY_SPLIT = "(?P<split>[^/]+)/" + _BY_CLASS


def image_folder(
    path: StrPath, *, pattern: str | None = None, class_names: Sequence[str] | None = None
) -> ImageSet:
    r"""Open a folder of images; each image is read on access.

    Args:
        path: the folder.
        pattern: a regular expression with a group named ``class``, and perhaps ``split`` and ``client``. It
            is matched at the beginning of each image's path below the folder (with slashes), such as
            ``r"(?P<class>[^/]+)/user(?P<client>\d+)_"``. By default the first folder is the class. If there
            are folders ``train`` and ``test`` or ``val``, these are the split, and the next one is the class:
            ``"(?P<split>[^/]+)/(?P<class>[^/]+)/"``.
        class_names: all classes, in the order of their numbers. Machines with different folders must agree on
            this order; a folder need not contain all classes. By default the sorted names that are found.

    Returns:
        The image set, in the order of the sorted paths.

    A split may be called train or training; test or testing; val, valid or validation, in upper or lower
    case. The test split is the test part, and validation images are ignored; without a test split, the
    validation images are the test part. Every class needs a training image, unless ``class_names`` are given.
    If the pattern has a client, every training image needs one; a test image may have none (``""``).

    The image set's ``ignored`` lists files whose extension Pillow cannot read, images that the pattern does
    not match, empty folders, ignored validation folders, and hidden files and folders (with names that start
    with a dot). Links are followed.

    ``read`` decodes an image in full, and turns it upright according to its EXIF orientation, which
    torchvision's ``ImageFolder`` does not do. Like ``ImageFolder`` it drops transparency. An image with more
    than 8 bits per channel is an error.

    The fingerprint is a hash of each image's path, size and modification time; no file is read. It misses a
    change that keeps size and time, and a copy with other times has another fingerprint.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the pattern is wrong or matches no image, a class lacks training images, a client is
            missing, or a folder cannot be listed; the message says which.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    found = scan(root)
    compiled = _compiled(_usual(found) if pattern is None else pattern)
    images = (
        compiled.match(file)
        for file in sorted(found.files)
        if os.path.splitext(file)[1].lower() in image_formats()
    )
    matches = [match for match in images if match is not None]
    if not matches:
        held = sorted([*found.files, *(f"{folder}/" for folder in found.folders)])
        raise ValueError(
            f"{root}: expected images that match {compiled.pattern!r}, found none; the folder holds "
            f"{_few(held) if held else 'nothing'}"
        )
    parts = [_part(root, match) for match in matches]
    # With a test split, ignore the validation images; without one, test on them.
    aside = "validation" if "test" in parts else None
    ends = {
        match.string[: match.end("split")]
        for match, part in zip(matches, parts, strict=True)
        if part == aside
    }
    kept = [match for match, part in zip(matches, parts, strict=True) if part != aside]
    files = tuple(match.string for match in kept)
    is_test = np.array([part != "train" for part in parts if part != aside])
    names, labels = _numbered(root, [match["class"] or "" for match in kept], is_test, class_names)
    clients = None
    if "client" in compiled.groupindex:
        clients = [match["client"] or "" for match in kept]
        for file, client, test in zip(files, clients, is_test, strict=True):
            if not client and not test:
                raise ValueError(f"{root}: expected a client of {file} by pattern, got none")
    left = {*found.files, *_empty(found)} - set(files)
    ignored = [file for file in left if not file.startswith(tuple(ends))]
    identities = tuple(repr((file, *found.files[file])) for file in files)
    digest = hashlib.sha256("".join(identities).encode())
    return ImageSet(
        name=root.resolve().name,
        ids=files,
        labels=labels,
        class_names=names,
        read=partial(read_below, root, files),
        fingerprint=digest.hexdigest(),
        clients=None if clients is None else np.array(clients),
        is_test=is_test if is_test.any() else None,
        ignored=tuple(sorted([*ignored, *found.hidden, *(f"{end}/" for end in ends)])),
        identities=identities,
    )


# A module-level function can be pickled, so that the image set can be sent to another process.
def read_below(root: Path, ids: tuple[str, ...], i: int) -> Any:
    """Read the image whose path below the folder ``root`` is ``ids[i]``."""
    return decode_image(root / ids[i], ids[i])


class Found(NamedTuple):
    """The content of a folder: paths below it, with the size and modification time of each file."""

    files: dict[str, tuple[int, int]]
    folders: list[str]
    hidden: list[str]


def scan(root: Path) -> Found:
    """List all files and folders below a folder; hidden ones are listed separately, and not entered."""
    found = Found({}, [], [])
    # Folders still to be listed, each with the prefix of its files' names. To notice cycles of links, each
    # also has the identities of itself and all folders above.
    todo: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(str(root), "", (_identity(str(root)),))]
    while todo:
        folder, prefix, above = todo.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.name.startswith("."):
                        found.hidden.append(f"{name}/" if entry.is_dir() else name)
                        continue
                    about = _stat(entry, name)
                    if not stat.S_ISDIR(about.st_mode):
                        found.files[name] = about.st_size, about.st_mtime_ns
                        continue
                    identity = _identity(entry.path)
                    if identity in above:
                        raise ValueError(f"{root}: {name} is a link to a folder above it")
                    found.folders.append(name)
                    todo.append((entry.path, f"{name}/", (*above, identity)))
        except OSError as error:
            raise ValueError(f"{folder}: cannot be listed ({error.strerror})") from error
    return found


def _stat(entry: os.DirEntry[str], name: str) -> os.stat_result:
    try:
        name.encode()
        return entry.stat()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r}: expected a file name in UTF-8") from error
    except OSError as error:
        raise ValueError(f"{entry.path}: cannot be read, or is a broken link ({error.strerror})") from error


def _identity(folder: str) -> tuple[int, int]:
    about = os.stat(folder)
    return about.st_dev, about.st_ino


def _usual(found: Found) -> str:
    outermost = {PARTS.get(folder.lower()) for folder in found.folders}
    return _BY_SPLIT if "train" in outermost and outermost & {"test", "validation"} else _BY_CLASS


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern: expected a regular expression, got {pattern!r} ({error})") from error
    groups = set(compiled.groupindex)
    if "class" not in groups or groups - {"class", "client", "split"}:
        raise ValueError(
            "pattern: expected a group (?P<class>...), and perhaps (?P<client>...) and (?P<split>...), got "
            f"{pattern!r}"
        )
    return compiled


def _part(root: Path, match: re.Match[str]) -> str:
    """Return the part that an image belongs to: train, test or validation."""
    split = match.groupdict().get("split", "train") or ""
    if split.lower() not in PARTS:
        raise ValueError(f"{root}: expected splits named train, test or val, got {split!r} in {match.string}")
    return PARTS[split.lower()]


def _empty(found: Found) -> list[str]:
    """List the folders without a file anywhere below them, each with a slash at the end."""
    holding = {str(above) for file in found.files for above in Path(file).parents}
    return [f"{folder}/" for folder in found.folders if folder not in holding]


def _numbered(
    root: Path, classes: list[str], is_test: np.ndarray, class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of all classes, and each image's class number: the index of its class's name.

    ``classes`` has the name of each image's class. Names are sorted, or in the order of ``class_names``.
    """
    names = tuple(sorted(set(classes)) if class_names is None else map(str, class_names))
    number = {name: label for label, name in enumerate(names)}
    if len(number) < len(names):
        raise ValueError(f"class_names: expected each once, got {', '.join(names)}")
    if unknown := sorted(set(classes) - set(names)):
        known = f"{_few([*names])}{nearest(unknown[0], names)}"
        raise ValueError(f"{root}: class {unknown[0]!r} is none of class_names: {known}")
    labels = np.array([number[name] for name in classes], np.int32)
    if class_names is None:
        for label in np.setdiff1d(labels, labels[~is_test]):
            raise ValueError(
                f"{root}: class {names[label]!r} has {(labels == label).sum()} test images, none to train on"
            )
    return names, labels


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
