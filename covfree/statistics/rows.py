"""Compute the `Rows` of all clients at once: the mean of each of their classes, or of subsets of a class."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_choice, check_positive
from covfree.core.compiling import jit
from covfree.core.doors import check_int32, within_int32
from covfree.core.keys import derive
from covfree.core.sums import mean_groups
from covfree.core.types import AnyArray, PRNGKey, Rows, accumulation_dtype, is_traced
from covfree.statistics.groups import as_examples, subset_groups

# The variance that may be sent with a mean: that of each feature, or the average over features.
CovarianceType: TypeAlias = Literal["diagonal", "spherical"]


def check_subsets(num_subsets: int | None, subset_size: int) -> None:
    """Raise an error unless both are integers of at least 1; ``num_subsets`` may also be None."""
    if num_subsets is not None:
        check_positive("num_subsets", num_subsets)
    check_positive("subset_size", subset_size)


def count_rows(
    labels: Integer[np.ndarray, " examples"],
    clients: Integer[np.ndarray, " examples"],
    num_subsets: int | None = 1,
    *,
    subset_size: int = 2,
) -> int:
    """Count, on the host and from concrete arrays, the rows that `client_rows` makes.

    >>> import numpy as np
    >>> count_rows(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 5]))
    3
    """
    check_subsets(num_subsets, subset_size)
    return int(np.clip(client_pairs(labels, clients)[1] // subset_size, 1, num_subsets).sum())


def client_pairs(
    labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]
) -> tuple[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]]:
    """Count, on the host, the examples of each client-class pair that has any.

    Returns:
        The client of each pair, and its number of examples, ordered by client and class. Clients are
        renumbered if a number is beyond int32.
    """
    # Renumber large client numbers: otherwise the number of a pair could exceed int64.
    labels, clients = np.asarray(labels), np.asarray(within_int32(clients))
    check_int32("labels", labels)
    kept = (labels >= 0) & (clients >= 0)
    # Sorting one number for a pair is several times faster than sorting two.
    width = int(labels.max(initial=0)) + 1
    pairs, sizes = np.unique(
        clients[kept].astype(np.int64) * width + labels[kept].astype(np.int64), return_counts=True
    )
    return pairs // width, sizes


def client_sizes(
    labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]
) -> tuple[Integer[np.ndarray, " clients"], Integer[np.ndarray, " clients"]]:
    """Return the numbers of classes and of examples of each client that has examples; on the host."""
    owners, sizes = client_pairs(labels, clients)
    _, slot = np.unique(owners, return_inverse=True)
    return np.bincount(slot), np.bincount(slot, sizes).astype(int)


def client_rows(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    num_rows: int,
    num_subsets: int | None = 1,
    subset_size: int = 2,
    covariance: CovarianceType | None = None,
    key: PRNGKey | None = None,
) -> Rows:
    """Compute the class means of all clients as rows, ordered by client, class and subset.

    The cost is a sort of n small keys, one pass over the features (three with a covariance), and memory for
    n + num_rows·d numbers.

    Args:
        features: features of all clients' examples, in any order.
        labels: their classes; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        num_rows: rows of the result, static: `count_rows`, or an upper bound such as ``len(labels)``. Unused
            rows are padding. Too small a number is an error; under ``jit`` rows are lost.
        num_subsets: the largest number of random subsets of a client's class, static. A class of n_kc
            examples gives min(num_subsets, ⌊n_kc/subset_size⌋) rows, at least one, so that a few clients give
            many rows. None for as many as ``subset_size`` allows, more in larger classes.
        subset_size: the smallest number of examples in a subset, unless the client has fewer of the class.
        covariance: if given, also compute the unbiased variance of each feature about the mean
            (``"diagonal"``), or its average over features (``"spherical"``).
        key: PRNG key that assigns examples to subsets; needed unless ``num_subsets`` is 1.

    Returns:
        The rows; padding rows at the end have count 0 and label −1.

    Raises:
        ValueError: if shapes do not fit, a key is missing, or ``num_rows`` is too small.
        TypeError: if features are no floats, or labels or clients no integers.

    >>> import jax.numpy as jnp
    >>> features = jnp.array([[1.0], [3.0], [9.0]])
    >>> rows = client_rows(features, jnp.array([0, 0, 1]), jnp.array([7, 7, 2]), num_rows=2)
    >>> rows.mean.ravel().tolist(), rows.count.tolist(), rows.label.tolist()
    ([9.0, 2.0], [1, 2], [1, 0])
    """
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    check_choice("covariance", covariance, (None, *get_args(CovarianceType)))
    row = deal_rows(labels, clients, num_subsets, subset_size, key)
    return rows_of(features, labels, clients, row, num_rows, covariance)


def deal_rows(
    labels: Integer[Array, " examples"],
    clients: Integer[Array, " examples"],
    num_subsets: int | None,
    subset_size: int,
    key: PRNGKey | None,
) -> Integer[Array, " examples"]:
    """Return, for each example, the index of the row of `client_rows` that averages it; −1 for padding.

    A row is the mean of one client's examples of a class, or of a random subset of them. For the arguments
    see `client_rows`.
    """
    check_subsets(num_subsets, subset_size)
    if num_subsets == 1:
        deal = None
    elif key is None:
        raise ValueError("key: expected a PRNG key as num_subsets > 1 deals examples at random, got None")
    else:
        deal = derive(key, "subsets")
    kept = (labels >= 0) & (clients >= 0)
    return subset_groups((clients, labels), kept, num_subsets, deal, subset_size=subset_size)


def rows_of(
    features: Float[Array, "examples dim"],
    labels: Integer[Array, " examples"],
    clients: Integer[Array, " examples"],
    row: Integer[Array, " examples"],
    num_rows: int,
    covariance: CovarianceType | None = None,
) -> Rows:
    """Compute the result of `client_rows`; ``row`` is the index of each example's row, from `deal_rows`."""
    check_positive("num_rows", num_rows)
    rows = _rows_of(features, labels, clients, row, num_rows, covariance)
    if not is_traced(rows.count):
        examples, held = (np.asarray(row) >= 0).sum(), np.asarray(rows.count).sum()
        if held != examples:
            raise ValueError(
                f"num_rows: {num_rows} rows cannot hold all client-class pairs: "
                f"{examples - held} of {examples} examples would be lost; see count_rows"
            )
    return rows


