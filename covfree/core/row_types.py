"""Data types in which rows are added up without wrapping and without overflow."""

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
    """Data types of rows that jax holds, and that their sums do not leave.

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
        """Those of rows; ``total`` is the sum of the counts of all rows to be added to."""
        covariance = None if rows.covariance is None else accumulation_dtype(rows.covariance)
        return cls(accumulation_dtype(rows.mean), _summed(np.asarray(rows.count).dtype, total), covariance)

    @classmethod
    def common(cls, types: Sequence[RowTypes]) -> RowTypes:
        """The types that hold all of these tables; either all or none have covariances."""
        covariances = [own.covariance for own in types if own.covariance is not None]
        return cls(
            np.result_type(*(own.mean for own in types)),
            # NumPy would promote an integer type and a float type to a wider float.
            np.dtype(jnp.result_type(*(own.count for own in types))),
            np.result_type(*covariances) if covariances else None,
        )

    def cast(self, rows: Rows) -> Rows:
        """The rows in these types, as NumPy arrays; labels as int32, −1 for padding, −2 for directions."""
        label = np.asarray(rows.label)
        # What a narrower type cannot hold becomes infinite.
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
    """Counts as int32 if their ``total`` fits, as float32 (float64 where x64 is enabled) if not."""
    return np.asarray(count).astype(_summed(np.asarray(count).dtype, total), copy=False)


def exact_counts(counts: Sequence[Any]) -> np.ndarray:
    """Counts of several tables below each other, none of them rounded: float64 if their sum leaves int32.

    jax makes float32 of these, but does not wrap them as it would int64. `summable_again` undoes it.
    """
    found = np.concatenate(counts)
    wide = found.dtype.kind in "iu" and count_sum(found) > _INT32
    return found.astype(np.float64) if wide else found


def summable_again(count: Any) -> np.ndarray:
    """Whole counts that `exact_counts` kept in float64, as int32 once their sum fits."""
    count = np.asarray(count)
    whole = count.dtype == np.float64 and count_sum(count) <= _INT32 and (count == np.floor(count)).all()
    return count.astype(np.int32) if whole else count


def count_sum(count: Any) -> float:
    """The sum of the counts above 0, exact below 2⁵³, whatever their data type."""
    count = np.asarray(count)
    # NumPy cannot add bfloat16 up in another type.
    count = count if count.dtype.kind in "iuf" else count.astype(np.float64)
    return float(np.sum(count, dtype=np.float64, where=count > 0))


def double() -> AbstractContextManager[Any]:
    """Enable float64 within a ``with`` block, under the name that the installed jax has for it."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()
