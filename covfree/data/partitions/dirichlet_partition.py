"""Label skew by Dirichlet draws: over the classes of each client, or over the clients of each class."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from covfree.core.checks import check_above_zero, check_choice, check_integer, check_integers
from covfree.data.partitions.partition import (
    Clients,
    by_class,
    check_federation,
    equal_sizes,
    generator,
    warn_of_left_out,
)


def inner_dirichlet(
    labels: ArrayLike,
    num_partitions: int,
    alpha: float | int,
    *,
    partition_sizes: ArrayLike | None = None,
    filling: Literal["sequential", "interleaved"] = "sequential",
    seed: int,
) -> Clients:
    """Partition with Dirichlet class proportions for each client, and given client sizes (equal by default).

    Client k draws proportions p_k ~ Dir(α·1_C) over the C classes that occur in `labels`. It takes its
    examples one by one: it draws a class from p_k, and takes a random example of that class. A class that has
    run out is dropped, and every p_k is renormalised. Implementations differ in the order of the clients:

    - "sequential": client 0 takes all its examples, then client 1, and so on, so the last clients share the
      few classes that are left. This is the order in the official code of FedNCM (Legate et al., NeurIPS
      2023, arXiv:2306.03937) and FedCOF (arXiv:2412.14326). With 100 clients on CIFAR-100 at α = 0.1, it
      gives about 2,920 pairs of client and class; the FedCOF paper counts 2,870.
    - "interleaved": every step takes one of the clients that are not yet full, uniformly. This is the order
      of Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021, arXiv:2111.04263), and
      of Flower Datasets' `InnerDirichletPartitioner`. The same setting gives about 3,370 pairs.

    Hsu et al. (arXiv:1909.06335) draw p_k ~ Dir(α·q), where q are the class frequencies, which sum to one:
    for C balanced classes their α is C times the one here. Here p_k does not depend on q: on imbalanced data
    even a large α gives clients equal shares of all classes, until the rare classes run out.

    The code draws classes without drawing p_k (Pólya's urn): if client k has drawn class c n_kc times so far,
    its next class is c with probability (α + n_kc) / Σ_c' (α + n_kc'), summed over the classes that are left.
    Dropping classes does not change this, as a Dirichlet vector restricted to some classes and renormalised
    is again Dirichlet. The distribution is that of drawn p_k, without underflow at small α, in O(n + K + C)
    time and memory.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet. The smaller, the fewer classes a client
            holds.
        partition_sizes: [K] examples for each client, ≥ 0; a sum below n leaves examples unassigned. By
            default all n examples, in sizes that differ by at most one.
        filling: the order in which clients draw, see above.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Without `partition_sizes`, every example is assigned and no client
        is empty. With it, clients of size 0 are empty and the examples left over are -1; a warning says how
        many.

    Raises:
        ValueError: an argument is out of its range, or `partition_sizes` is not [K] or sums to more than n.
        TypeError: `labels` or `partition_sizes` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = inner_dirichlet(labels, 5, alpha=0.1, seed=0)
    >>> np.bincount(clients)
    array([200, 200, 200, 200, 200])
    >>> [np.unique(labels[clients == k]).size for k in range(5)]  # of 10 classes
    [6, 6, 3, 4, 3]
    """
    labels, num_partitions = check_federation(labels, num_partitions)
    alpha = float(check_above_zero("alpha", alpha))
    check_choice("filling", filling, ("sequential", "interleaved"))
    sizes = equal_sizes(labels.size, num_partitions)
    if partition_sizes is not None:
        sizes = check_integers("partition_sizes", partition_sizes, 0)
        if sizes.size != num_partitions:
            raise ValueError(
                f"partition_sizes: expected shape [num_partitions] = [{num_partitions}], got [{sizes.size}]"
            )
        if (total := sum(sizes.tolist())) > labels.size:
            raise ValueError(
                f"partition_sizes: expected at most the {labels.size} examples in all, got {total}"
            )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    if filling == "sequential":
        slot_client = np.repeat(np.arange(num_partitions), sizes)
    else:
        slot_client = _random_turns(sizes.tolist(), rng)
    slot_class = _urn_draws(slot_client.tolist(), num_partitions, counts.tolist(), alpha, rng)

    # The j-th draw of class c gets the j-th example of c.
    order = np.argsort(slot_class, kind="stable")
    drawn = np.bincount(slot_class, minlength=counts.size)
    rank = np.arange(order.size) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    start = np.repeat(np.cumsum(counts) - counts, drawn)
    clients = np.full(labels.size, -1, np.int32)
    clients[examples[start + rank]] = slot_client[order]
    return warn_of_left_out(labels, clients)


def _random_turns(room: list[int], rng: np.random.Generator) -> np.ndarray:
    """Draw a random sequence of clients in which client k occurs ``room[k]`` times.

    Each entry is uniform over the clients that do not yet occur as often as they must.
    """
    uniform = _uniforms(rng).__next__
    clients = _OpenSet(room)
    turns = []
    for _ in range(sum(room)):
        client = clients.items[int(uniform() * len(clients.items))]
        turns.append(client)
        clients.use(client)
    return np.array(turns, np.int64)


def _urn_draws(
    turns: list[int], num_clients: int, counts: list[int], alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw the class of each example that clients get in turn: `turns` has the client of each example.

    Class c has `counts[c]` examples; it is open while some are left, and `fresh` classes are open. An open
    class c is drawn with probability (α + n_c) / (α·fresh + m). Here α is `alpha`, n_c is how often this
    client drew class c before, and m is the sum of n_c over the open classes. Each draw has two cases. With
    probability α·fresh / (α·fresh + m), any open class is taken, uniformly. Otherwise one of the client's
    earlier draws (its urn) is picked uniformly, and the class of this draw is taken. If that class has run
    out, the draw leaves the urn and both steps are repeated; this rejection sampling gives the same
    distribution.
    """
    uniform = _uniforms(rng).__next__
    classes = _OpenSet(counts)
    urns: list[list[int]] = [[] for _ in range(num_clients)]
    slot_class = []
    for client in turns:
        urn = urns[client]
        while True:
            fresh = len(classes.items)
            # True with probability α·fresh / (α·fresh + m), where m = len(urn). Both terms are divided by α,
            # so that no α gives overflow or 0/0.
            if uniform() * (fresh + len(urn) / alpha) < fresh:
                drawn = classes.items[int(uniform() * fresh)]
                break
            i = int(uniform() * len(urn))
            drawn = urn[i]
            if classes.left[drawn]:
                break
            urn[i] = urn[-1]
            urn.pop()
        urn.append(drawn)
        slot_class.append(drawn)
        classes.use(drawn)
    return np.array(slot_class, np.int64)


