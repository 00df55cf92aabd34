"""Partitions with few classes for each client: shards of sorted examples, or a fixed number of classes."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from covfree.core.checks import check_choice, check_integer, check_share
from covfree.data.partitions.partition import (
    Clients,
    by_class,
    check_federation,
    equal_sizes,
    generator,
    warn_of_left_out,
)


def shards(
    labels: ArrayLike,
    num_partitions: int,
    num_shards_per_partition: int | None = None,
    *,
    shard_size: int | None = None,
    seed: int,
) -> Clients:
    """Sort the examples by label, cut them into shards, and give the shards to clients at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017,
    arXiv:1602.05629), use two shards a client, so that most clients hold two classes. The arguments are those
    of Flower Datasets' `ShardPartitioner`:

    - `num_shards_per_partition` alone: all examples are cut into shards whose sizes differ by at most one,
      and each client gets this many shards.
    - both numbers: each client gets `num_shards_per_partition` shards of exactly `shard_size` examples;
      the other examples stay unassigned.
    - `shard_size` alone: all complete shards are given out, and the clients' numbers of shards differ by at
      most one. The remaining examples stay unassigned.

    Args:
        labels: [n] class of each example, integers ≥ 0. Ties are sorted at random.
        num_partitions: the number of clients K, at most n.
        num_shards_per_partition: shards for each client, ≥ 1.
        shard_size: examples in a shard, ≥ 1.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example; -1 for those that `shard_size` leaves over, whose number a warning
        gives. No client is empty.

    Raises:
        ValueError: neither number is given, one is out of its range, there are too few examples for the
            shards asked for or too few shards for the clients.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(4), 6)
    >>> shards(labels, 4, 2, seed=0).reshape(4, 6)  # a row holds the clients of a class
    array([[0, 0, 2, 2, 2, 0],
           [0, 1, 1, 1, 0, 0],
           [3, 3, 2, 2, 3, 2],
           [1, 3, 3, 1, 1, 3]], dtype=int32)
    """
    labels, num_partitions = check_federation(labels, num_partitions)
    if shard_size is not None:
        shard_size = check_integer("shard_size", shard_size, 1)
    if num_shards_per_partition is not None:
        per_client = check_integer("num_shards_per_partition", num_shards_per_partition, 1)
        dealt = num_partitions * per_client
        if dealt * (shard_size or 1) > labels.size:
            raise ValueError(
                "num_partitions × num_shards_per_partition × shard_size: expected at most the number of "
                f"examples, {labels.size}, got {num_partitions} × {per_client} × {shard_size or 1}"
            )
        if shard_size is None:
            lengths = equal_sizes(labels.size, dealt)
        else:
            lengths = np.full(labels.size // shard_size, shard_size)
        shards_of_client = np.full(num_partitions, per_client)
    elif shard_size is not None:
        lengths = np.full(labels.size // shard_size, shard_size)
        if lengths.size < num_partitions:
            raise ValueError(
                f"shard_size: expected at least one shard for each of the {num_partitions} partitions, "
                f"got {shard_size}, which makes {lengths.size} of {labels.size} examples"
            )
        shards_of_client = equal_sizes(lengths.size, num_partitions)
    else:
        raise ValueError("num_shards_per_partition: expected a number, or a shard_size, got None for both")

    rng = generator(seed)
    examples, _, _ = by_class(labels, rng)
    owner = np.full(lengths.size, -1, np.int32)
    dealt_shards = rng.permutation(lengths.size)[: shards_of_client.sum()]
    owner[dealt_shards] = np.repeat(np.arange(num_partitions), shards_of_client)
    clients = np.full(labels.size, -1, np.int32)
    clients[examples[: lengths.sum()]] = np.repeat(owner, lengths)
    return warn_of_left_out(labels, clients)


def pathological(
    labels: ArrayLike,
    num_partitions: int,
    num_classes_per_partition: int,
    *,
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] = "random",
    seed: int,
) -> Clients:
    """Give each client an exact number of classes; clients with the same class share it evenly.

    From Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study" (ICDE 2022,
    arXiv:2102.02079), who use "first-deterministic", and Flower Datasets' `PathologicalPartitioner`.
    `labels` has C distinct classes, in ascending order. By `class_assignment_mode`, client k gets

    - "random": classes drawn uniformly without replacement;
    - "deterministic": the classes k, k + 1, … modulo C. With one class a client and as many clients as
      classes, it is Fed3R's split of CIFAR-100 (Fanì et al. 2024, α = 0), which assigns all examples;
    - "first-deterministic": class k modulo C, and other classes drawn as in "random".

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        num_classes_per_partition: classes for each client, from 1 to C.
        class_assignment_mode: how the classes are chosen, see above.
        seed: seed of the draw, ≥ 0. It also decides which examples of a class each of its clients gets.

    Returns:
        [n] int32 client of each example. No client is empty. The examples of a class that no client has are
        -1, and a warning says how many. This can happen with "random" at any K, with "deterministic" only if
        K < C - `num_classes_per_partition` + 1, and with "first-deterministic" only if K < C. With "random"
        each class is left out with probability (1 - `num_classes_per_partition`/C)^K: with one class for
        each of 100 clients, 37 of 100 classes on average.

    Raises:
        ValueError: an argument is out of its range, or more clients have a class than it has examples.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(4), 6)
    >>> clients = pathological(labels, 4, 2, class_assignment_mode="deterministic", seed=0)
    >>> [np.unique(labels[clients == k]).tolist() for k in range(4)]
    [[0, 1], [1, 2], [2, 3], [0, 3]]
    """
    labels, num_partitions = check_federation(labels, num_partitions)
    per_client = check_integer("num_classes_per_partition", num_classes_per_partition, 1)
    rng = generator(seed)
    examples, counts, values = by_class(labels, rng)
    if per_client > counts.size:
        raise ValueError(
            f"num_classes_per_partition: expected at most the number of classes in labels, {counts.size}, "
            f"got {per_client}"
        )
    chosen = np.concatenate(
        list(_class_choices(class_assignment_mode, num_partitions, per_client, counts.size, rng))
    )
    holders = np.bincount(chosen, minlength=counts.size)
    short = np.flatnonzero(holders > counts)
    if short.size:
        c = short[0]
        raise ValueError(
            f"class {values[c]} falls to {holders[c]} clients but has {counts[c]} examples; use a smaller "
            'num_partitions or num_classes_per_partition, or class_assignment_mode="deterministic"'
        )

    # `chosen` lists client 0's classes, then client 1's, and so on. Compute the client of each entry, with
    # the entries sorted by class, as `examples` are, and within a class by client.
    client_of_choice = np.repeat(np.arange(num_partitions), per_client)[np.argsort(chosen, kind="stable")]
    clients = np.full(labels.size, -1, np.int32)
    first_holder, first_example = np.cumsum(holders) - holders, np.cumsum(counts) - counts
    for c in np.flatnonzero(holders):
        held_by = client_of_choice[first_holder[c] : first_holder[c] + holders[c]]
        of_class = examples[first_example[c] : first_example[c] + counts[c]]
        clients[of_class] = np.repeat(held_by, equal_sizes(of_class.size, held_by.size))
    return warn_of_left_out(labels, clients)


def _class_choices(
    mode: str, num_partitions: int, per_client: int, num_classes: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the `per_client` classes of each client in turn, as indices below `num_classes`.

    `mode` is the `class_assignment_mode` of `pathological`.
    """
    check_choice("class_assignment_mode", mode, ("random", "deterministic", "first-deterministic"))
    for k in range(num_partitions):
        first = k % num_classes
        if mode == "random":
            yield rng.choice(num_classes, per_client, replace=False)
        elif mode == "deterministic":
            yield (first + np.arange(per_client)) % num_classes
        else:
            # Distances of the other classes from the first, drawn from 1 to num_classes - 1.
            others = 1 + rng.choice(num_classes - 1, per_client - 1, replace=False) if per_client > 1 else []
            yield (first + np.concatenate([[0], others]).astype(np.int64)) % num_classes


