"""Check the values of class statistics: counts, labels and means; and that matrices are sums of squares."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from covfree.core.checks import check_row_structure, finite_numbers, first_non_finite
from covfree.core.row_types import RowTypes
from covfree.core.types import Rows

# In float32: the unit roundoff u, and the smallest normal number.
_UNIT, _SMALLEST = 2.0**-24, 2.0**-126
# The largest number of terms that are added one by one; longer sums are made of partial sums.
_LONGEST = 2**16
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


def rounding(num_examples: float, *dtypes: np.dtype) -> float:
    """Return a bound b on rounding errors in a Gram matrix: entry a_ij may be wrong by b·√(a_ii a_jj).

    The entry a_ij = Σ x_i x_j is a sum over n = ``num_examples`` examples; x_i is feature i of an example. If
    the n products are added one by one in float32, the error is at most n·u·Σ|x_i x_j|, with u = 2⁻²⁴, and
    Σ|x_i x_j| ≤ √(a_ii a_jj) by Cauchy and Schwarz. Half of this bound is allowed: even equal terms, whose
    errors add up, lose at most about n·u/4. Sums of more than 2¹⁶ terms are made of partial sums, which lose
    less, so n counts as at most 2¹⁶. A few u are added for the products and the means, and the largest unit
    roundoff of ``dtypes``, the data types in which sums are sent.
    """
    sent = max(float(jnp.finfo(dtype).eps) for dtype in dtypes) / 2
    return sent + _UNIT * (min(num_examples, _LONGEST) / 2 + 8)


def unit_diagonal(
    where: str, matrix: Float[np.ndarray, "dim dim"], num_examples: float, tolerance: float
) -> Float[np.ndarray, "dim dim"]:
    """Return a matrix scaled to a diagonal of 1; raise a ValueError if it cannot be a sum of squares F Fᵀ.

    Three cheap conditions are tested, up to ``tolerance``: no entry on the diagonal is negative, the matrix
    is symmetric, and |a_ij| ≤ √(a_ii a_jj).

    Args:
        where: how the error begins, e.g. ``"matrix:"``.
        matrix: the matrix, of finite numbers.
        num_examples: n, the number of products in each sum.
        tolerance: from `rounding`.

    Returns:
        The scaled matrix in float32.
    """
    diagonal = np.diagonal(matrix).astype(np.float64)
    if (diagonal < 0).any():
        i = int(np.argmax(diagonal < 0))
        raise ValueError(f"{where} holds {matrix[i, i]} at {(i, i)}; expected a diagonal of at least 0")
    # In float32, products below the smallest normal number become 0, and each example may lose one. So let
    # each entry differ by n + 1 such numbers.
    size = np.sqrt(diagonal + (num_examples + 1) * _SMALLEST / tolerance)
    inverse = (1 / size).astype(np.float32)
    with np.errstate(over="ignore"):
        scaled = ((matrix * inverse[:, None]) * inverse).astype(np.float32, copy=False)
    if max(scaled.max(initial=0), -scaled.min(initial=0)) > 1 + 2 * tolerance:
        i, j = (int(place) for place in np.unravel_index(np.argmax(np.abs(scaled)), scaled.shape))
        raise ValueError(
            f"{where} holds {matrix[i, j]} at {(i, j)}; expected at most {size[i] * size[j]:.7g}, the root "
            "of the product of the two entries on the diagonal, as in a sum of squares"
        )
    uneven = scaled - scaled.T
    if uneven.max(initial=0) > 2 * tolerance:
        i, j = (int(place) for place in np.unravel_index(np.argmax(uneven), scaled.shape))
        raise ValueError(
            f"{where} holds {matrix[i, j]} at {(i, j)} and {matrix[j, i]} at {(j, i)}; expected a symmetric "
            "matrix"
        )
    return scaled


def is_positive(scaled: Float[np.ndarray, "dim dim"], tolerance: float) -> bool:
    """Return whether a matrix with diagonal 1 is positive semi-definite up to rounding, by Cholesky.

    If errors of the entries behave like independent numbers of size τ = ``tolerance``, they move an
    eigenvalue of a d × d matrix by at most 2√d·τ (Wigner's law). The factorisation in float32, with unit
    roundoff u, moves an eigenvalue by less than d·u. The matrix passes if no eigenvalue is further below 0
    than the sum of both.
    """
    size = len(scaled)
    shifted = np.array(scaled, np.float32)
    shifted[np.diag_indices(size)] += np.float32(2 * math.sqrt(size) * tolerance + size * _UNIT)
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True
