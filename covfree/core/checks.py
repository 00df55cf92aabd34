"""Check arguments; errors name the argument, and for wrong features and labels the client and the row."""

from __future__ import annotations

import math
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.padding import Gathered, as_arrays, blocks, is_large
from covfree.core.types import Rows, accumulation_dtype, is_traced

# Folders of installed packages and of Python itself.
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
_INT32_MAX = np.iinfo(np.int32).max
# Kinds of data types, as abstract types of jax.numpy: np.floating does not include bfloat16.
_KINDS = {
    "floats": (jnp.floating,),
    "integers": (jnp.integer,),
    "numbers": (jnp.floating, jnp.integer),
    "booleans": (jnp.bool_,),
}
# The kinds of the columns of `Rows`.
_COLUMNS = {
    "mean": "floats",
    "count": "numbers",
    "label": "integers",
    "client": "integers",
    "covariance": "floats",
    "sketch": "booleans",
}
# Labels are taken for identifiers if the largest label plus 1 exceeds _MANY_CLASSES, and also _GAPS times the
# number of distinct labels.
_MANY_CLASSES, _GAPS = 2**15, 16
# The number of rows that are read first: if one of their entries is large enough, not all entries underflow.
_FEW = 64


def check(features: Any, labels: Any, clients: Any = None, *, num_classes: int | None = None) -> None:
    """Check the features, labels and clients of a federation's examples; raise an error if one is invalid.

    An error is raised for arrays of unequal length, NaN or infinite features, features so small that all
    underflow to 0, and labels that are too large. Values are checked in the data type in which jax computes:
    without x64, 1e300 is infinite. Traced arrays have no values, so only their shapes and data types are
    checked. Features on a device are copied to the host only if something is wrong.

    Args:
        features: [examples, dim], floating point.
        labels: [examples], integers below ``num_classes`` and 2³¹. A label below 0 marks padding, whose
            features may be anything.
        clients: [examples], integers of any size; below 0 is padding. None if there are no clients.
        num_classes: C, the number of classes; None allows any.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or a value is wrong; the message names the argument and, for a wrong label or
            a feature that is not finite, the row and the client.

    >>> import numpy as np
    >>> check(np.array([[1.0], [np.nan]]), np.array([0, 1]), np.array([3, 4]))
    Traceback (most recent call last):
        ...
    ValueError: features: row 1 of client 4 (class 1) holds nan at position 0; expected finite numbers
    """
    given = {"features": features, "labels": labels, "clients": clients}
    features, labels, clients = as_arrays(given, given).values()
    check_example_structure(features, labels, clients)
    if is_traced(features, labels, clients):
        return
    most = _INT32_MAX if num_classes is None else min(num_classes - 1, _INT32_MAX)
    # Check features on the device where they are stored; look for the bad row only on failure.
    if isinstance(features, jax.Array) and _on_device(features, labels, clients, most):
        return
    labels = np.asarray(labels)
    owners = np.zeros_like(labels) if clients is None else np.asarray(clients)

    def place(row: int) -> str:
        return f"row {row}" if clients is None else f"row {row} of client {owners[row]}"

    if (labels > most).any():
        row = int(np.argmax(labels > most))
        expected = "2**31" if most == _INT32_MAX else f"num_classes = {num_classes}"
        raise ValueError(
            f"labels: {place(row)} has label {labels[row]}; expected labels below {expected} "
            "(below 0 is padding)"
        )
    position = first_non_finite(features, (labels >= 0) & (owners >= 0))
    if position is not None:
        row, column = position
        value = np.asarray(features[row])[column]
        raise ValueError(
            f"features: {place(row)} (class {labels[row]}) holds {value} at position {column}; "
            f"expected {finite_numbers(value, _dtype(features))}"
        )
    # If a few rows do not rule out underflow, read all.
    if np.abs(np.asarray(features[:_FEW])).max(initial=0) >= _least(features):
        return
    parts = blocks(features) if is_large(features) else [slice(None)]
    largest = max(float(np.abs(np.asarray(features[part])).max(initial=0)) for part in parts)
    if 0 < largest < _least(features):
        raise ValueError(
            f"features: expected numbers of at least {_least(features):.0e}, as smaller ones underflow to 0, "
            f"got {largest:.0e} as the largest; multiply all by one number, the same at all clients"
        )