class _OpenSet:
    """Counts that are used up one by one, such as the number of examples of each class that are still free.

    ``left[i]`` is what is left of count i. `items` lists, in no order, each i whose ``left[i]`` is above 0.
    `use` lowers a count by one and updates `items`, in constant time.
    """

    def __init__(self, numbers: list[int]):
        self.left = list(numbers)
        self.items = [i for i, number in enumerate(numbers) if number]
        self._place = {item: place for place, item in enumerate(self.items)}

    def use(self, item: int) -> None:
        """Decrease ``left[item]`` by one; if it is 0 then, remove the index ``item`` from `items`."""
        self.left[item] -= 1
        if not self.left[item]:
            place, last = self._place.pop(item), self.items.pop()
            if last != item:
                self.items[place] = last
                self._place[last] = place


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Yield uniform numbers in [0, 1) without end, drawn in blocks, as NumPy is slow for single numbers."""
    while True:
        yield from rng.random(4096).tolist()


def dirichlet(
    labels: ArrayLike,
    num_partitions: int,
    alpha: float | int | ArrayLike,
    *,
    min_partition_size: int = 0,
    self_balancing: bool = False,
    max_attempts: int = 10,
    seed: int,
) -> Clients:
    """Partition with Dirichlet proportions over the clients for each class: both label and quantity skew.

    For each class c with N_c examples, p_c ~ Dir(α·1_K) over the K clients, and client k gets N_c·p_ck of
    them, up to rounding: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks"
    (ICML 2019, arXiv:1905.12022), and Flower Datasets' `DirichletPartitioner`. Client sizes are random.

    The rounding is systematic: with u uniform in [0, 1) and P the cumulative sums of p_c, client k gets the
    class's examples from ⌊N_c·P_c,k-1 + u⌋ to ⌊N_c·P_ck + u⌋. So the expected number is N_c·p_ck, and the
    actual one differs by less than one. Rounding down (u = 0) would give the last client an example of nearly
    every class.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet; or [K] one for each client, Dir(α_1, …,
            α_K). The smaller, the fewer clients hold most of a class. Client k's mean share of a class is
            α_k/Σα.
        min_partition_size: redraw everything until each client has at least this many examples.
        self_balancing: go through the classes in ascending order, and give no more to a client that holds
            more than n/K examples. Client sizes become more even, and fewer clients share the later classes.
        max_attempts: the largest number of draws to reach `min_partition_size`.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Every example is assigned; clients may be empty unless
        `min_partition_size` is at least 1.

    Raises:
        ValueError: an argument is out of its range, or `max_attempts` draws all had a client of fewer than
            `min_partition_size` examples.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = dirichlet(labels, 5, alpha=0.5, seed=0)
    >>> np.bincount(clients, minlength=5)
    array([240, 306, 166, 172, 116])
    """
    labels, num_partitions = check_federation(labels, num_partitions)
    concentration = _concentration(alpha, num_partitions)
    min_partition_size = check_integer("min_partition_size", min_partition_size, 0)
    max_attempts = check_integer("max_attempts", max_attempts, 1)
    if min_partition_size * num_partitions > labels.size:
        raise ValueError(
            f"min_partition_size: expected at most n / num_partitions = {labels.size / num_partitions:g}, "
            f"got {min_partition_size}"
        )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    smallest = 0
    for _ in range(max_attempts):
        owners = _class_splits(counts.tolist(), concentration, self_balancing, rng)
        smallest = int(np.bincount(owners, minlength=num_partitions).min())
        if smallest >= min_partition_size:
            clients = np.empty(labels.size, np.int32)
            clients[examples] = owners
            return clients
    raise ValueError(
        f"min_partition_size = {min_partition_size} was not met in max_attempts = {max_attempts} draws with "
        f"alpha = {alpha}, num_partitions = {num_partitions} (smallest client of the last: {smallest}); "
        "use a larger alpha, fewer partitions, self_balancing=True or a smaller min_partition_size"
    )


def _concentration(alpha: object, num_partitions: int) -> np.ndarray:
    """Return the concentration α_k of each client, from ``alpha``: one number for all, or one for each.

    If any is above 1e100, all are scaled down by one factor.
    """
    if np.ndim(alpha) == 0:  # pyright: ignore
        given = np.full(num_partitions, float(check_above_zero("alpha", alpha)))
    else:
        given = np.asarray(alpha, np.float64)
        if given.shape != (num_partitions,):
            raise ValueError(
                f"alpha: expected a number, or [num_partitions] = [{num_partitions}] of them, got shape "
                f"{list(given.shape)}"
            )
        for value in given.tolist():
            check_above_zero("alpha", value)
    # Scale α to at most 1e100, where proportions are already α_k/Σα to the last bit: beyond, NumPy overflows.
    return given / max(1, given.max() / 1e100)


def _class_splits(
    counts: list[int], alpha: np.ndarray, self_balancing: bool, rng: np.random.Generator
) -> np.ndarray:
    """Draw one partition for `dirichlet`: divide the examples of each class among the clients.

    Args:
        counts: the number of examples of each class.
        alpha: [clients] the Dirichlet distribution's concentration for each client.
        self_balancing: see `dirichlet`.
        rng: the source of all draws.

    Returns:
        The client of each example: first of the examples of class 0, then of class 1, and so on.
    """
    num_partitions = alpha.size
    average = sum(counts) / num_partitions
    sizes = np.zeros(num_partitions, np.int64)
    splits = []
    for count in counts:
        # Full clients get no more examples. Setting their proportions to 0 and renormalising is the same as
        # drawing a Dirichlet vector for the others alone. Not all clients can be full: their sizes would sum
        # to more than n.
        open_clients = np.flatnonzero(sizes <= average) if self_balancing else np.arange(num_partitions)
        cumulative = np.cumsum(rng.dirichlet(alpha[open_clients]))
        cuts = np.minimum(np.floor(cumulative * count + rng.random()), count)
        cuts[-1] = count  # the sum of the proportions may be rounded below 1
        given = np.diff(cuts, prepend=0).astype(np.int64)
        sizes[open_clients] += given
        splits.append(np.repeat(open_clients, given))
    return np.concatenate(splits).astype(np.int32)
