"""Statistics of a partition: client sizes, classes per client, clients per class."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from covfree.core.checks import check_integer, check_integers


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """Counts of a partition of n examples of C classes over K clients, from `partition_statistics`.

    There are M pairs of a client and a class with examples at this client. Methods that send class means send
    one mean for each pair.

    Attributes:
        num_examples: n, including unassigned examples.
        num_unassigned: examples that no client holds.
        sizes: [K] examples of each client.
        classes_per_client: [K] classes that each client holds.
        clients_per_class: [C] K_c, the number of clients that hold each class; may be 0.
        label_entropy: [K] entropy of the labels on each client in bits: log2(C) if it holds all classes
            evenly, 0 if it holds one class or nothing.
        pair_clients: [M] client of each pair, ascending.
        pair_labels: [M] class of each pair, ascending within a client.
        pair_counts: [M] examples of each pair, at least 1.
    """

    num_examples: int
    num_unassigned: int
    sizes: Int64[np.ndarray, "clients"]
    classes_per_client: Int64[np.ndarray, "clients"]
    clients_per_class: Int64[np.ndarray, "classes"]
    label_entropy: Float64[np.ndarray, "clients"]
    pair_clients: Int64[np.ndarray, "pairs"]
    pair_labels: Int64[np.ndarray, "pairs"]
    pair_counts: Int64[np.ndarray, "pairs"]

    @property
    def num_clients(self) -> int:
        """The number of clients K, including empty ones."""
        return self.sizes.size

    @property
    def num_classes(self) -> int:
        """The number of classes C, including absent ones."""
        return self.clients_per_class.size

    @property
    def num_pairs(self) -> int:
        """M, the number of pairs of client and class with at least one example."""
        return self.pair_counts.size

    @property
    def num_empty_clients(self) -> int:
        """The number of clients without an example."""
        return int((self.sizes == 0).sum())

    def __str__(self) -> str:
        """Return the statistics as a few lines of plain text."""
        rows = [
            ("examples per client", self.sizes, "d"),
            ("classes per client", self.classes_per_client, "d"),
            ("clients per class", self.clients_per_class, "d"),
            ("label entropy, bits", self.label_entropy, ".2f"),
        ]
        clients = f"{self.num_clients:,} client{'s' * (self.num_clients != 1)}"
        lines = [
            f"{self.num_examples:,} examples, {self.num_classes:,} classes, {clients}",
            f"{'':<20}{'min':>9}{'median':>9}{'mean':>9}{'max':>9}",
        ]
        for name, values, form in rows:
            middle = f"{np.median(values):>9,.2f}{values.mean():>9,.2f}"
            lines.append(f"{name:<20}{values.min():>9,{form}}{middle}{values.max():>9,{form}}")
        share = self.num_pairs / (self.num_clients * self.num_classes)
        lonely, absent = ((self.clients_per_class == k).sum() for k in (1, 0))
        lines += [
            f"client-class pairs: {self.num_pairs:,} ({share:.1%} of all)",
            f"empty clients: {self.num_empty_clients:,}; unassigned examples: {self.num_unassigned:,}",
            f"classes on one client: {lonely:,}; on none: {absent:,}",
        ]
        return "\n".join(lines)


def partition_statistics(
    labels: ArrayLike,
    clients: ArrayLike,
    num_classes: int | None = None,
    *,
    num_clients: int | None = None,
) -> PartitionStatistics:
    """Count the examples of each client and class.

    It sorts n numbers and needs O(n + K + C) memory; the table [K, C] is never made.

    Args:
        labels: [n] class of each example, integers ≥ 0.
        clients: [n] client of each example, integers; -1 is unassigned.
        num_classes: C, by default one more than the largest label.
        num_clients: K, by default one more than the largest client. Give it to count empty clients at the
            end.

    Returns:
        A `PartitionStatistics`. Print it for a table, or see `plot_partition` for a picture.

    Raises:
        ValueError: `labels` and `clients` differ in length, or a value is out of its range.
        TypeError: `labels` or `clients` are not integers.

    >>> labels, clients = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, -1])
    >>> statistics = partition_statistics(labels, clients, num_clients=3)
    >>> statistics.num_pairs, statistics.clients_per_class
    (4, array([1, 2, 1]))
    >>> print(statistics)
    6 examples, 3 classes, 3 clients
                              min   median     mean      max
    examples per client         0     2.00     1.67        3
    classes per client          0     2.00     1.33        2
    clients per class           1     1.00     1.33        2
    label entropy, bits      0.00     0.92     0.64     1.00
    client-class pairs: 4 (44.4% of all)
    empty clients: 1; unassigned examples: 1
    classes on one client: 2; on none: 0
    """
    labels, clients, num_clients = check_assignment(labels, clients, num_clients)
    needed = int(labels.max()) + 1
    num_classes = needed if num_classes is None else check_integer("num_classes", num_classes, 1)
    if num_classes < needed:
        raise ValueError(
            f"num_classes: expected more than the largest label, {labels.max()}, got {num_classes}"
        )

    held = clients >= 0
    pairs, pair_counts = np.unique(
        clients[held].astype(np.int64) * num_classes + labels[held].astype(np.int64), return_counts=True
    )
    pair_clients, pair_labels = np.divmod(pairs, num_classes)
    sizes = np.bincount(clients[held], minlength=num_clients)
    share = pair_counts / sizes[pair_clients]
    entropy = np.bincount(pair_clients, -share * np.log2(share), minlength=num_clients)
    return PartitionStatistics(
        num_examples=labels.size,
        num_unassigned=int(labels.size - held.sum()),
        sizes=sizes,
        classes_per_client=np.bincount(pair_clients, minlength=num_clients),
        clients_per_class=np.bincount(pair_labels, minlength=num_classes),
        label_entropy=np.abs(entropy).astype(np.float64),  # no −0.0, and floats even without pairs
        pair_clients=pair_clients,
        pair_labels=pair_labels,
        pair_counts=pair_counts.astype(np.int64),
    )


def check_assignment(
    labels: ArrayLike, clients: ArrayLike, num_clients: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Check labels [n] and clients [n] (−1 for none); return both as arrays, and the number of clients."""
    labels = check_integers("labels", labels, 0)
    clients = check_integers("clients", clients, -1)
    if labels.size != clients.size:
        raise ValueError(f"clients: expected {labels.size}, one for each label, got {clients.size}")
    needed = max(int(clients.max()) + 1, 1)
    num_clients = needed if num_clients is None else check_integer("num_clients", num_clients, 1)
    if num_clients < needed:
        raise ValueError(
            f"num_clients: expected more than the largest client, {clients.max()}, got {num_clients}"
        )
    return labels, clients, num_clients
