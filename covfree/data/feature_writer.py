"""Writing features in a process that may be killed at any moment.

Until all features are computed, a folder next to the feature file contains their bytes, and a small state
file that says how many examples are finished. The state file is replaced atomically after each `append`, so
that a later process can continue.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.atomic import replacing
from covfree.data.dataset import StrPath
from covfree.data.feature_file import (
    differences,
    locked,
    partial_folder,
    remove_folder,
    write_file,
)

# How many bytes are copied at a time.
_BLOCK = 2**22


class FeatureWriter:
    """Writes a feature file piece by piece; continues where an earlier writer stopped or was killed.

    Attributes:
        done: the number of examples whose features, or reasons for having none, are on disk.
        skipped: the reason for each finished example without features, by its index.

    >>> import numpy as np, tempfile
    >>> from covfree.data import read_feature_file
    >>> key, sizes = {"weights": "ab12"}, dict(num_examples=3, num_features=2, dtype="float16")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with FeatureWriter(f"{folder}/a.npz", key, **sizes) as writer:
    ...         writer.append(np.ones((1, 2)), {1: "cut short"})
    ...     with FeatureWriter(f"{folder}/a.npz", key, **sizes) as writer:
    ...         print(writer.done, writer.skipped)
    ...         writer.append(np.zeros((1, 2)), {})
    ...         path = writer.finish({"labels": np.array([0, 4])})
    ...     read_feature_file(path).features.tolist()
    2 {1: 'cut short'}
    [[1.0, 1.0], [0.0, 0.0]]
    """

    done: int
    skipped: dict[int, str]

    def __init__(
        self,
        path: StrPath,
        key: Mapping[str, Any],
        *,
        num_examples: int,
        num_features: int,
        dtype: str,
        identities: Sequence[str] | None = None,
    ) -> None:
        """Open what an earlier writer left in the folder ``<path>.partial``, or start from the beginning.

        Args:
            path: the file, ``.npz``; an existing file stays until the new one is complete.
            key: what the features are computed from, as JSON values. Pieces with another key are not
                continued.
            num_examples: number of all examples.
            num_features: d, the number of features.
            dtype: ``"float16"`` or ``"float32"``, the data type in the file.
            identities: for each example, a string that distinguishes it from others. With identities, an
                earlier writer's pieces are continued even if ``key["images"]`` differs, as long as the
                examples with features are the same: damaged images may have been removed.

        Raises:
            ValueError: if the path does not end in ``.npz``, or the folder holds pieces of another key, size
                or dtype.
            BlockingIOError: if another process is writing the file.
        """
        self._path = Path(path)
        if self._path.suffix != ".npz":
            raise ValueError(f"path: expected the path of an .npz file, got {str(path)!r}")
        self._num_features, self._dtype = num_features, np.dtype(dtype)
        about = dict(key=key, num_examples=num_examples, num_features=num_features, dtype=dtype)
        self._about, self._folder = json.loads(json.dumps(about)), partial_folder(self._path)
        self._identities, self._hashed = identities, (0, hashlib.sha256())
        self._lock = locked(self._folder)
        try:
            self._resume()
        except BaseException:
            self._lock.close()
            raise

    def append(self, features: np.ndarray, skipped: Mapping[int, str]) -> None:
        """Write the next features to disk; after this call, they survive a kill of the process.

        Args:
            features: [rows, d], the features of the next ``rows + len(skipped)`` examples, without those in
                ``skipped``.
            skipped: the reason for each example without features, by its index.
        """
        stop = self.done + len(features) + len(skipped)
        with np.errstate(over="ignore"):
            rows = np.asarray(features, self._dtype)
        bad = ~np.isfinite(rows)
        if bad.any():
            row, place = np.argwhere(bad)[0].tolist()
            example = [example for example in range(self.done, stop) if example not in skipped][row]
            raise ValueError(
                f"features: example {example} has {features[row, place]} at position {place}; "
                f"expected finite numbers that {self._dtype} can hold"
            )
        # Seek: an earlier call may have failed half-way, e.g. on a full disk.
        self._data.seek(self._size)
        self._data.write(rows.tobytes())
        self._data.flush()
        os.fsync(self._data.fileno())
        self._save(stop, {**self.skipped, **skipped})

    def finish(self, arrays: Mapping[str, np.ndarray]) -> Path:
        """Write the file atomically, and remove the folder.

        Args:
            arrays: the file's other arrays by name, of numbers, booleans or strings.

        Returns:
            The path of the file.
        """
        shape = (self.done - len(self.skipped), self._num_features)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}

        def write_features(member: Any) -> None:
            np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
            self._data.seek(0)
            left = self._size
            while left:
                if not (block := self._data.read(min(_BLOCK, left))):
                    raise OSError(f"{self._folder}: is damaged; remove it to start anew")
                member.write(block)
                left -= len(block)

        write_file(self._path, self._about["key"], arrays, write_features)
        remove_folder(self._folder)
        self.close()
        return self._path

    def close(self) -> None:
        """Release the lock, so that others can write the file; what was appended stays."""
        self._data.close()
        self._lock.close()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _size(self) -> int:
        """The number of bytes of the finished examples' features."""
        return (self.done - len(self.skipped)) * self._num_features * self._dtype.itemsize

    def _resume(self) -> None:
        """Continue an earlier writer's work if there is any, or start from the beginning."""
        path = self._folder / "state.json"
        state = json.loads(path.read_bytes()) if path.exists() else None
        differing = [] if state is None else differences(state["about"], self._about)
        if state is None:
            found = 0, {}
        elif differing:
            found = self._finished(state, differing)
        else:
            found = state["done"], {int(example): reason for example, reason in state["skipped"].items()}
        (self._folder / "features").touch()
        self._data = (self._folder / "features").open("r+b")
        self.done, self.skipped = found
        if state is None or differing:
            self._save(self.done, self.skipped)

    def _finished(self, state: Mapping[str, Any], differing: list[str]) -> tuple[int, dict[int, str]]:
        """Return `done` and `skipped` of an earlier writer of other images, by this writer's indices.

        A ValueError is raised if it wrote something else: if ``differing``, what is not as in its ``state``,
        is not only the list of images, or if its examples with features are not the first ones here.
        """
        told, other, found = "", ", or write to another file", None
        of_images = ("key.images: ", "num_examples: ")
        if self._identities is not None and all(each.startswith(of_images) for each in differing):
            told, other = ": names, sizes or modification times of finished images changed", ""
            names, skipped = state.get("without", {}), state["skipped"]
            without = {names.get(example): reason for example, reason in skipped.items()}
            found = recognised(self._identities, without, state["done"] - len(skipped), state.get("kept"))
        if found is None:
            raise ValueError(
                f"{self._folder}: was begun with something else ({'; '.join(differing)}){told}; remove it to "
                f"start anew{other}"
            )
        return found

    def _kept(self, identities: Sequence[str], done: int, skipped: Mapping[int, str]) -> str:
        """Return `identity_of` the first ``done`` examples, a hash of the identities of those not skipped.

        Only the examples since the last call are hashed, and added to the earlier hash.
        """
        before, digest = self._hashed
        self._hashed = done, _hashed(digest, identities, skipped, before, done)
        return digest.hexdigest()

    def _save(self, done: int, skipped: dict[int, str]) -> None:
        """Replace the state file: it says that the first ``done`` examples are finished."""
        with replacing(self._folder / "state.json") as file:
            state = {"about": self._about, "done": done, "skipped": skipped}
            if self._identities is not None:
                # `recognised` needs these entries to recognise the examples after damaged ones were removed.
                state |= {"kept": self._kept(self._identities, done, skipped)}
                state |= {"without": {example: self._identities[example] for example in skipped}}
            file.write(json.dumps(state).encode())
        self.done, self.skipped = done, dict(sorted(skipped.items()))


