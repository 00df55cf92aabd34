"""Data types in which the arrays of `Rows` can be summed without overflow."""

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
    """Data types for the arrays of `Rows`: jax supports them, and sums over rows do not overflow in them.

    Attributes:
        mean: float32 at least; float64 only where x64 is enabled.
        count: int32 for integers whose sum fits, else a float type.
        covariance: chosen as for ``mean``; None without covariances.
    """

    mean: np.dtype
    count: np.dtype
    covariance: np.dtype | None

    @classmethod
    def of(cls, rows: Rows, total: float | None = None) -> RowTypes:
        """Choose data types for the arrays of ``rows``.

        Args:
            rows: the rows.
            total: if several `Rows` will be concatenated, the sum of all their counts.
        """
        total = count_sum(rows.count) if total is None else total
        covariance = None if rows.covariance is None else accumulation_dtype(rows.covariance)
        return cls(accumulation_dtype(rows.mean), _summed(np.asarray(rows.count).dtype, total), covariance)

    @classmethod
    def common(cls, types: Sequence[RowTypes]) -> RowTypes:
        """Choose the data types of several `Rows` that will be concatenated, from the types of each.

        Either all of the `Rows` must have covariances, or none.
        """
        covariances = [own.covariance for own in types if own.covariance is not None]
        return cls(
            np.result_type(*(own.mean for own in types)),
            # Promote counts as jax does, where int32 and float32 give float32; NumPy would make them float64.
            np.dtype(jnp.result_type(*(own.count for own in types))),
            np.result_type(*covariances) if covariances else None,
        )

    def cast(self, rows: Rows) -> Rows:
        """Convert the arrays of ``rows`` to NumPy arrays of these types, and labels to int32.

        A label below 0 becomes −1, which marks padding. Only −2 (`DIRECTION`) stays: such a row is a scaled
        singular vector.
        """
        label, spread = np.asarray(rows.label), rows.covariance
        # Values that overflow a narrower type become infinite.
        with np.errstate(over="ignore"):
            return replace(
                rows,
                mean=np.asarray(rows.mean, self.mean),
                count=np.asarray(rows.count, self.count),
                label=np.where((label < 0) & (label != DIRECTION), -1, label).astype(np.int32),
                covariance=None if spread is None else np.asarray(spread, self.covariance),
            )


def _summed(dtype: np.dtype, total: float) -> np.dtype:
    if dtype.kind not in "iu":
        return accumulation_dtype(dtype)
    return np.dtype(np.int32 if total <= _INT32 else jnp.result_type(float))


def summable(count: Any) -> np.ndarray:
    """Convert integer counts to int32 if their sum fits, else to float32 (float64 with x64)."""
    count = np.asarray(count)
    return np.asarray(count, _summed(count.dtype, count_sum(count)))


def exact_counts(counts: Sequence[Any]) -> np.ndarray:
    """Concatenate the counts of several `Rows`, exactly: in float64 if their sum exceeds int32.

    Without x64, jax converts int64 to int32, which may overflow, but float64 to float32, which only rounds.
    `summable_again` converts counts back once their sum fits int32.
    """
    found = np.concatenate(counts)
    wide = found.dtype.kind in "iu" and count_sum(found) > _INT32
    return found.astype(np.float64) if wide else found


def summable_again(count: Any) -> np.ndarray:
    """Convert float64 counts to int32 if all are integers, and their sum fits; else return them unchanged.

    It undoes `exact_counts`.
    """
    count = np.asarray(count)
    whole = count.dtype == np.float64 and count_sum(count) <= _INT32 and (count == np.floor(count)).all()
    return count.astype(np.int32) if whole else count


def count_sum(count: Any) -> float:
    """Sum the counts above 0, of any data type, in float64: exact for integers if the sum is below 2⁵³."""
    count = np.asarray(count)
    # Not every release of NumPy can sum bfloat16 in float64, so convert it first.
    count = count if count.dtype.kind in "iuf" else count.astype(np.float64)
    return float(np.sum(count, dtype=np.float64, where=count > 0))


def double() -> AbstractContextManager[Any]:
    """Return jax's context manager that enables float64; its name differs between versions of jax."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()
