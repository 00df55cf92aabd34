"""Features too large to be copied: rows of an array that stay where they are until they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, TypeGuard

import numpy as np

# Bytes of features from which on they are not copied as a whole, but gone through part by part.
LARGE = 2**30
# Bytes that are gone through at a time.
_PART = 2**26


class Gathered:
    """Some rows of an array, which is not copied: of a memory map they stay in the file.

    It is indexed as an array is, along its rows; what that gives is an array in memory.
    ``np.asarray(gathered)`` reads all of it.

    Attributes:
        shape: [rows, …].
        dtype: the array's.
        nbytes: what all of it would take in memory.

    >>> import numpy as np
    >>> gathered = Gathered(np.eye(3), np.array([2, 0]))
    >>> gathered[0].tolist(), gathered[:2].tolist()
    ([0.0, 0.0, 1.0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Name the rows."""
        self._array, self._rows = array, rows
        self.shape = (len(rows), *array.shape[1:])
        self.dtype, self.ndim = array.dtype, array.ndim
        self.nbytes = len(rows) * array[:1].nbytes

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __getitem__(self, key: Any) -> np.ndarray:
        """Rows by an index, a slice, or an array of indices or booleans; a pair also takes columns."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        return self._array[self._rows[rows]][(..., *columns) if columns else ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, in memory."""
        return self._array[self._rows].astype(dtype or self.dtype, copy=False)


Features: TypeAlias = np.ndarray | Gathered


def part_of(array: np.ndarray, kept: np.ndarray) -> Any:
    """The rows that a mask keeps: a copy, or a `Gathered` view if they are large."""
    if array.nbytes < LARGE:
        return array[kept]
    return array if kept.all() else Gathered(array, np.flatnonzero(kept))


def is_large(features: Any) -> TypeGuard[Features]:
    """Whether features lie on the host and are to be gone through part by part."""
    return isinstance(features, Gathered) or (isinstance(features, np.ndarray) and features.nbytes >= LARGE)


def blocks(features: Any) -> Iterator[slice]:
    """Stretches of the rows, each of some 64 MiB."""
    length = len(features)
    size = max(1, _PART // max(1, features.nbytes // max(length, 1)))
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