def num_classes_of(labels: Any) -> int:
    """Return the largest label plus 1; 0 without labels.

    Raises:
        ValueError: if wide gaps between labels suggest that they are identifiers, not class numbers.
    """
    number = int(labels.max()) + 1 if np.size(labels) else 0
    if number > _MANY_CLASSES:
        known = np.unique(np.asarray(labels))
        known = known[known >= 0]
        if number > _GAPS * len(known):
            raise ValueError(
                f"labels: expected classes numbered from 0 without large gaps, got {number - 1} as the "
                f"largest of {len(known)} labels; number them anew: np.unique(labels, return_inverse=True)[1]"
            )
    return max(number, 0)


def check_example_structure(features: Any, labels: Any = None, clients: Any = None) -> None:
    """Raise an error if features, labels or clients have wrong shapes or data types; they may be traced."""
    shape, dtype = np.shape(features), _dtype(features)
    if not _holds(dtype, "floats"):
        hint = "; use features.astype(np.float32)" if dtype.kind in "iu" else ""
        raise TypeError(f"features: expected floats, got {dtype}{hint}")
    if len(shape) != 2 or shape[1] < 1:
        raise ValueError(
            f"features: expected shape [examples, dim] with dim of at least 1, got {list(shape)}"
        )
    for name, array in (("labels", labels), ("clients", clients)):
        if array is None:
            continue
        if name == "labels" and np.ndim(array) == 2 and np.shape(array)[1] > 1:
            raise ValueError(
                f"labels: expected shape [{shape[0]}], the number of each example's class, got "
                f"{list(np.shape(array))}; of one-hot labels, take labels.argmax(-1)"
            )
        if not _holds(_dtype(array), "integers"):
            hint = f"; use {name}.astype(np.int32) if all are whole" if _dtype(array).kind == "f" else ""
            if _dtype(array).kind in "USOT":
                hint = (
                    f"; convert names to numbers by np.unique({name}, return_inverse=True)[1], over all "
                    f"{name} at once, so that the same name always has the same number"
                )
            raise TypeError(f"{name}: expected integers, got {_dtype(array)}{hint}")
        if np.shape(array) != shape[:1]:
            raise ValueError(
                f"{name}: expected shape [{shape[0]}], one for each row of features, "
                f"got {list(np.shape(array))}"
            )


def _on_device(features: jax.Array, labels: Any, clients: Any, most: int) -> bool:
    """Return whether labels are ≤ ``most``, and features finite and not all 0 or subnormal, without a copy.

    It is False too if padding holds NaN: then `check` looks at features on the host.
    """
    integers = [array for array in (labels, clients) if array is not None]
    # Under a caller's ``jit``, computations on concrete arrays would otherwise be traced.
    with jax.ensure_compile_time_eval():
        # Compare host arrays in NumPy: jax would truncate their large integers.
        kept = [array >= 0 if isinstance(array, jax.Array) else np.asarray(array) >= 0 for array in integers]
        high = labels.max(initial=0) if isinstance(labels, jax.Array) else np.max(labels, initial=0)
        return int(high) <= most and bool(_sound(features, kept))


@jax.jit
def _sound(features: jax.Array, kept: list[jax.Array]) -> jax.Array:
    """Return whether features are finite (in padding also ±∞), and not all 0 or subnormal."""
    largest = jnp.abs(features).max(1)
    wrong = ~jnp.isfinite(largest)
    for own in kept:
        wrong &= own
    return ~wrong.any() & (largest.max(initial=0).astype(jnp.result_type(float)) >= _least(features))


def _least(features: Any) -> float:
    """Return the smallest positive normal number of the data type in which the features are summed."""
    return float(jnp.finfo(accumulation_dtype(features)).tiny)


