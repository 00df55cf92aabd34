"""Pad arrays to few sizes, so that functions compiled for a size are reused; read large ones in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import is_traced

# Sizes are powers of two from _FEWEST to _LONG, then eight sizes per doubling up to _MOST. Larger arrays are
# not padded: compared with the work on them, compilation costs little and a copy much.
_FEWEST, _LONG, _MOST = 32, 4096, 2**16
# Features of this many bytes or more are not copied as a whole, but processed part by part.
LARGE = 2**30
# Bytes that are processed at a time.
_PART = 2**26


def few_sizes(rows: int) -> int:
    """Round a number of rows up to one of few sizes (32 to 65,536); return larger numbers unchanged.

    >>> [few_sizes(rows) for rows in (0, 5, 33, 100, 4097, 70_001)]
    [32, 32, 64, 128, 4608, 70001]
    """
    if rows > _MOST:
        return rows
    octave = 1 << max(rows - 1, 0).bit_length()
    step = octave if rows <= _LONG else octave // 16
    return max(_FEWEST, -(-rows // step) * step)


def blocks_of_groups(group: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut items into blocks of at most ``most`` items; all items of a block are of one group.

    Item i is in group ``group[i]``; an item with a group below 0 is padding, and is in no block.

    Returns:
        Indices [blocks, size] of items, −1 for padding; and the group of each block.

    >>> places, of = blocks_of_groups(np.array([1, 0, 1, -1, 1]), 2)
    >>> places.tolist(), of.tolist()
    ([[1, -1], [0, 2], [4, -1]], [0, 1, 1])
    """
    order = np.argsort(group, kind="stable")
    order = order[group[order] >= 0]
    own = group[order]
    counts = np.bincount(own, minlength=1)
    size = min(most, 1 << max(int(counts.max()) - 1, 0).bit_length())
    blocks = -(-counts // size)
    place = np.arange(len(order)) - (np.cumsum(counts) - counts)[own]
    places = np.full((blocks.sum(), size), -1)
    places[(np.cumsum(blocks) - blocks)[own] + place // size, place % size] = order
    return places, np.repeat(np.arange(len(counts)), blocks)


# Longer tables have eight sizes per doubling, so padding adds less than an eighth; see `padded_size`.
_LONG_TABLE = 3584


def padded_size(rows: int) -> int:
    """Round a number of rows up, so that federations of similar size share compiled functions.

    Use it for the rows of all clients together, where much padding would cost much work. `few_sizes`, for
    the examples of one client, has half as many sizes up to 4096, and pads more.

    There are two sizes per doubling (224, 320, 448, …) up to 3584, and eight above. The gaps are wide because
    a partition with another seed changes the number of client-class pairs by up to a tenth. No size is a
    multiple of 25, so counts just below and just above a round number share a size.
    """
    if rows > _LONG_TABLE:
        step = 1 << (rows - 1).bit_length() >> 4
        return -(-rows // step) * step
    if rows <= 5:
        return max(1, rows)
    unit = 1 << (rows - 1).bit_length() >> 3
    return next(size * unit for size in (5, 7, 10) if rows <= size * unit)


def as_arrays(arguments: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of a function, with those in ``names`` converted to arrays.

    Lists, PyTorch tensors, pandas and Arrow columns, and whatever NumPy or DLPack reads become arrays. An
    Arrow or pandas column with a list for each example becomes a matrix.
    """
    found = {name: _as_array(name, arguments[name]) for name in names if name in arguments}
    return dict(arguments) | found


def _as_array(name: str, values: Any) -> Any:
    if values is None or isinstance(values, jax.Array | np.ndarray | np.generic | Gathered):
        return values
    # PyTorch refuses to convert a tensor that requires gradients.
    values = values.detach() if hasattr(values, "detach") else values
    try:
        array = np.asarray(values)
        return np.asarray(array.tolist()) if array.dtype == object else array
    except ValueError:
        record = isinstance(values, tuple) and type(values) is not tuple
        kind = type(values).__name__ if record else "a list of parts of unequal lengths"
        raise ValueError(f"{name}: expected an array, got {kind}") from None
    except (TypeError, RuntimeError):
        # NumPy knows neither bfloat16 nor devices; DLPack knows both.
        if not hasattr(values, "__dlpack__"):
            raise
        return jnp.from_dlpack(values)


def pad_rows(arguments: dict[str, Any], fills: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with some arrays padded to `few_sizes` rows, so that functions compile for few sizes.

    Args:
        arguments: the arguments, by name.
        fills: the arrays to pad, by name, and the value with which each is padded. They have equally many
            rows.

    Returns:
        The arguments; all unchanged if an array named in ``fills`` is traced or on several devices.
    """
    # Arguments that are None or missing are skipped.
    arrays = {name: arguments[name] for name in fills if arguments.get(name) is not None}
    if is_traced(*arrays.values()) or any(map(_on_several_devices, arrays.values())):
        return arguments
    size = few_sizes(next(iter(arrays.values())).shape[0])
    return arguments | {name: _padded(array, size, fills[name]) for name, array in arrays.items()}


def _on_several_devices(array: Any) -> bool:
    return isinstance(array, jax.Array) and len(array.sharding.device_set) > 1


def clip_to_int32(integers: Any) -> Any:
    """Convert integers to int32; those beyond its range become the nearest int32, where jax truncates."""
    limits = np.iinfo(np.int32)
    least = max(limits.min, np.iinfo(integers.dtype).min)
    return integers.clip(least, limits.max).astype(np.int32)


def _padded(array: Any, size: int, fill: Any) -> Any:
    length = array.shape[0]
    if length == size:
        return array
    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    if fill < 0 and (array.dtype.kind == "u" or kind != array.dtype):
        array = clip_to_int32(array)
    if isinstance(array, jax.Array):
        if next(iter(array.devices())).platform != "cpu":
            return jnp.pad(array, [(0, size - length)] + [(0, 0)] * (array.ndim - 1), constant_values=fill)
        # Pad in NumPy, which compiles nothing.
        padded = _padded(np.asarray(array), size, fill)
        return jax.device_put(padded, array.sharding) if array.committed else padded
    padded = np.empty((size, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
    # Values that overflow a narrower type become infinite, as in jax.
    with np.errstate(over="ignore"):
        padded[:length] = array
    padded[length:] = fill
    return padded


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
