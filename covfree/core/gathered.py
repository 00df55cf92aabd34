"""Views of rows of a large array: rows are read only when they are accessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, TypeGuard

import numpy as np

# Features of this many bytes or more are not copied as a whole, but processed part by part.
LARGE = 2**30
# Bytes that are processed at a time.
_PART = 2**26


class Gathered:
    """Some rows of an array, without a copy: rows of a memory map stay in the file.

    It is indexed along its rows like an array, and indexing returns arrays in memory.
    ``np.asarray(gathered)`` reads all rows.

    Attributes:
        shape: [rows, …].
        dtype: the array's data type.
        nbytes: the bytes that all rows would take in memory.

    >>> import numpy as np
    >>> gathered = Gathered(np.eye(3), np.array([2, 0]))
    >>> gathered[0].tolist(), gathered[:2].tolist()
    ([0.0, 0.0, 1.0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Store the array and the indices of the rows; no row is read."""
        self._array, self._rows = array, rows
        self.shape = (len(rows), *array.shape[1:])
        self.dtype, self.ndim = array.dtype, array.ndim
        self.nbytes = len(rows) * array[:1].nbytes

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __getitem__(self, key: Any) -> np.ndarray:
        """Read rows by an index, a slice, or an array of indices or booleans; a pair also selects columns."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        return self._array[self._rows[rows]][(..., *columns) if columns else ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all rows into memory."""
        return self._array[self._rows].astype(dtype or self.dtype, copy=False)


Features: TypeAlias = np.ndarray | Gathered


def part_of(array: np.ndarray, kept: np.ndarray) -> Any:
    """Select the rows that a mask keeps: of a small array as a copy, of a large array as a `Gathered` view.

    If the mask keeps all rows of a large array, return the array itself.
    """
    if array.nbytes < LARGE:
        return array[kept]
    return array if kept.all() else Gathered(array, np.flatnonzero(kept))


def is_large(features: Any) -> TypeGuard[Features]:
    """Return whether features are on the host and so large that they are processed part by part."""
    return isinstance(features, Gathered) or (isinstance(features, np.ndarray) and features.nbytes >= LARGE)


def blocks(features: Any) -> Iterator[slice]:
    """Yield slices that together cover all rows of ``features``, of about 64 MiB each."""
    length = len(features)
    size = max(1, _PART // max(1, features.nbytes // max(length, 1)))
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