def check_row_structure(rows: Rows, *, dim: int | None = None) -> None:
    """Raise an error if arrays of ``rows`` have wrong shapes or data types; traced arrays are checked too."""
    if not isinstance(rows, Rows):
        raise TypeError(
            f"rows: expected covfree.Rows, got {type(rows).__name__}; Rows.from_means(means, counts) makes "
            "them of dense class means"
        )
    for name, expected in _COLUMNS.items():
        array = getattr(rows, name)
        if array is None and name in ("client", "covariance", "sketch"):
            continue
        if not hasattr(array, "dtype"):  # jax would treat each number of a list as an array
            kind = None if array is None else type(array).__name__
            raise TypeError(f"{name}: expected an array of {expected}, got {kind}")
        if not _holds(_dtype(array), expected):
            raise TypeError(f"{name}: expected {expected}, got {_dtype(array)}")
    shape = np.shape(rows.mean)
    if len(shape) != 2 or (dim is not None and shape[1] != dim):
        raise ValueError(f"mean: expected shape [rows, {'dim' if dim is None else dim}], got {list(shape)}")
    for name in ("count", "label", "client", "sketch"):
        array = getattr(rows, name)
        if array is not None and np.shape(array) != shape[:1]:
            raise ValueError(f"{name}: expected shape [{shape[0]}] as mean has, got {list(np.shape(array))}")
    structures = (shape[:1], shape, (*shape, shape[1]))
    if rows.covariance is not None and np.shape(rows.covariance) not in structures:
        raise ValueError(
            f"covariance: expected shape {list(shape[:1])}, {list(shape)} or {[*shape, shape[1]]} "
            f"as mean has, got {list(np.shape(rows.covariance))}"
        )


def check_integer(name: str, value: Any, minimum: int) -> int:
    """Return ``value`` as `int`; raise an error unless it is an integer of at least ``minimum``.

    Integers in jax arrays are refused too.
    """
    wrong = bool | np.bool_ | jax.Array
    if isinstance(value, wrong) or not hasattr(value, "__index__") or np.ndim(value):
        kind = "a Python integer" if isinstance(value, jax.Array) else "an integer"
        raise TypeError(f"{name}: expected {kind} of at least {minimum}, got {value!r}")
    if value.__index__() < minimum:
        raise ValueError(f"{name}: expected an integer of at least {minimum}, got {value!r}")
    return value.__index__()


def check_means(means: Any, counts: Any, *_: Any, **__: Any) -> None:
    """Raise an error if the means [rows, dim] or the counts [rows] of one class are invalid.

    The values of traced counts are not checked: a row whose count is below 0 or NaN is taken as padding, and
    a count of ∞ makes results NaN.
    """
    if not _holds(_dtype(means), "floats"):
        raise TypeError(f"means: expected floats, got {_dtype(means)}")
    if not _holds(_dtype(counts), "numbers"):
        raise TypeError(f"counts: expected numbers, got {_dtype(counts)}")
    if np.ndim(means) != 2 or np.shape(counts) != np.shape(means)[:1]:
        raise ValueError(
            f"means: expected [rows, dim] with counts [rows] of one class, got {list(np.shape(means))} with "
            f"{list(np.shape(counts))}; use jax.vmap for several classes"
        )
    if is_traced(counts):
        return
    held = np.asarray(counts, np.float64)
    wrong = ~np.isfinite(held) | (held < 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"counts: expected finite numbers of at least 0, got {held[row]:g} at row {row}")


def check_positive(name: str, value: Any) -> int:
    """Return ``value`` as `int`; raise an error unless it is an integer of at least 1 and not a jax array."""
    return check_integer(name, value, 1)


