"""Feature files: uncompressed ``.npz``, so that the features in them can be memory-mapped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zipfile import ZipFile, ZipInfo

import numpy as np

from covfree.core.array_file import read_npz
from covfree.core.atomic import lock, remove_abandoned, replacing
from covfree.data.dataset import StrPath

DTYPES = ("float16", "float32")


class FeatureFile(NamedTuple):
    """The content of a finished feature file.

    Attributes:
        features: [n, d] float16 or float32, memory-mapped, read-only.
        arrays: all other arrays by name, e.g. ``labels`` and ``ids``.
        key: what the features were computed from.
    """

    features: np.ndarray
    arrays: dict[str, np.ndarray]
    key: dict[str, Any]


def read_feature_file(path: StrPath) -> FeatureFile:
    """Read a finished feature file and verify its checksums; the features are memory-mapped.

    Raises:
        ValueError: if the file is cut short, was altered, or no `FeatureWriter` wrote it; the error names the
            path.
        FileNotFoundError: if there is no such file.
    """
    arrays = read_npz(Path(path))
    expected = f"{path}: expected features [n, d] and the key they were computed from"
    if not {"features", "key"} <= set(arrays):
        raise ValueError(f"{expected}, got arrays {sorted(arrays)}")
    features, key = arrays.pop("features"), arrays.pop("key")
    if features.ndim != 2 or features.dtype not in DTYPES or key.ndim or key.dtype.kind != "U":
        raise ValueError(
            f"{expected}, got {features.dtype}{list(features.shape)} and {key.dtype}{list(key.shape)}"
        )
    try:
        parsed = json.loads(key.item())
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"{expected}, in JSON, got {key.item()!r}")
    return FeatureFile(features, arrays, parsed)


def rewrite(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Replace all arrays of a finished file except the features and their key, atomically.

    Raises:
        ValueError: if `read_feature_file` refuses the file.
        BlockingIOError: if another process replaces the file meanwhile.
    """

    def check() -> None:
        now = path.stat()
        if (now.st_ino, now.st_mtime_ns) != (begun.st_ino, begun.st_mtime_ns):
            raise BlockingIOError(f"{path}: another process replaced it meanwhile; start again")

    begun = path.stat()
    key = read_feature_file(path).key
    with ZipFile(path) as before, before.open("features.npy") as features:
        write_file(path, key, arrays, lambda member: shutil.copyfileobj(features, member), check)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """List the entries in which two nested dictionaries differ; empty if there are none.

    >>> differences({"crop": {"size": 224}, "seed": 0}, {"crop": {"size": 256}, "seed": 0})
    ['crop.size: 224 there, 256 here']
    """
    there, here = flat(theirs), flat(ours)
    shown = {
        name: [repr(each[name]) if name in each else "nothing" for each in (there, here)]
        for name in {**here, **there}
    }
    return [f"{name}: {a} there, {b} here" for name, (a, b) in shown.items() if a != b]


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of nested dictionaries by their paths, such as ``crop.size``, as JSON values."""
    # In JSON, tuples become lists.
    return dict(_entries(json.loads(json.dumps(settings))))


def _entries(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _entries(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def locked(folder: Path) -> BinaryIO:
    """Make the folder, and lock it until the returned file is closed or the process ends.

    Raises:
        BlockingIOError: if another process holds the lock.
    """
    busy = BlockingIOError(f"{folder}: another process is writing there; wait until it has ended")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = (folder / "lock").open("a+b")
    except FileNotFoundError:
        # Another process has just finished and removed the folder.
        raise busy from None
    # A lock on a removed file (one without links) excludes nobody: the next process makes a new file and
    # locks that.
    if not lock(file) or os.fstat(file.fileno()).st_nlink == 0:
        file.close()
        raise busy
    return file


def write_file(
    path: Path,
    key: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    write_features: Callable[[Any], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a feature file, an ``.npz`` archive with ``features``, ``arrays`` and ``key``, atomically.

    ``write_features`` gets the archive's open member ``features.npy``, and writes the features to it;
    ``check`` is that of `replacing`.
    """
    members = {"features": write_features}
    for name, array in {**arrays, "key": np.array(json.dumps(key))}.items():
        members[name] = partial(np.lib.format.write_array, array=array, allow_pickle=False)
    remove_abandoned(path.parent)
    with replacing(path, check) as stream, ZipFile(stream, "w") as archive:
        for name, write in members.items():
            # `ZipInfo` has a constant time stamp by default, so that equal features give equal files.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                write(member)
