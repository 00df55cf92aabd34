"""Compute the counts and feature sums of each class from rows: the first step of FedCOF's server."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_positive, check_row_structure
from covfree.core.doors import as_array, as_counts, as_int32, check_int32, whole
from covfree.core.products import product
from covfree.core.sums import deviations, sum_integers, weighted_means
from covfree.core.types import Moments, Rows, accumulation_dtype


def valid_rows(rows: Rows, num_classes: int) -> Bool[Array, " rows"]:
    """Return a mask of the rows that are not padding: count above 0 and label in [0, num_classes)."""
    check_row_structure(rows)
    counts, labels = as_counts(rows.count), row_labels(rows)
    return (counts > 0) & (labels >= 0) & (labels < num_classes)


def row_labels(rows: Rows) -> Integer[Array, " rows"]:
    """Return the rows' labels as int32; a narrower type might not hold the number of classes."""
    return as_int32("label", rows.label)


def row_clients(rows: Rows) -> Integer[Array, " rows"]:
    """Return each row's client number as int32 or int64; a narrower type might overflow in comparisons."""
    if rows.client is None:
        raise ValueError("rows: expected rows with a client each, to tell whose they are; got none")
    check_int32("client", rows.client)
    client = as_array(rows.client)
    return client.astype(jnp.int64 if client.dtype.itemsize > 4 else jnp.int32)


def row_counts(rows: Rows, valid: Bool[Array, " rows"]) -> Float[Array, " rows"]:
    """Return each row's number of examples, as floats of the type in which features are summed.

    It is 0 in padding rows, where the mask ``valid`` is False.
    """
    return jnp.where(valid, as_counts(rows.count), 0).astype(accumulation_dtype(rows.mean))


def row_means(rows: Rows, valid: Bool[Array, " rows"]) -> Float[Array, "rows dim"]:
    """Return ``rows.mean``, in float32 if its data type is smaller; 0 in padding rows.

    ``valid`` is False for padding rows, whose means may be NaN.
    """
    dtype = accumulation_dtype(rows.mean)
    return jnp.where(valid[:, None], whole(rows.mean), 0).astype(dtype)


def first_moments(rows: Rows, num_classes: int) -> Moments:
    """Compute each class's numbers of examples and rows, and its feature sum.

    Args:
        rows: class rows; padding changes nothing.
        num_classes: C, the number of classes, static.

    Returns:
        For each class, the number of examples (``count``), the number of rows (``num_rows``), and two sums
        over its rows r, the means x_r of n_r examples: Σ_r n_r x_r (``total``) and Σ_r n_r max_j |x_rj|
        (``magnitude``). The results for parts of the rows add up. Sums of counts are floats; integer counts
        are rounded only after the sum.

    Raises:
        ValueError: if shapes do not fit, or ``num_classes`` is below 1.
        TypeError: if means are no floats or labels no integers.

    >>> import jax.numpy as jnp
    >>> rows = Rows(jnp.array([[1.0], [4.0]]), jnp.array([2, 1]), jnp.array([0, 0]))
    >>> moments = first_moments(rows, num_classes=2)
    >>> moments.mean.ravel().tolist(), moments.count.tolist(), moments.num_rows.tolist()
    ([2.0, 0.0], [3.0, 0.0], [2, 0])
    """
    check_positive("num_classes", num_classes)
    check_row_structure(rows)
    own = replace(rows, mean=whole(rows.mean), label=row_labels(rows), count=as_counts(rows.count))
    return _first_moments(own, num_classes)


@partial(jax.jit, static_argnums=1)
def _first_moments(rows: Rows, num_classes: int) -> Moments:
    """Compute `first_moments` for rows whose labels are int32."""
    valid = valid_rows(rows, num_classes)
    label = jnp.where(valid, rows.label, num_classes)
    weight = row_counts(rows, valid)
    count = jnp.asarray(rows.count)
    if jnp.issubdtype(count.dtype, jnp.integer):
        count = sum_integers(jnp.where(valid, count, 0), label, num_classes).astype(weight.dtype)
    else:
        count = jax.ops.segment_sum(weight, label, num_classes)
    present_rows = jax.ops.segment_sum(valid.astype(jnp.int32), label, num_classes)
    means, magnitude = weighted_means(rows.mean, weight, label, count, present_rows)
    total = means * count[:, None]
    return Moments(count=count, num_rows=present_rows, total=total, magnitude=magnitude)


def example_moments(rows: Rows, num_classes: int) -> Moments:
    """Compute `first_moments`, but count examples as rows: ``num_rows`` is each class's number of examples.

    This is for clients that send covariances or Gram matrices of examples beside their class means. The
    degrees of freedom are then those of the examples.
    """
    moments = first_moments(rows, num_classes)
    # Counts stay floats, as a sum may exceed int32.
    return replace(moments, num_rows=jnp.round(moments.count))


def centred_means(moments: Moments) -> Float[Array, "classes dim"]:
    """Compute μ_c − μ_g, each class mean minus the mean of all examples; 0 for an absent class.

    If all class means are equal, the result is exactly 0, so that shrinkage rules do not take rounding errors
    for scatter. For this, one class's mean is subtracted first, and differences within rounding become 0.
    """
    present = moments.present[:, None]
    mean = jnp.where(present, moments.mean, 0)
    first = mean[jnp.argmax(moments.present)]
    away = jnp.where(present, deviations(mean, jnp.broadcast_to(first[None, :], mean.shape)), 0)
    share = moments.count / jnp.maximum(moments.num_examples, jnp.finfo(mean.dtype).tiny)
    return jnp.where(present, away - product(share[None, :], away), 0)
