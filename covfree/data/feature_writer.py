"""Features that are written by a job which may be killed at any moment.

Until all of them are there, a folder beside the file holds their bytes, and a small file that says how many
of these count. It is replaced as a whole after each piece, so the writing goes on however it ended.
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
from covfree.core.checks import check_choice, check_positive
from covfree.data.dataset import StrPath
from covfree.data.feature_file import (
    DTYPES,
    differences,
    locked,
    partial_folder,
    remove_folder,
    write_file,
)

# Bytes that are copied at a time.
_BLOCK = 2**22


class FeatureWriter:
    """Writes a feature file piece by piece, and goes on where an earlier writer stopped, however it ended.

    Attributes:
        done: examples whose features, or the reason why they have none, are on disk.
        skipped: of those, the examples without features, and why.

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
        """Open what an earlier writer left in the folder ``<path>.partial``, or start anew.

        Args:
            path: the file, ``.npz``; if it is there it stays until the new one is complete.
            key: what the features are computed from, in what JSON can hold. Nothing is added to pieces of
                another key.
            num_examples: examples in all.
            num_features: d.
            dtype: ``"float16"`` or ``"float32"``, of the file.
            identities: what tells each example from others. If it is given, an earlier writer's pieces count
                where ``key["images"]`` differs but the examples that are done do not: a damaged image may
                have been taken away.

        Raises:
            ValueError: if an argument is wrong, or the folder is of another key.
            BlockingIOError: if another process is writing the file.
        """
        self._path = Path(path)
        if self._path.suffix != ".npz":
            raise ValueError(f"path: expected the path of an .npz file, got {str(path)!r}")
        check_positive("num_examples", num_examples)
        check_positive("num_features", num_features)
        check_choice("dtype", dtype, DTYPES)
        self._num_examples, self._num_features, self._dtype = num_examples, num_features, np.dtype(dtype)
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
        """Write what comes next; then a kill does not lose it.

        Args:
            features: [rows, d], of those of the next ``rows + len(skipped)`` examples that are not in
                ``skipped``.
            skipped: why an example has no features, by its index.

        Raises:
            ValueError: if the shape or an index is wrong, or a number is not finite or above what the dtype
                holds; it names the example. Nothing is written then.
        """
        if features.ndim != 2 or features.shape[1] != self._num_features:
            raise ValueError(
                f"features: expected shape [rows, {self._num_features}], got {list(features.shape)}"
            )
        stop = self.done + len(features) + len(skipped)
        if stop > self._num_examples:
            raise ValueError(f"features: expected {self._num_examples} examples in all, got {stop}")
        if not all(self.done <= example < stop for example in skipped):
            raise ValueError(
                f"skipped: expected examples from {self.done} to {stop - 1}, got {sorted(skipped)}"
            )
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
        # Places are sought, as an earlier call may have failed half-way, e.g. on a full disk.
        self._data.seek(self._size)
        self._data.write(rows.tobytes())
        self._data.flush()
        os.fsync(self._data.fileno())
        self._save(stop, {**self.skipped, **skipped})

    def finish(self, arrays: Mapping[str, np.ndarray]) -> Path:
        """Write the file, as a whole or not at all, and remove the folder.

        Args:
            arrays: what else the file holds, by name: numbers, booleans or strings.

        Returns:
            The file.

        Raises:
            ValueError: if examples are missing, or an array holds objects or is called ``features`` or
                ``key``.
            OSError: if the file cannot be written.
        """
        if self.done != self._num_examples:
            raise ValueError(f"examples: expected all {self._num_examples} to be done, got {self.done}")
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
        """Let others write the file; what was appended stays."""
        self._data.close()
        self._lock.close()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _size(self) -> int:
        """Bytes of features that count."""
        return (self.done - len(self.skipped)) * self._num_features * self._dtype.itemsize

    def _resume(self) -> None:
        """Take what an earlier writer left, or start anew."""
        path = self._folder / "state.json"
        state = json.loads(path.read_bytes()) if path.exists() else None
        differing = None if state is None else differences(state["about"], self._about)
        if state is not None and differing and not self._same_so_far(state):
            raise ValueError(
                f"{self._folder}: was begun with something else ({'; '.join(differing)}); "
                "remove it to start anew, or write to another file"
            )
        (self._folder / "features").touch()
        self._data = (self._folder / "features").open("r+b")
        self.done, self.skipped = 0, {}
        if state is None:
            self._save(0, {})
        else:
            self.done = state["done"]
            self.skipped = {int(example): reason for example, reason in state["skipped"].items()}

    def _same_so_far(self, state: Mapping[str, Any]) -> bool:
        """Whether what is done is of the same examples and made the same way, though others are not."""
        done, about = state["done"], state["about"]
        if self._identities is None or state.get("prefix") is None or len(self._identities) < done:
            return False
        same = [
            {**each, "num_examples": 0, "key": {**each["key"], "images": ""}} for each in (about, self._about)
        ]
        return same[0] == same[1] and self._prefix(done) == state["prefix"]

    def _prefix(self, done: int) -> str | None:
        """Tells the first examples from others; None if nobody says what tells one."""
        if self._identities is None:
            return None
        before, digest = self._hashed
        for each in self._identities[before:done]:
            digest.update(f"{each}\n".encode())
        self._hashed = done, digest
        return digest.hexdigest()

    def _save(self, done: int, skipped: dict[int, str]) -> None:
        """Count what is written."""
        with replacing(self._folder / "state.json") as file:
            state = {"about": self._about, "done": done, "skipped": skipped, "prefix": self._prefix(done)}
            file.write(json.dumps(state).encode())
        self.done, self.skipped = done, dict(sorted(skipped.items()))
