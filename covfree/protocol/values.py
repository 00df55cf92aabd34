"""Check the values in rows of class statistics: counts, labels, means and covariances."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_row_structure, finite_numbers, first_non_finite
from covfree.core.row_types import RowTypes
from covfree.core.types import Rows
from covfree.protocol.squares import is_positive, rounding, unit_diagonal

# Float64 holds every whole number up to this one, so sums of counts are exact.
_MOST_EXAMPLES = 2**53


def check_rows(rows: Rows, *, num_classes: int, dim: int | None = None) -> None:
    """Raise an error if a shape, data type or value of rows (e.g. received ones) is wrong.

    Args:
        rows: the rows to check.
        num_classes: C.
        dim: the expected d; None for any.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or a value is wrong: the mean of a row that is no padding is NaN or infinite; a
            count is negative, not finite or above 2⁵³; a label is not below C; a covariance is not symmetric
            or not positive semi-definite; or numbers are so large that sums of their squares would overflow.

    >>> import jax.numpy as jnp
    >>> check_rows(Rows(jnp.ones((1, 2)), jnp.array([-3]), jnp.array([0])), num_classes=4)
    Traceback (most recent call last):
        ...
    ValueError: count: row 0 has count -3; expected finite numbers of at least 0
    """
    check_row_structure(rows, dim=dim)
    mean, count, label = (np.asarray(x) for x in (rows.mean, rows.count, rows.label))
    if (row := _first(~(np.isfinite(count) & (count >= 0)))) is not None:
        raise ValueError(f"count: row {row} has count {count[row]}; expected finite numbers of at least 0")
    # Compare in float64: float16 cannot hold the limit.
    if (row := _first(count.astype(np.float64) > _MOST_EXAMPLES)) is not None:
        raise ValueError(f"count: row {row} has count {count[row]}; expected at most 2**53")
    if (row := _first(label >= num_classes)) is not None:
        raise ValueError(
            f"label: row {row} has label {label[row]}; expected labels below num_classes = {num_classes}"
        )
    sketch = False if rows.sketch is None else np.asarray(rows.sketch)
    used = (count > 0) & ((label >= 0) | sketch)
    for name, values in (("mean", mean), ("covariance", rows.covariance)):
        if values is None:
            continue
        # Compute the second axis: NumPy cannot infer it from −1 if there are no rows.
        flat = np.asarray(values).reshape(len(label), math.prod(np.shape(values)[1:]))
        position = first_non_finite(flat, used)
        if position is not None:
            row, column = position
            raise ValueError(
                f"{name}: row {row} (class {label[row]}) holds {flat[row, column]} at position {column}; "
                f"expected {finite_numbers(flat[row, column], flat.dtype)}"
            )
    if rows.covariance is not None:
        _check_covariances(np.asarray(rows.covariance), count, label, used)
    if (row := _first(used & sketch & (label >= 0))) is not None:
        raise ValueError(
            f"label: row {row} has label {label[row]}; expected -2, as it is a residual direction"
        )
    most = largest_sum(mean.dtype)
    squares = square_sums(rows)
    if (row := _first(used & (squares > most))) is not None:
        raise ValueError(
            f"mean: row {row} (class {label[row]}) implies squared norms that sum to {squares[row]:.2g}; "
            f"expected at most {most:.2g}, as larger sums could overflow"
        )


def _first(wrong: np.ndarray) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def largest_sum(dtype: np.dtype) -> float:
    """Return M^¾, the limit for Σ‖f‖² over the feature vectors f behind a row or a matrix of a message.

    M is the largest number of the data type, or of float32 if that is larger. So M^¼ such sums can be added
    without overflow.
    """
    return float(jnp.finfo(jnp.promote_types(dtype, jnp.float32)).max) ** 0.75


def square_sums(rows: Rows) -> np.ndarray:
    """Compute, for each row of a message, the sum Σ‖f‖² over the features f that the row summarises.

    A row with the mean μ and covariance S of n examples gives n‖μ‖² + (n − 1) tr S; without S, n‖μ‖². A row
    that is a residual direction y (`Rows.sketch` marks it) gives ‖y‖² plus the row's ``covariance``.
    """
    count, mean = np.asarray(rows.count).astype(np.float64), _at_least_float32(rows.mean)
    sketch = np.zeros(len(count), bool) if rows.sketch is None else np.asarray(rows.sketch)
    terms, degrees = (
        np.where(sketch, 1.0, count),
        np.where(sketch, 1 / max(1, mean.shape[1]), np.maximum(count - 1, 0)),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        sums = terms * np.einsum("rd,rd->r", mean, mean)
        if rows.covariance is not None:
            values = _at_least_float32(rows.covariance)
            trace = {
                1: lambda: mean.shape[1] * values,
                2: lambda: values.sum(1),
                3: lambda: np.einsum("rdd->r", values),
            }[values.ndim]()
            sums += degrees * trace
    return sums


def sound_rows(rows: Rows, types: RowTypes, *, num_classes: int) -> Rows:
    """Check a message's rows by `check_rows`, and convert them to ``types``, in which they are summed.

    If a data type became shorter, which may make numbers infinite, the converted rows are checked too.
    """
    check_rows(rows, num_classes=num_classes)
    cast = types.cast(rows)
    for came, ours in ((rows.mean, cast.mean), (rows.covariance, cast.covariance)):
        if ours is not None and np.asarray(came).dtype.itemsize > np.asarray(ours).dtype.itemsize:
            check_rows(cast, num_classes=num_classes)
    return cast


def _check_covariances(
    covariance: np.ndarray, count: np.ndarray, label: np.ndarray, used: np.ndarray
) -> None:
    if covariance.ndim < 3:
        flat = covariance.reshape(len(label), math.prod(covariance.shape[1:]))
        negative = (flat < 0) & used[:, None]
        if negative.any():
            row, column = (int(place) for place in np.argwhere(negative)[0])
            raise ValueError(
                f"covariance: row {row} (class {label[row]}) holds {flat[row, column]} at position {column}; "
                "expected variances of at least 0"
            )
        return
    # Each component of a mixture is a weighted sum over all examples, so the tolerance is for a sum of that
    # many terms.
    total = float(count[used].sum(dtype=np.float64))
    tolerance = rounding(total, covariance.dtype)
    for row in np.flatnonzero(used):
        where = f"covariance: row {row} (class {label[row]})"
        scaled = unit_diagonal(where, _at_least_float32(covariance[row]), total, tolerance)
        if not is_positive(scaled, tolerance):
            raise ValueError(f"{where} has a negative eigenvalue; expected a sum of squares")


def _at_least_float32(values: Any) -> np.ndarray:
    values = np.asarray(values)
    return values.astype(jnp.promote_types(values.dtype, jnp.float32), copy=False)
