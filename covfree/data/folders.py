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

from covfree.data.dataset import StrPath
from covfree.data.image_set import ImageSet, decode_image, image_formats
from covfree.data.labelled import PARTS, Example, few, labelled

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
            f"{few(held) if held else 'nothing'}"
        )
    groups = compiled.groupindex
    examples = [
        Example(
            match.string,
            match["class"] or "",
            (match["client"] or "") if "client" in groups else None,
            (match["split"] or "") if "split" in groups else "train",
        )
        for match in matches
    ]
    kept, fields = labelled(root, "images", examples, class_names)
    aside = [matches[place] for place in set(range(len(matches))) - set(kept)]
    ends = {match.string[: match.end("split")] for match in aside}
    left = {*found.files, *_empty(found)} - set(fields["ids"])
    ignored = [file for file in left if not file.startswith(tuple(ends))]
    ignored = sorted([*ignored, *found.hidden, *(f"{end}/" for end in ends)])
    return of_files(root, root.resolve().name, found, fields, tuple(ignored))


def of_files(
    root: Path, name: str, found: FolderContent, fields: dict[str, Any], ignored: tuple[str, ...] = ()
) -> ImageSet:
    """Make an image set of files that were ``found`` below ``root``; ``fields`` come from `labelled`."""
    identities = tuple(repr((file, *found.files[file])) for file in fields["ids"])
    return ImageSet(
        name=name,
        read=partial(_read, root, fields["ids"]),
        fingerprint=hashlib.sha256("".join(identities).encode()).hexdigest(),
        ignored=ignored,
        identities=identities,
        **fields,
    )


# A module-level function can be pickled, so that the image set can be sent to another process.
def _read(root: Path, ids: tuple[str, ...], i: int) -> Any:
    return decode_image(root / ids[i], ids[i])


class FolderContent(NamedTuple):
    """The content of a folder: paths below it, with the size and modification time of each file."""

    files: dict[str, tuple[int, int]]
    folders: list[str]
    hidden: list[str]


def scan(root: Path) -> FolderContent:
    """List all files and folders below a folder; hidden ones are listed separately, and not entered."""
    found = FolderContent({}, [], [])
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


def _usual(found: FolderContent) -> str:
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


def _empty(found: FolderContent) -> list[str]:
    """List the folders without a file anywhere below them, each with a slash at the end."""
    holding = {str(above) for file in found.files for above in Path(file).parents}
    return [f"{folder}/" for folder in found.folders if folder not in holding]
