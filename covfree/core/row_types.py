"""Data types in which rows can be added up without wrapping or overflow."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import DIRECTION, Rows, accumulation_dtype

_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True)
class RowTypes:
    """Data types for rows: jax supports these types, and they hold the sums of the rows.

    Attributes:
        mean: float32 at least; float64 only where x64 is enabled.
        count: int32 if the sum of all counts fits, or a float if not.
        covariance: as ``mean``; None without covariances.
    """

    mean: np.dtype
    count: np.dtype
    covariance: np.dtype | None

    @classmethod
    def of(cls, rows: Rows, total: float) -> RowTypes:
        """Choose types for some rows; ``total`` is the sum of all counts that will be added up."""
        covariance = None if rows.covariance is None else accumulation_dtype(rows.covariance)
        return cls(accumulation_dtype(rows.mean), _summed(np.asarray(rows.count).dtype, total), covariance)

    @classmethod
    def common(cls, types: Sequence[RowTypes]) -> RowTypes:
        """Choose types that hold several tables; either all or none have covariances."""
        covariances = [own.covariance for own in types if own.covariance is not None]
        return cls(
            np.result_type(*(own.mean for own in types)),
            # Promote as jax does: NumPy would widen an integer and a float type to a wider float.
            np.dtype(jnp.result_type(*(own.count for own in types))),
            np.result_type(*covariances) if covariances else None,
        )

    def cast(self, rows: Rows) -> Rows:
        """Convert rows to NumPy arrays of these types; labels to int32, −1 for padding, −2 for directions."""
        label = np.asarray(rows.label)
        # Values that overflow a narrower type become infinite.
        with np.errstate(over="ignore"):
            return replace(
                rows,
                mean=np.asarray(rows.mean).astype(self.mean, copy=False),
                count=np.asarray(rows.count).astype(self.count, copy=False),
                label=np.where((label < 0) & (label != DIRECTION), -1, label).astype(np.int32),
                covariance=None
                if rows.covariance is None
                else np.asarray(rows.covariance).astype(self.covariance, copy=False),
            )


def _summed(dtype: np.dtype, total: float) -> np.dtype:
    if dtype.kind not in "iu":
        return accumulation_dtype(dtype)
    return np.dtype(np.int32 if total <= _INT32 else jnp.result_type(float))


def summable(count: Any, total: float) -> np.ndarray:
    """Convert counts to int32 if ``total`` fits, else to float32 (float64 if x64 is enabled)."""
    return np.asarray(count).astype(_summed(np.asarray(count).dtype, total), copy=False)


def exact_counts(counts: Sequence[Any]) -> np.ndarray:
    """Concatenate the counts of several tables without rounding: as float64 if their sum exceeds int32.

    float64, as jax would wrap int64 but only rounds float64 to float32. `summable_again` turns the counts
    back into int32.
    """
    found = np.concatenate(counts)
    wide = found.dtype.kind in "iu" and count_sum(found) > _INT32
    return found.astype(np.float64) if wide else found


def summable_again(count: Any) -> np.ndarray:
    """Convert counts that `exact_counts` made float64 back to int32, once their sum fits."""
    count = np.asarray(count)
    whole = count.dtype == np.float64 and count_sum(count) <= _INT32 and (count == np.floor(count)).all()
    return count.astype(np.int32) if whole else count


def count_sum(count: Any) -> float:
    """Return the sum of the counts above 0, exact below 2⁵³, whatever their data type."""
    count = np.asarray(count)
    # Not every release of NumPy can sum bfloat16 in float64, so convert it first.
    count = count if count.dtype.kind in "iuf" else count.astype(np.float64)
    return float(np.sum(count, dtype=np.float64, where=count > 0))


def double() -> AbstractContextManager[Any]:
    """Return a context manager that enables float64; its name depends on the version of jax."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()