def recognised(
    identities: Sequence[str], without: Mapping[str, str], count: int, kept: str | None
) -> tuple[int, dict[int, str]] | None:
    """Find out how many examples were finished earlier, though damaged ones may have been removed since.

    Args:
        identities: for each example of today, a string that distinguishes it from others.
        without: the reason for each finished example without features, by its identity.
        count: the number of finished examples with features.
        kept: their `identity_of`.

    Returns:
        The number of today's examples that are finished, and the reason for each of them without features, by
        its index today. None if the examples with features are not the first ones of today.
    """
    skipped, done = {}, 0
    for each in identities:
        if each in without:
            skipped[done] = without[each]
        elif done - len(skipped) == count:
            break
        done += 1
    return (done, skipped) if identity_of(identities[:done], skipped) == kept else None


def identity_of(identities: Sequence[str], skipped: Mapping[int, str]) -> str:
    """Hash the identities of all examples except the skipped ones."""
    return _hashed(hashlib.sha256(), identities, skipped, 0, len(identities)).hexdigest()


def _hashed(digest: Any, identities: Sequence[str], skipped: Mapping[int, str], start: int, stop: int) -> Any:
    for index in range(start, stop):
        if index not in skipped:
            digest.update(f"{identities[index]}\n".encode())
    return digest
