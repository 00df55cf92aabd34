"""Statistics of a schedule: how many clients, examples and classes a server has seen after each round."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from numpy.typing import ArrayLike

from covfree.data.partitions.partition_statistics import check_assignment
from covfree.rounds.schedule import Schedule, check_schedule


class ScheduleStatistics(NamedTuple):
    """Statistics of a schedule of R rounds, from `schedule_statistics`.

    A client, and all of its examples and classes, count as seen from the round in which its first upload
    arrives.

    Attributes:
        uploads: number of uploads that arrive in each round.
        clients_seen: number of clients seen after each round.
        examples_seen: number of examples of these clients.
        classes_seen: number of different classes of these examples.
        first_arrival: the round, from 0, in which each client's first upload arrives; −1 for never.
        times_drawn: how often each client is drawn.
    """

    uploads: Int64[np.ndarray, "rounds"]
    clients_seen: Int64[np.ndarray, "rounds"]
    examples_seen: Int64[np.ndarray, "rounds"]
    classes_seen: Int64[np.ndarray, "rounds"]
    first_arrival: Int64[np.ndarray, "clients"]
    times_drawn: Int64[np.ndarray, "clients"]


def schedule_statistics(
    schedule: Schedule | np.ndarray,
    labels: ArrayLike,
    clients: ArrayLike,
    *,
    num_clients: int | None = None,
) -> ScheduleStatistics:
    """Count the clients, examples and classes that the server has seen after each round.

    Args:
        schedule: a `Schedule`, or an array of each round's clients, if all uploads arrive.
        labels: [n] class of each example, integers ≥ 0.
        clients: [n] client of each example, integers; -1 is unassigned.
        num_clients: K, by default one more than the largest client.

    Raises:
        ValueError: if ``labels`` and ``clients`` differ in length, a value is out of its range, or the
            schedule has a client that does not exist or is twice in a round.
        TypeError: if ``labels`` or ``clients`` are not integers.

    >>> labels, clients = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 2, 2, 3])
    >>> drawn = np.array([[3], [2], [3], [1], [3]])
    >>> statistics = schedule_statistics(drawn, labels, clients)
    >>> statistics.clients_seen.tolist(), statistics.classes_seen.tolist()
    ([1, 2, 2, 3, 3], [1, 1, 1, 2, 2])
    """
    labels, clients, num_clients = check_assignment(labels, clients, num_clients)
    drawn, delay = check_schedule("schedule", schedule, num_clients)
    rounds = len(drawn)

    rows = np.broadcast_to(np.arange(rounds)[:, None], drawn.shape)
    arrival = np.where((drawn >= 0) & (delay >= 0), rows + delay, rounds)
    # An upload that is due after the last round does not arrive.
    arrives = arrival < rounds
    first = np.full(num_clients, rounds)
    np.minimum.at(first, drawn[arrives], arrival[arrives])
    held = clients >= 0
    # Number the classes that occur: the largest label may far exceed the number of classes.
    present, codes = np.unique(labels[held], return_inverse=True)
    class_first = np.full(present.size, rounds)
    np.minimum.at(class_first, codes, first[clients[held]])

    def seen_after(first: np.ndarray) -> np.ndarray:
        return np.bincount(first, minlength=rounds + 1)[:rounds].cumsum()

    return ScheduleStatistics(
        uploads=np.bincount(arrival[arrives], minlength=rounds),
        clients_seen=seen_after(first),
        examples_seen=seen_after(first[clients[held]]),
        classes_seen=seen_after(class_first),
        first_arrival=np.where(first < rounds, first, -1),
        times_drawn=np.bincount(drawn[drawn >= 0], minlength=num_clients),
    )
