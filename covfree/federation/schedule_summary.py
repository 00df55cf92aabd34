"""Statistics of a participation schedule: how much of the federation a server has seen after each round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy.typing import ArrayLike

from covfree.federation._arguments import check_integer, check_integers
from covfree.federation.schedule import Schedule, as_schedule

# Clients of a round that a table names.
_NAMED = 6


@dataclass(frozen=True, eq=False)
class ScheduleStatistics:
    """What a schedule of R rounds brings to the server, from `schedule_statistics`.

    A client, and all of its examples and classes, count as seen from the round in which its first upload
    arrives.

    Attributes:
        schedule: who is drawn in which round, and when the uploads arrive.
        uploads: [R] uploads that arrive in each round.
        clients_seen: [R] clients seen after each round.
        examples_seen: [R] examples of these clients.
        classes_seen: [R] classes of which these clients hold an example.
        first_arrival: [K] the round, from 0, in which each client's first upload arrives; −1 for never.
        times_drawn: [K] how often each client is drawn.
        num_examples: examples that clients hold.
        num_classes: classes of which clients hold an example.
    """

    schedule: Schedule
    uploads: Int64[np.ndarray, "rounds"]
    clients_seen: Int64[np.ndarray, "rounds"]
    examples_seen: Int64[np.ndarray, "rounds"]
    classes_seen: Int64[np.ndarray, "rounds"]
    first_arrival: Int64[np.ndarray, "clients"]
    times_drawn: Int64[np.ndarray, "clients"]
    num_examples: int
    num_classes: int

    @property
    def num_rounds(self) -> int:
        """R."""
        return self.uploads.size

    @property
    def num_clients(self) -> int:
        """K, including clients without examples."""
        return self.times_drawn.size

    def as_table(self, client_names: Sequence[str] | None = None) -> str:
        """Write the statistics as a few lines of plain text: rounds 1, 2, 5, 10, 20, … and the last.

        Args:
            client_names: the clients' names by their numbers; without it numbers are shown.
        """
        sizes = f"{self.num_examples:,} examples, {self.num_classes:,} classes, {self.num_clients:,} clients"
        lines = [
            f"{self.num_rounds:,} rounds; {sizes}",
            f"{'round':>7}{'uploads':>9}{'clients':>9}{'examples':>10}{'classes':>9}   drawn",
        ]
        steps = {step * 10**power for power in range(9) for step in (1, 2, 5)}
        for number in sorted({step for step in steps if step < self.num_rounds} | {self.num_rounds}):
            row = number - 1
            seen = (
                (self.clients_seen[row], self.num_clients, 9),
                (self.examples_seen[row], self.num_examples, 10),
                (self.classes_seen[row], self.num_classes, 9),
            )
            shares = "".join(f"{count / max(total, 1):>{width}.1%}" for count, total, width in seen)
            lines.append(f"{number:>7,}{self.uploads[row]:>9,}{shares}   {self._drawn(row, client_names)}")
        times = self.times_drawn
        lines += [
            "clients, examples and classes: seen by the end of the round",
            f"times drawn: {times.min():,} to {times.max():,}, median {np.median(times):,g}, "
            f"mean {times.mean():,.2f}",
            f"clients never seen: {(self.first_arrival < 0).sum():,}",
        ]
        return "\n".join(lines)

    def _drawn(self, row: int, names: Sequence[str] | None) -> str:
        clients = np.sort(self.schedule.clients[row])
        clients = clients[clients >= 0]
        shown = [str(client) if names is None else names[client] for client in map(int, clients[:_NAMED])]
        return " ".join(shown) + (" …" if clients.size > _NAMED else "")

    def __str__(self) -> str:
        return self.as_table()


def schedule_statistics(
    schedule: Schedule | Int64[np.ndarray, "rounds drawn"],
    labels: ArrayLike,
    clients: ArrayLike,
    *,
    num_clients: int | None = None,
) -> ScheduleStatistics:
    """Count which clients, examples and classes the server has seen after each round of a schedule.

    Args:
        schedule: from `schedule` or `participation`, or your own.
        labels: [n] class of each example, integers ≥ 0.
        clients: [n] client of each example, integers; −1 is nobody's, and never seen.
        num_clients: K, by default one more than the largest client.

    Returns:
        A `ScheduleStatistics`. Print it for a table, or see `plot_schedule` for a picture.

    Raises:
        TypeError: if labels or clients are no integers.
        ValueError: if labels and clients differ in length, a value is out of its range, the schedule has
            other axes, or it draws a client that does not exist, or one twice in a round.

    >>> drawn = np.array([[3], [2], [3], [1], [1]])  # one client in each of five rounds
    >>> labels, clients = np.array([0, 0, 1, 2, 2, 1]), np.array([0, 0, 1, 1, 2, 3])
    >>> statistics = schedule_statistics(drawn, labels, clients)
    >>> statistics.clients_seen.tolist(), statistics.classes_seen.tolist()
    ([1, 2, 2, 3, 3], [1, 2, 2, 2, 2])
    >>> print(statistics)
    5 rounds; 6 examples, 3 classes, 4 clients
      round  uploads  clients  examples  classes   drawn
          1        1    25.0%     16.7%    33.3%   3
          2        1    50.0%     33.3%    66.7%   2
          5        1    75.0%     66.7%    66.7%   1
    clients, examples and classes: seen by the end of the round
    times drawn: 0 to 2, median 1.5, mean 1.25
    clients never seen: 1
    """
    labels = check_integers("labels", labels, minimum=0)
    clients = check_integers("clients", clients, minimum=-1)
    if labels.size != clients.size:
        raise ValueError(f"labels and clients must have equal lengths, got {labels.size} and {clients.size}")
    needed = max(int(clients.max()) + 1, 1)
    num_clients = needed if num_clients is None else check_integer("num_clients", num_clients, 1)
    if num_clients < needed:
        raise ValueError(f"num_clients must be above the largest client, {clients.max()}, got {num_clients}")
    drawn = np.asarray(schedule.clients if isinstance(schedule, Schedule) else schedule)
    if drawn.ndim != 2:
        raise ValueError(
            f"schedule must be a Schedule, or integers [rounds, drawn], got shape {list(drawn.shape)}"
        )
    plan = as_schedule(schedule, num_clients, max(len(drawn), 1), seed=0)
    rounds, (drawn, delay) = len(plan.clients), plan

    rows = np.broadcast_to(np.arange(rounds)[:, None], drawn.shape)
    arrival = np.where((drawn >= 0) & (delay >= 0), rows + delay, rounds)
    # Past the last round it does not arrive.
    arrives = arrival < rounds
    first = np.full(num_clients, rounds)
    np.minimum.at(first, drawn[arrives], arrival[arrives])
    held = clients >= 0
    # By the classes that occur: a label may be far above their number.
    present, codes = np.unique(labels[held], return_inverse=True)
    class_first = np.full(present.size, rounds)
    np.minimum.at(class_first, codes, first[clients[held]])

    def seen_after(first: np.ndarray) -> np.ndarray:
        return np.bincount(first, minlength=rounds + 1)[:rounds].cumsum()

    return ScheduleStatistics(
        schedule=plan,
        uploads=np.bincount(arrival[arrives], minlength=rounds),
        clients_seen=seen_after(first),
        examples_seen=seen_after(first[clients[held]]),
        classes_seen=seen_after(class_first),
        first_arrival=np.where(first < rounds, first, -1),
        times_drawn=np.bincount(drawn[drawn >= 0], minlength=num_clients),
        num_examples=int(held.sum()),
        num_classes=present.size,
    )
