"""Phase one: what each class sums to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from covfree.types import Moments, Rows


def valid_rows(rows: Rows, num_classes: int) -> Bool[Array, " rows"]:
    """Rows that count: a count above 0 and a label in [0, num_classes)."""
    count, label = jnp.asarray(rows.count), jnp.asarray(rows.label)
    return (count > 0) & (label >= 0) & (label < num_classes)


def first_moments(rows: Rows, num_classes: int) -> Moments:
    """Counts, number of rows and feature sums of each class: additive over any split of the rows.

    Args:
        rows: class rows; padding changes nothing.
        num_classes: C, static.

    Returns:
        N_c, K_c and Σ_r n_r x_r. Integer counts are summed as integers, exactly.

    >>> import jax.numpy as jnp
    >>> rows = Rows(jnp.array([[1.0], [4.0]]), jnp.array([2, 1]), jnp.array([0, 0]))
    >>> moments = first_moments(rows, num_classes=2)
    >>> moments.mean.ravel().tolist(), moments.count.tolist(), moments.rows.tolist()
    ([2.0, 0.0], [3, 0], [2, 0])
    """
    valid = valid_rows(rows, num_classes)
    label = jnp.where(valid, rows.label, num_classes)
    count = jnp.where(valid, rows.count, 0)
    # Masked before it is multiplied: padding may hold NaN.
    weighted = jnp.where(valid[:, None], rows.mean, 0) * count.astype(rows.mean.dtype)[:, None]
    return Moments(
        count=jax.ops.segment_sum(count, label, num_classes),
        rows=jax.ops.segment_sum(valid.astype(jnp.int32), label, num_classes),
        total=jax.ops.segment_sum(weighted, label, num_classes),
    )