def dominant_classes(
    labels: ArrayLike,
    num_partitions: int,
    uniform_share: float,
    *,
    num_shards_per_partition: int = 2,
    seed: int,
) -> Clients:
    """Give each client a share of examples from all classes, and the rest from a few dominant classes.

    Personalised methods are compared on such partitions. Guan et al. (FedCGS, AAAI 2025) take a uniform share
    of 20 % and clients of equal size, but do not say how many classes dominate, nor how examples are drawn.
    Here a random share `uniform_share` of all examples is divided as by `iid`. The other examples are sorted
    by label, cut into shards and given out as by `shards`.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        uniform_share: share of the examples that come from all classes, from 0 to 1.
        num_shards_per_partition: shards of the sorted examples for each client, ≥ 1. About this many classes
            dominate.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. No client is empty; sizes differ by at most one.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(4), 100)
    >>> clients = dominant_classes(labels, 4, 0.2, num_shards_per_partition=1, seed=0)
    >>> np.stack([np.bincount(labels[clients == k]) for k in range(4)])
    array([[85,  5,  6,  4],
           [ 5, 83,  4,  8],
           [ 6,  2, 10, 82],
           [ 4, 10, 80,  6]])
    """
    labels, num_partitions = check_federation(labels, num_partitions)
    share = float(check_share("uniform_share", uniform_share))
    per_client = check_integer("num_shards_per_partition", num_shards_per_partition, 1)
    rng = generator(seed)
    sizes = equal_sizes(labels.size, num_partitions)
    # Round the cumulated sizes, not each client's: then all clients' uniform parts add up to `uniform_share`
    # of all examples.
    uniform = np.diff(np.rint(share * np.append(0, np.cumsum(sizes))).astype(np.int64))
    order = rng.permutation(labels.size)
    clients = np.empty(labels.size, np.int32)
    clients[order[: uniform.sum()]] = np.repeat(np.arange(num_partitions), uniform)
    others = order[uniform.sum() :]
    if others.size:
        lengths = np.stack([equal_sizes(int(rest), per_client) for rest in sizes - uniform])
        dealt = rng.permutation(lengths.size)
        examples, _, _ = by_class(labels[others], rng)
        clients[others[examples]] = np.repeat(dealt // per_client, lengths.ravel()[dealt])
    return clients
