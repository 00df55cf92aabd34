"""Label skew by Dirichlet draws: over the classes of each client, or over the clients of each class."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from covfree.federation._arguments import (
    Clients,
    by_class,
    check_integer,
    check_integers,
    check_num_partitions,
    check_real,
    equal_sizes,
    generator,
)


def inner_dirichlet(
    labels: ArrayLike,
    num_partitions: int,
    alpha: float | int,
    *,
    partition_sizes: ArrayLike | None = None,
    seed: int,
) -> Clients:
    """Dirichlet class proportions for each client, with client sizes given (equal by default).

    Client k draws proportions p_k ~ Dir(α·1_C) over the C classes that occur in `labels`. Then, until all clients are
    full, one of those that are not is picked uniformly; it draws a class from its p_k and gets a random example of it.
    A class that has run out is dropped, and every p_k renormalised over the rest. This is the law of Acar et al.,
    "Federated Learning Based on Dynamic Regularization" (ICLR 2021, arXiv:2111.04263), used by the FedCOF paper with
    α = 0.1, and of Flower Datasets' `InnerDirichletPartitioner`.

    Hsu et al. (arXiv:1909.06335) draw p_k ~ Dir(α·q) with q the class frequencies, which sum to one: for C balanced
    classes their α is C times the one here. The law here knows nothing of q: on imbalanced data even a large α gives
    clients equal shares of all classes for as long as the rare ones last.

    The p_k are never formed. Given the classes c that client k has drawn n_kc times so far, its next draw is c with
    probability (α + n_kc) / Σ_c' (α + n_kc'), the sums over the classes that are left (Pólya's urn; a Dirichlet
    vector restricted to some classes and renormalised is Dirichlet again, so the dropping of classes changes nothing).
    That is the same law, without underflow at small α, in O(n + clients + classes) time and memory.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet. The smaller, the fewer classes a client holds.
        partition_sizes: [K] examples for each client, ≥ 0; a sum below n leaves examples unassigned. By default all n
            examples in sizes that differ by at most one.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Without `partition_sizes`, every example is assigned and no client is empty.
        With it, clients of size 0 are empty and the examples left over are -1.

    Raises:
        ValueError: an argument is out of its range, or `partition_sizes` is not [K] or sums to more than n.
        TypeError: `labels` or `partition_sizes` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = inner_dirichlet(labels, 5, alpha=0.1, seed=0)
    >>> np.bincount(clients)
    array([200, 200, 200, 200, 200])
    >>> [np.unique(labels[clients == k]).size for k in range(5)]  # of 10 classes
    """
    labels = check_integers("labels", labels, minimum=0)
    num_partitions = check_num_partitions(num_partitions, labels.size)
    alpha = check_real("alpha", alpha, above=0)
    sizes = equal_sizes(labels.size, num_partitions)
    if partition_sizes is not None:
        sizes = check_integers("partition_sizes", partition_sizes, minimum=0)
        if sizes.size != num_partitions:
            raise ValueError(f"partition_sizes must be [num_partitions] = [{num_partitions}], got [{sizes.size}]")
        if sum(sizes.tolist()) > labels.size:
            raise ValueError(
                f"partition_sizes must sum to at most the number of examples, {labels.size}, got {sizes.sum()}"
            )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    slot_client, slot_class = _urn_draws(counts.tolist(), sizes.tolist(), alpha, rng)

    # The j-th slot that drew class c gets the j-th example of c.
    order = np.argsort(slot_class, kind="stable")
    drawn = np.bincount(slot_class, minlength=counts.size)
    rank = np.arange(order.size) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    start = np.repeat(np.cumsum(counts) - counts, drawn)
    clients = np.full(labels.size, -1, np.int32)
    clients[examples[start + rank]] = slot_client[order]
    return clients


def _urn_draws(
    left: list[int], room: list[int], alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The draws of `inner_dirichlet` in their order in time: the client and the class of each.

    `left[c]` examples of class c and `room[k]` places at client k, both used up in place. With m earlier draws by the
    client, all of classes still open, of which there are `fresh`, the urn's law (α + n_c) / (α·fresh + m) is a mixture:
    with probability α·fresh / (α·fresh + m) any open class uniformly, otherwise the class of a uniformly chosen earlier
    draw. An earlier draw of a class that has since run out leaves the urn when it is met, and the choice is made anew,
    which is rejection sampling from the same law.
    """
    uniform = _uniforms(rng).__next__
    classes, clients = _OpenSet(left), _OpenSet(room)
    held: list[list[int]] = [[] for _ in room]
    slot_client, slot_class = [], []
    for _ in range(sum(room)):
        client = clients.items[int(uniform() * len(clients.items))]
        mine = held[client]
        while True:
            fresh = len(classes.items)
            # α·fresh / (α·fresh + m) compared in a form that neither overflows nor is 0/0 at any α.
            if uniform() * (fresh + len(mine) / alpha) < fresh:
                drawn = classes.items[int(uniform() * fresh)]
                break
            i = int(uniform() * len(mine))
            drawn = mine[i]
            if left[drawn]:
                break
            mine[i] = mine[-1]
            mine.pop()
        mine.append(drawn)
        slot_client.append(client)
        slot_class.append(drawn)
        for remaining, opened, key in ((left, classes, drawn), (room, clients, client)):
            remaining[key] -= 1
            if not remaining[key]:
                opened.remove(key)
    return np.array(slot_client, np.int32), np.array(slot_class, np.int64)