def check_integers(name: str, values: Any, minimum: int) -> np.ndarray:
    """Convert integers to a 1-D NumPy array; raise an error if one is below ``minimum``, or none is given."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected shape [examples], not empty, got {list(array.shape)}")
    if not _holds(array.dtype, "integers"):
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    row = int(array.argmin())
    if array[row] < minimum:
        raise ValueError(f"{name}: expected integers of at least {minimum}, got {array[row]} at row {row}")
    return array


def own_place(error: BaseException) -> str:
    """Return the innermost line of the user's code in an error's traceback; "" if there is none.

    An example is " (mine.py, line 3, in head)".
    """
    ours = (*LIBRARIES, f"{Path(__file__).parents[1]}{os.sep}")
    frames = [each for each in extract_tb(error.__traceback__) if not each.filename.startswith((*ours, "<"))]
    return "".join(f" ({Path(f.filename).name}, line {f.lineno}, in {f.name})" for f in frames[-1:])


def check_type(name: str, value: Any, expected: type) -> None:
    """Raise a TypeError, which names the argument, if ``value`` is not of the expected type."""
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name}: expected {article} {expected.__name__}, got {type(value).__name__}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise a ValueError, which names the argument, if ``value`` is not in ``choices``."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {value!r}")


def check_strength(name: str, value: Any) -> Any:
    """Return ``value``; raise an error unless it is a finite number of at least 0, or a traced number."""
    return _number(name, value, "a finite number of at least 0", lambda number: 0 <= number < math.inf)


def check_above_zero(name: str, value: Any) -> Any:
    """Return ``value``; raise an error unless it is a finite number above 0, or a traced number."""
    return _number(name, value, "a finite number above 0", lambda number: 0 < number < math.inf)


def check_share(name: str, value: Any) -> Any:
    """Return ``value``; raise an error unless it is a number in [0, 1], or a traced number."""
    return _number(name, value, "a number in [0, 1]", lambda number: 0 <= number <= 1)


def check_seed(name: str, value: Any) -> Any:
    """Return ``value``; raise an error unless it is an integer in [−2³¹, 2³¹), or a traced integer.

    `jax.random.key` refuses floats too, but its error does not name the argument.
    """
    expected = "an integer from -2**31 to 2**31 - 1"
    return _number(name, value, expected, lambda seed: -(2**31) <= seed < 2**31, "integers")


def _number(name: str, value: Any, expected: str, holds: Callable[[Any], bool], kind: str = "numbers") -> Any:
    """Return ``value``; raise an error unless it is of the ``kind`` and, if not traced, ``holds`` is True."""
    one = "an integer" if kind == "integers" else "a number"
    if np.ndim(value):
        raise TypeError(
            f"{name}: expected {one}, got an array of shape {list(np.shape(value))}; for several values, "
            "apply jax.vmap to a function that builds the object from one value"
        )
    if not _holds(_dtype(value), kind):
        raise TypeError(f"{name}: expected {one}, got {value!r}")
    if not is_traced(value) and not holds(value.item() if hasattr(value, "item") else value):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
    return value


def _dtype(array: Any) -> np.dtype:
    return np.dtype(array.dtype) if hasattr(array, "dtype") else np.asarray(array).dtype


def _holds(dtype: np.dtype, expected: str) -> bool:
    """Return whether a data type is of the kind ``expected``, a key of `_KINDS`."""
    return any(jnp.issubdtype(dtype, kind) for kind in _KINDS[expected])


def finite_numbers(value: Any, dtype: np.dtype) -> str:
    """Return the words of an error message that say what was expected where ``value`` was found.

    For NaN or ∞ they are "finite numbers". A finite ``value`` is one that overflows in the data type that jax
    uses for ``dtype``; then they are, for example, "numbers that are finite in float32".
    """
    return (
        f"numbers that are finite in {jax.dtypes.canonicalize_dtype(dtype)}"
        if np.isfinite(value)
        else "finite numbers"
    )


def first_non_finite(values: Any, used: np.ndarray) -> tuple[int, int] | None:
    """Return (row, column) of the first number that is not finite in the data type in which jax computes.

    Only rows where ``used`` is True are searched. The result is None if all their numbers are finite.
    """
    values = values if isinstance(values, Gathered) else np.asarray(values)
    if values.shape[1] == 0:
        return None
    dtype = jax.dtypes.canonicalize_dtype(values.dtype)
    for place in blocks(values) if is_large(values) else [slice(0, len(values))]:
        part = np.asarray(values[place])
        with np.errstate(invalid="ignore", over="ignore"):
            # Sums of rows need less memory than a mask of all features; they cannot overflow float64.
            if part.dtype.itemsize <= 4:
                finite = np.isfinite(part.sum(1, dtype=np.float64))
            else:
                finite = np.isfinite(part.min(1).astype(dtype)) & np.isfinite(part.max(1).astype(dtype))
            rows = np.flatnonzero(~finite & used[place])
            if rows.size:
                wrong = ~np.isfinite(part[rows[0]].astype(dtype))
                return place.start + int(rows[0]), int(wrong.argmax())
    return None
