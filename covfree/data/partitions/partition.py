"""Partitions that do not use the labels, and functions that all partitioners share."""

import warnings

import numpy as np
from jaxtyping import Int32, Int64
from numpy.typing import ArrayLike

from covfree.core.checks import check_integer, check_integers, check_strength

Clients = Int32[np.ndarray, "n"]
"""The client of each example; -1 marks an example that no client holds."""


def iid(labels: ArrayLike | int, num_partitions: int, *, seed: int) -> Clients:
    """Partition uniformly at random into clients of equal size.

    Like Flower Datasets' `IidPartitioner`, but the examples are shuffled first.

    Args:
        labels: [n] class of each example, integers ≥ 0, or only their number n: labels are not used.
        num_partitions: the number of clients K, at most n.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Every example is assigned; sizes differ by at most one, none is 0.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> np.bincount(iid(1000, 3, seed=0))
    array([334, 333, 333])
    """
    num_examples, num_partitions = _sizes(labels, num_partitions)
    return _random_of_sizes(equal_sizes(num_examples, num_partitions), generator(seed))


def lognormal_sizes(
    labels: ArrayLike | int, num_partitions: int, sigma: float | int, *, seed: int
) -> Clients:
    """Partition uniformly at random into clients of lognormal sizes: quantity skew.

    Client k has the weight w_k = exp(σ·z_k), with z_k standard normal. Each client gets one example, and the
    other n - K are divided in proportion to w_k, rounded by largest remainders. Acar et al. (ICLR 2021,
    arXiv:2111.04263) use lognormal client sizes for unbalanced federations; Li et al., "Federated
    Optimization in Heterogeneous Networks" (MLSys 2020, arXiv:1812.06127), with σ = 2 for synthetic data.

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
    num_examples, num_partitions = _sizes(labels, num_partitions)
    sigma = float(check_strength("sigma", sigma))
    rng = generator(seed)
    # Subtract the largest z, so that no weight overflows for any σ.
    z = rng.standard_normal(num_partitions)
    weights = np.exp(sigma * (z - z.max()))
    shares = (num_examples - num_partitions) * (weights / weights.sum())
    sizes = np.floor(shares).astype(np.int64)
    leftover = num_examples - num_partitions - int(sizes.sum())
    sizes[np.argsort(sizes - shares, kind="stable")[:leftover]] += 1
    return _random_of_sizes(sizes + 1, rng)


def natural_id(ids: ArrayLike) -> Clients:
    """Partition by ids in the data: one client for each distinct id (user, hospital, writer, …).

    Like Flower Datasets' `NaturalIdPartitioner`. Nothing is random: client k has the k-th smallest id,
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
    # Keep Python objects: NumPy would convert a NaN among strings to the id "nan".
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)  # pyright: ignore
    if not values or isinstance(values[0], list):
        raise ValueError(f"ids: expected one for each example, got shape {list(np.shape(ids))}")
    for row, value in enumerate(values):
        if value is None or value == "" or value != value:
            raise ValueError(
                f"ids: expected an id for each example, got {value!r} at row {row}; drop such rows or give "
                "them an id"
            )
    try:
        return np.unique(np.fromiter(values, object), return_inverse=True)[1].astype(np.int32)
    except TypeError as error:
        raise TypeError(f"ids: expected ids of one type that can be sorted, got {error}") from None


def _random_of_sizes(sizes: np.ndarray, rng: np.random.Generator) -> Clients:
    """Assign sum(sizes) examples uniformly at random so that client k has sizes[k] of them."""
    return rng.permutation(np.repeat(np.arange(sizes.size, dtype=np.int32), sizes))


def warn_of_left_out(labels: np.ndarray, clients: Clients) -> Clients:
    """Warn how many examples, and how many whole classes, are on no client; return `clients` unchanged."""
    held = clients >= 0
    if not held.all():
        classes = np.unique(labels).size - np.unique(labels[held]).size
        # Level 3 is the line that called the partitioner.
        warnings.warn(
            f"on no client: {labels.size - held.sum():,} of {labels.size:,} examples, with all examples of "
            f"{classes:,} class{'es' if classes != 1 else ''}",
            stacklevel=3,
        )
    return clients


def check_federation(labels: ArrayLike, num_partitions: object) -> tuple[np.ndarray, int]:
    """Return the labels [n] as an array, and the number of clients K, after checking 1 ≤ K ≤ n.

    With more clients than examples, some clients would have to be empty.
    """
    labels, count = check_integers("labels", labels, 0), check_integer("num_partitions", num_partitions, 1)
    if count > labels.size:
        raise ValueError(
            f"num_partitions: expected at most the number of examples, {labels.size}, got {count}"
        )
    return labels, count


def _sizes(labels: ArrayLike | int, num_partitions: object) -> tuple[int, int]:
    """Return n and K, see `check_federation`, given labels or n itself."""
    if np.ndim(labels) == 0:
        labels = np.broadcast_to(0, check_integer("labels", labels, 1))
    labels, count = check_federation(labels, num_partitions)
    return labels.size, count


def generator(seed: object) -> np.random.Generator:
    """Return a fresh generator for an integer seed of at least 0."""
    return np.random.default_rng(check_integer("seed", seed, 0))


def equal_sizes(num_examples: int, num_partitions: int) -> Int64[np.ndarray, "clients"]:
    """Return sizes that sum to `num_examples` and differ by at most one, the larger ones first."""
    sizes = np.full(num_partitions, num_examples // num_partitions, np.int64)
    sizes[: num_examples % num_partitions] += 1
    return sizes


def by_class(
    labels: np.ndarray, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "classes"], np.ndarray]:
    """List the examples class by class, in random order within a class.

    Returns:
        `(examples, counts, values)`: `examples [n]` holds first the `counts[0]` examples of label
        `values[0]`, then those of `values[1]`, and so on. Only labels that occur are listed, in ascending
        order.
    """
    shuffled = rng.permutation(labels.size)
    values, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    examples = shuffled[np.argsort(codes[shuffled], kind="stable")]
    return examples, counts, values


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a mask [examples] of a test part: a random third of each class, rounded down."""
    examples, sizes, _ = by_class(labels, np.random.default_rng(seed))
    rank = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.zeros(labels.size, bool)
    is_test[examples] = rank < np.repeat(sizes // 3, sizes)
    return is_test