class _OpenSet:
    """The indices whose number is above 0, with removal in constant time; `items` is in no particular order."""

    def __init__(self, numbers: list[int]):
        self.items = [i for i, number in enumerate(numbers) if number]
        self._place = {item: place for place, item in enumerate(self.items)}

    def remove(self, item: int) -> None:
        place, last = self._place.pop(item), self.items.pop()
        if last != item:
            self.items[place] = last
            self._place[last] = place


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Endless uniform numbers in [0, 1), drawn in blocks, as one at a time is 20 times slower."""
    while True:
        yield from rng.random(4096).tolist()


def dirichlet(
    labels: ArrayLike,
    num_partitions: int,
    alpha: float | int,
    *,
    min_partition_size: int = 0,
    self_balancing: bool = False,
    max_attempts: int = 10,
    seed: int,
) -> Clients:
    """Dirichlet proportions over the clients for each class: label skew and quantity skew in one.

    For each class c, p_c ~ Dir(α·1_K) over the K clients, and client k gets N_c·p_ck of its N_c examples, up to
    rounding: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks" (ICML 2019,
    arXiv:1905.12022), and Flower Datasets' `DirichletPartitioner`. The size of a client is random.

    The rounding is systematic: with u uniform in [0, 1), client k gets the examples from ⌊N_c·P_c,k-1 + u⌋ to
    ⌊N_c·P_ck + u⌋, P the cumulative sums of p_c. So its number is N_c·p_ck on average and within one of it always.
    Plain floors (u = 0) would hand the last client an example of nearly every class.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet. The smaller, the more a class sits on few clients.
        min_partition_size: redraw everything until each client has this many examples.
        self_balancing: in ascending order of classes, give no more to a client that holds more than n/K examples.
            Client sizes come out more even, and the later classes on fewer clients.
        max_attempts: draws made before giving up on `min_partition_size`.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Every example is assigned; clients may be empty unless `min_partition_size`
        is at least 1.

    Raises:
        ValueError: an argument is out of its range, or `max_attempts` draws all had a client of fewer than
            `min_partition_size` examples.
        TypeError: `labels` are not integers, or a scalar is of the wrong type.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = dirichlet(labels, 5, alpha=0.5, seed=0)
    >>> np.bincount(clients, minlength=5)
    """
    labels = check_integers("labels", labels, minimum=0)
    num_partitions = check_num_partitions(num_partitions, labels.size)
    # The proportions are uniform to the last bit well below the upper bound, and NumPy's draw overflows above it.
    alpha = min(check_real("alpha", alpha, above=0), 1e100)
    min_partition_size = check_integer("min_partition_size", min_partition_size, minimum=0)
    max_attempts = check_integer("max_attempts", max_attempts, minimum=1)
    if min_partition_size * num_partitions > labels.size:
        raise ValueError(
            f"min_partition_size must be at most n / num_partitions = {labels.size / num_partitions:g}, "
            f"got {min_partition_size}"
        )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    largest_minimum = 0
    for _ in range(max_attempts):
        split = [_split_class(int(n), sizes, alpha, self_balancing, labels.size, rng) for n, sizes in _totals]
    raise ValueError
