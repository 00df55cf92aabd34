"""Partitions that do not look at the labels, and the table of all partitioners by name."""

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from covfree.federation._arguments import (
    Clients,
    check_num_examples,
    check_num_partitions,
    check_real,
    equal_sizes,
    generator,
)
from covfree.federation.dirichlet_partition import dirichlet, inner_dirichlet
from covfree.federation.shard_partition import dominant_classes, pathological, shards


def iid(labels: ArrayLike | int, num_partitions: int, *, seed: int) -> Clients:
    """Partition uniformly at random into clients of equal size.

    As Flower Datasets' `IidPartitioner`, but the examples are shuffled first.

    Args:
        labels: [n] class of each example, integers ≥ 0, or only their number n: labels are not used.
        num_partitions: the number of clients K, at most n.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Every example is assigned; sizes differ by at most one, none is 0.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an argument is not of integers.

    >>> np.bincount(iid(1000, 3, seed=0))
    array([334, 333, 333])
    """
    num_examples = check_num_examples(labels)
    num_partitions = check_num_partitions(num_partitions, num_examples)
    return _random_of_sizes(equal_sizes(num_examples, num_partitions), generator(seed))


def lognormal_sizes(
    labels: ArrayLike | int, num_partitions: int, sigma: float | int, *, seed: int
) -> Clients:
    """Partition uniformly at random into clients of lognormal sizes: quantity skew.

    w_k = exp(σ·z_k) with z_k standard normal. Each client has one example, and the other n - K are divided
    in proportion to w, rounded by largest remainders. Lognormal client sizes are those of the unbalanced
    federations of Acar et al. (ICLR 2021, arXiv:2111.04263) and, with σ = 2, of the synthetic data of Li et
    al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020, arXiv:1812.06127).

    To skew the labels too, pass the sizes to another partitioner: `inner_dirichlet(labels, K, alpha,
    partition_sizes=np.bincount(lognormal_sizes(labels, K, sigma, seed=0)), seed=1)`.

    Args:
        labels: [n] class of each example, integers ≥ 0, or only their number n: labels are not used.
        num_partitions: the number of clients K, at most n.
        sigma: σ ≥ 0, the standard deviation of the log of a size; 0 gives equal sizes.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Every example is assigned, and no client is empty.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> np.bincount(lognormal_sizes(1000, 5, sigma=1.0, seed=0))
    array([202, 157, 338, 198, 105])
    """
    num_examples = check_num_examples(labels)
    num_partitions = check_num_partitions(num_partitions, num_examples)
    sigma = check_real("sigma", sigma, minimum=0.0)
    rng = generator(seed)
    # Relative to the largest z, so that no weight overflows at any σ.
    z = rng.standard_normal(num_partitions)
    weights = np.exp(sigma * (z - z.max()))
    shares = (num_examples - num_partitions) * (weights / weights.sum())
    sizes = np.floor(shares).astype(np.int64)
    leftover = num_examples - num_partitions - int(sizes.sum())
    sizes[np.argsort(sizes - shares, kind="stable")[:leftover]] += 1
    return _random_of_sizes(sizes + 1, rng)


def natural_id(ids: ArrayLike) -> Clients:
    """Partition by ids in the data: one client for each distinct id (user, hospital, writer, …).

    As Flower Datasets' `NaturalIdPartitioner`. Nothing is random: client k has the k-th smallest id,
    `np.unique(ids)[k]`.

    Args:
        ids: [n] id of each example: integers, strings or anything else that can be sorted.

    Returns:
        [n] int32 client of each example. Every example is assigned, and no client is empty.

    Raises:
        ValueError: `ids` is not one-dimensional or is empty, or an id is missing (None, NaN, NaT, masked, or
            an empty string); the message names the first such row.
        TypeError: ids of different types cannot be sorted.

    >>> natural_id(["ward 7", "ward 12", "ward 7", "home"])
    array([2, 1, 2, 0], dtype=int32)
    """
    masked = np.ma.getmaskarray(ids) if isinstance(ids, np.ma.MaskedArray) else None
    # Items of a list stay objects: NumPy would turn a NaN among strings into the id "nan".
    array = np.asarray(ids) if hasattr(ids, "dtype") else np.fromiter(cast(Iterable, ids), dtype=object)
    nested = array.dtype == object and array.size and isinstance(array.flat[0], list | np.ndarray)
    if array.ndim != 1 or nested:
        raise ValueError(f"ids must be one-dimensional, got shape {np.shape(ids)}")
    if array.size == 0:
        raise ValueError("ids must not be empty")
    if array.dtype.kind in "iub":
        missing = np.zeros(array.size, bool)
    elif array.dtype.kind in "fcmM":
        missing = np.isnan(array) if array.dtype.kind in "fc" else np.isnat(array)
    else:
        array = array.astype(object)
        missing = np.fromiter(map(_is_missing, array), bool, array.size)
    if masked is not None:
        missing |= masked
    if missing.any():
        row = int(missing.argmax())
        what = "a masked value" if masked is not None and masked[row] else repr(array[row])
        raise ValueError(
            f"ids must name a client for every example, got {what} at row {row} "
            f"({int(missing.sum())} of {array.size} rows lack an id); drop these rows or give them an id"
        )
    try:
        _, clients = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"ids must be of one type that can be sorted, got {error}") from None
    return clients.astype(np.int32)


def _is_missing(value: object) -> bool:
    try:
        return value is None or value == "" or bool(value != value)
    except TypeError:  # pandas.NA is neither equal nor unequal to itself
        return True


def _random_of_sizes(sizes: np.ndarray, rng: np.random.Generator) -> Clients:
    """Assign sum(sizes) examples uniformly at random so that client k has sizes[k] of them."""
    return rng.permutation(np.repeat(np.arange(sizes.size, dtype=np.int32), sizes))


PARTITIONERS: dict[str, Callable[..., Clients]] = {
    "inner_dirichlet": inner_dirichlet,
    "dirichlet": dirichlet,
    "iid": iid,
    "shards": shards,
    "pathological": pathological,
    "lognormal_sizes": lognormal_sizes,
    "dominant_classes": dominant_classes,
}
"""The partitioners that draw at random, by name: `f(labels, num_partitions, <its parameters>, seed=seed)`.

`natural_id` is not one of them: it reads a column of the data.
"""