@partial(jit, static_argnames=("num_rows", "covariance"))
def _rows_of(
    features: Array, labels: Array, clients: Array, row: Array, num_rows: int, covariance: str | None
) -> Rows:
    """Compute the rows of `rows_of`; if ``num_rows`` is too small, examples are lost silently."""
    means, counts = mean_groups(features, row, num_rows)
    examples = row.shape[0]
    slot = jnp.where((row >= 0) & (row < num_rows), row, num_rows)
    # The first example of each row (past the end for an empty row). XLA merges this with the same computation
    # in `mean_groups`.
    first = jax.ops.segment_min(jnp.arange(examples, dtype=jnp.int32), slot, num_rows)

    def of_row(values: jax.Array) -> jax.Array:
        """Return, for each row, the value of its examples in ``values`` [examples]; −1 for an empty row.

        The values are integers, such as labels. All examples of a row have the same value.
        """
        if not examples:
            return jnp.full(num_rows, -1, jnp.int32)
        return values.astype(jnp.int32).at[first].get(mode="fill", fill_value=-1)

    variance = None
    if covariance is not None:
        variance = _row_variances(features, row, means)
        variance = variance.mean(1) if covariance == "spherical" else variance
    return Rows(means, counts, of_row(labels), of_row(clients), variance)


def _row_variances(
    features: Float[Array, "examples dim"],
    row: Integer[Array, " examples"],
    means: Float[Array, "rows dim"],
) -> Float[Array, "rows dim"]:
    """Compute the unbiased variance of each feature over the examples of each row; 0 for fewer than two."""
    # Set padding to 0: if it holds NaN, gradients are NaN even if its squares are not summed.
    values = jnp.where((row >= 0)[:, None], features, 0).astype(accumulation_dtype(features))
    deviation = values - means.at[row].get(mode="fill", fill_value=0)
    square, counts = mean_groups(jnp.square(deviation), row, means.shape[0])
    unbiased = counts.astype(square.dtype) / jnp.maximum(counts - 1, 1).astype(square.dtype)
    return square * unbiased[:, None]
