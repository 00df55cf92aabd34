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
from covfree.data.feature_file import differences, locked, partial_folder, remove_folder, write_file


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
        identities: Sequence[str] = (),
    ) -> None:
        """Open what an earlier writer left in the folder ``<path>.partial``, or start from the beginning.

        Args:
            path: the file, ``.npz``; an existing file stays until the new one is complete.
            key: what the features are computed from, as JSON values. Pieces with another key are not
                continued.
            num_examples: number of all examples.
            num_features: d, the number of features.
            dtype: ``"float16"`` or ``"float32"``, the data type in the file.
            identities: for each example, a string that distinguishes it from others; none if unknown. With
                identities, an earlier writer's pieces are continued even if ``key["images"]`` differs, as
                long as the finished examples are the same: a damaged image may have been removed.

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
        self._identities = identities
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
        skipped, digest = {**self.skipped, **skipped}, self._digest.copy()
        digest.update(_lines(self._identities[self.done : stop]))
        state = {"about": self._about, "done": stop, "skipped": skipped, "kept": digest.hexdigest()}
        with replacing(self._folder / "state.json") as file:
            file.write(json.dumps(state).encode())
        self.done, self.skipped, self._digest = stop, skipped, digest

    def finish(self, arrays: Mapping[str, np.ndarray]) -> Path:
        """Write the file atomically, and remove the folder.

        Args:
            arrays: the file's other arrays by name, of numbers, booleans or strings.

        Returns:
            The path of the file.
        """
        shape = (self.done - len(self.skipped), self._num_features)

        def write_features(member: Any) -> None:
            try:
                features = np.memmap(self._data, self._dtype, "r", shape=shape)
            except ValueError as error:
                raise OSError(f"{self._folder}: is damaged; remove it to start anew") from error
            np.lib.format.write_array(member, features)

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
        begun = {"about": self._about, "done": 0, "skipped": {}}
        state = json.loads(path.read_bytes()) if path.exists() else begun
        self.done = state["done"]
        self.skipped = {int(example): reason for example, reason in state["skipped"].items()}
        # A hash of the finished examples' identities.
        self._digest = hashlib.sha256(_lines(self._identities[: self.done]))
        if differing := differences(state["about"], self._about):
            self._check_finished(state, differing)
        (self._folder / "features").touch()
        self._data = (self._folder / "features").open("r+b")

    def _check_finished(self, state: Mapping[str, Any], differing: list[str]) -> None:
        """Raise a ValueError unless only unfinished images differ from those of the writer of ``state``."""
        told, other = "", ", or write to another file"
        of_images = ("key.images: ", "num_examples: ")
        if self._identities and all(each.startswith(of_images) for each in differing):
            if state.get("kept") == self._digest.hexdigest():
                return
            told, other = ": names, sizes or modification times of finished images changed", ""
        raise ValueError(
            f"{self._folder}: was begun with something else ({'; '.join(differing)}){told}; remove it to "
            f"start anew{other}"
        )


def _lines(identities: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in identities).encode()
