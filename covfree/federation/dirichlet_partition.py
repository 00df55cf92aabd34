"""Label skew by Dirichlet draws: over the classes of each client, or over the clients of each class."""

from collections.abc import Iterator
from typing import Literal

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
    filling: Literal["sequential", "interleaved"] = "sequential",
    seed: int,
) -> Clients:
    """Dirichlet class proportions for each client, with client sizes given (equal by default).

    Client k draws proportions p_k ~ Dir(α·1_C) over the C classes that occur in `labels`. It fills its places
    one by one: draw a class from p_k, take a random example of it. A class that has run out is dropped, and
    every p_k is renormalised over the rest. What differs between implementations is whose turn it is:

    - "sequential": client 0 is filled, then client 1, and so on, so that the last clients share the few
      classes that are left. So do the official codes of FedNCM (Legate et al., NeurIPS 2023,
      arXiv:2306.03937) and FedCOF (arXiv:2412.14326). FedCOF's 100 clients on CIFAR-100 at α = 0.1 hold about
      2,920 pairs of client and class by this law; the paper counts 2,870.
    - "interleaved": at every step one of the clients that are not yet full, uniformly. So do Acar et al.,
      "Federated Learning Based on Dynamic Regularization" (ICLR 2021, arXiv:2111.04263), and Flower Datasets'
      `InnerDirichletPartitioner`. The same setting gives about 3,370 pairs.

    Hsu et al. (arXiv:1909.06335) draw p_k ~ Dir(α·q) with q the class frequencies, which sum to one: for C
    balanced classes their α is C times the one here. The law here knows nothing of q: on imbalanced data even
    a large α gives clients equal shares of all classes for as long as the rare ones last.

    The p_k are never formed. Given the classes c that client k has drawn n_kc times so far, its next draw is
    c with probability (α + n_kc) / Σ_c' (α + n_kc'), sums over the classes that are left (Pólya's urn; a
    Dirichlet vector restricted to some classes and renormalised is a Dirichlet again, so dropping classes
    changes nothing). That is the same law, without underflow at small α, in O(n + clients + classes) time and
    memory.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet. The smaller, the fewer classes a client
            holds.
        partition_sizes: [K] examples for each client, ≥ 0; a sum below n leaves examples unassigned. By
            default all n examples, in sizes that differ by at most one.
        filling: whose turn it is to draw, see above.
        seed: seed of the draw, ≥ 0.

    Returns:
        [n] int32 client of each example. Without `partition_sizes`, every example is assigned and no client
        is empty. With it, clients of size 0 are empty and the examples left over are -1.

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
    labels = check_integers("labels", labels, minimum=0)
    num_partitions = check_num_partitions(num_partitions, labels.size)
    alpha = check_real("alpha", alpha, above=0.0)
    sizes = equal_sizes(labels.size, num_partitions)
    if partition_sizes is not None:
        sizes = check_integers("partition_sizes", partition_sizes, minimum=0)
        if sizes.size != num_partitions:
            raise ValueError(
                f"partition_sizes must be [num_partitions] = [{num_partitions}], got [{sizes.size}]"
            )
        if (total := sum(sizes.tolist())) > labels.size:
            raise ValueError(
                f"partition_sizes must sum to at most the number of examples, {labels.size}, got {total}"
            )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    if filling == "sequential":
        slot_client = np.repeat(np.arange(num_partitions), sizes)
    elif filling == "interleaved":
        slot_client = _random_turns(sizes.tolist(), rng)
    else:
        raise ValueError(f"filling must be 'sequential' or 'interleaved', got {filling!r}")
    slot_class = _urn_draws(slot_client.tolist(), num_partitions, counts.tolist(), alpha, rng)

    # The j-th slot that drew class c gets the j-th example of c.
    order = np.argsort(slot_class, kind="stable")
    drawn = np.bincount(slot_class, minlength=counts.size)
    rank = np.arange(order.size) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    start = np.repeat(np.cumsum(counts) - counts, drawn)
    clients = np.full(labels.size, -1, np.int32)
    clients[examples[start + rank]] = slot_client[order]
    return clients


def _random_turns(room: list[int], rng: np.random.Generator) -> np.ndarray:
    """Clients in the order in which they draw, each step one with `room` left, uniformly."""
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
    """Draw a class for each turn of a client, when there are `counts` examples of the classes.

    With m earlier draws by the client, all of classes still open, of which there are `fresh`, the urn's law
    (α + n_c) / (α·fresh + m) is a mixture: with probability α·fresh / (α·fresh + m) any open class uniformly,
    otherwise the class of a uniformly chosen earlier draw. An earlier draw of a class that has since run out
    leaves the urn when it is met, and the choice is made anew: rejection sampling, which keeps the law.
    """
    uniform = _uniforms(rng).__next__
    classes = _OpenSet(counts)
    urns: list[list[int]] = [[] for _ in range(num_clients)]
    slot_class = []
    for client in turns:
        urn = urns[client]
        while True:
            fresh = len(classes.items)
            # α·fresh / (α·fresh + m) compared in a form that neither overflows nor is 0/0 at any α.
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
    """Which indices have some `left`: `items`, in no particular order, updated in constant time."""

    def __init__(self, numbers: list[int]):
        self.left = list(numbers)
        self.items = [i for i, number in enumerate(numbers) if number]
        self._place = {item: place for place, item in enumerate(self.items)}

    def use(self, item: int) -> None:
        """Take one of `item`, which closes when it was the last."""
        self.left[item] -= 1
        if not self.left[item]:
            place, last = self._place.pop(item), self.items.pop()
            if last != item:
                self.items[place] = last
                self._place[last] = place


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Endless uniform numbers in [0, 1), drawn in blocks, as NumPy is slow to draw one at a time."""
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

    For each class c, p_c ~ Dir(α·1_K) over the K clients, and client k gets N_c·p_ck of its N_c examples, up
    to rounding: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks" (ICML 2019,
    arXiv:1905.12022), and Flower Datasets' `DirichletPartitioner`. The size of a client is random.

    The rounding is systematic: with u uniform in [0, 1), client k gets the examples from ⌊N_c·P_c,k-1 + u⌋ to
    ⌊N_c·P_ck + u⌋, P the cumulative sums of p_c. So its number is N_c·p_ck on average and within one of it
    always. Plain floors (u = 0) would hand the last client an example of nearly every class.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        num_partitions: the number of clients K, at most n.
        alpha: α > 0, the concentration of the symmetric Dirichlet. The smaller, the more a class sits on few
            clients.
        min_partition_size: redraw everything until each client has this many examples.
        self_balancing: in ascending order of classes, give no more to a client that holds more than n/K
            examples. Client sizes come out more even, and the later classes on fewer clients.
        max_attempts: draws made before giving up on `min_partition_size`.
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
    labels = check_integers("labels", labels, minimum=0)
    num_partitions = check_num_partitions(num_partitions, labels.size)
    # Above this bound the proportions have long been uniform to the last bit, and NumPy's draw overflows.
    alpha = min(check_real("alpha", alpha, above=0.0), 1e100)
    min_partition_size = check_integer("min_partition_size", min_partition_size, minimum=0)
    max_attempts = check_integer("max_attempts", max_attempts, minimum=1)
    if min_partition_size * num_partitions > labels.size:
        raise ValueError(
            f"min_partition_size must be at most n / num_partitions = {labels.size / num_partitions:g}, "
            f"got {min_partition_size}"
        )
    rng = generator(seed)
    examples, counts, _ = by_class(labels, rng)
    smallest = 0
    for _ in range(max_attempts):
        owners = _class_splits(counts.tolist(), num_partitions, alpha, self_balancing, rng)
        smallest = int(np.bincount(owners, minlength=num_partitions).min())
        if smallest >= min_partition_size:
            clients = np.empty(labels.size, np.int32)
            clients[examples] = owners
            return clients
    raise ValueError(
        f"min_partition_size = {min_partition_size} was not met in max_attempts = {max_attempts} draws with "
        f"alpha = {alpha:g}, num_partitions = {num_partitions} (smallest client of the last: {smallest}); "
        "use a larger alpha, fewer partitions, self_balancing=True or a smaller min_partition_size"
    )


def _class_splits(
    counts: list[int], num_partitions: int, alpha: float, self_balancing: bool, rng: np.random.Generator
) -> np.ndarray:
    """Draw once for `dirichlet`: the client of each example, examples in the order of `by_class`."""
    average = sum(counts) / num_partitions
    sizes = np.zeros(num_partitions, np.int64)
    splits = []
    for count in counts:
        # A Dirichlet vector set to zero at the full clients and renormalised is a Dirichlet over the others.
        # Not all can be full: their sizes would sum to more than n.
        open_clients = np.flatnonzero(sizes <= average) if self_balancing else np.arange(num_partitions)
        cumulative = np.cumsum(rng.dirichlet(np.full(open_clients.size, alpha)))
        cuts = np.minimum(np.floor(cumulative * count + rng.random()), count)
        cuts[-1] = count  # whatever the rounding of the sum
        given = np.diff(cuts, prepend=0).astype(np.int64)
        sizes[open_clients] += given
        splits.append(np.repeat(open_clients, given))
    return np.concatenate(splits).astype(np.int32)
