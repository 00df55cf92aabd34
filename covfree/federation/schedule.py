"""Which clients take part in which round, which of them drop out, and which are late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from covfree.federation._arguments import check_integer, check_real
from covfree.federation.participation import participation


class Schedule(NamedTuple):
    """Which clients are drawn in which round, and when their uploads arrive.

    Attributes:
        clients: the clients drawn in each round, from 0; −1 for nobody. No client is twice in a round.
        delay: rounds until the upload arrives: 0 for the same round, −1 for never.
    """

    clients: Int64[np.ndarray, "rounds drawn"]
    delay: Int64[np.ndarray, "rounds drawn"]


def schedule(
    num_clients: int,
    per_round: int | float,
    num_rounds: int,
    *,
    seed: int,
    replacement: bool = True,
    dropout: float = 0.0,
    late: float = 0.0,
) -> Schedule:
    """Draw which clients take part in each round, which drop out and which are late.

    A longer schedule from the same seed begins with the rounds of a shorter one.

    Args:
        num_clients: K.
        per_round: clients of a round, a number or a share; see `participation`.
        num_rounds: number of rounds.
        seed: integer of at least 0.
        replacement: whether a client may be drawn again in a later round.
        dropout: probability that the upload of a client never arrives.
        late: probability that it arrives one round later, if it arrives.

    Returns:
        The schedule.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if an argument is out of its range.

    >>> schedule(5, 2, 3, seed=0, dropout=0.5).delay.tolist()
    [[0, 0], [-1, -1], [0, 0]]
    """
    for name, chance in (("dropout", dropout), ("late", late)):
        if check_real(name, chance, minimum=0.0) > 1:
            raise ValueError(f"{name} must be at most 1, got {chance:g}")
    clients = participation(num_clients, per_round, num_rounds, seed=seed, replacement=replacement)
    # A random stream of its own, so that dropout does not change which clients are drawn.
    rng = np.random.default_rng([seed, 1])
    chances = rng.random((clients.shape[0], 2, clients.shape[1]))
    delay = np.where(chances[:, 0] < dropout, -1, np.where(chances[:, 1] < late, 1, 0))
    return Schedule(clients, np.where(clients >= 0, delay, -1))


def as_schedule(
    participation: Schedule | np.ndarray | float | int, num_clients: int, num_rounds: int, *, seed: int
) -> Schedule:
    """Convert an argument ``participation`` to a `Schedule`, and check it.

    Args:
        participation: a `Schedule`; the clients of each round, all of whose uploads arrive; or how many
            clients a round draws, as a number or a share.
        num_clients: K.
        num_rounds: smallest number of rounds that the schedule must have.
        seed: for the draw, if ``participation`` is a number or a share.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if the schedule is too short, or has a client that does not exist or is twice in a round.
    """
    num_rounds = check_integer("rounds", num_rounds, minimum=1)
    if isinstance(participation, bool) or not isinstance(participation, int | float | np.ndarray | Schedule):
        raise TypeError(
            "participation: expected clients of a round, a number or a share, or an array of clients, got "
            f"{participation!r}"
        )
    if isinstance(participation, int | float):
        if not 0 < participation <= (1.0 if isinstance(participation, float) else num_clients):
            raise ValueError(
                f"participation: expected a number of clients from 1 to {num_clients}, or a share of them in "
                f"(0, 1], got {participation!r}"
            )
        return schedule(num_clients, participation, num_rounds, seed=seed)
    if not isinstance(participation, Schedule):
        drawn = np.asarray(participation)
        participation = Schedule(drawn, np.zeros_like(drawn))
    clients, delay = (np.asarray(part) for part in participation)
    if (
        clients.ndim != 2
        or clients.shape != delay.shape
        or clients.dtype.kind + delay.dtype.kind
        not in (
            "ii",
            "iu",
            "ui",
            "uu",
        )
    ):
        raise ValueError(
            "participation must be integers [rounds, drawn], clients and delays alike, got "
            f"{clients.dtype}{list(clients.shape)} and {delay.dtype}{list(delay.shape)}"
        )
    if len(clients) < num_rounds:
        raise ValueError(f"participation must have {num_rounds} rounds, got {len(clients)}")
    if clients.size and (clients.min() < -1 or clients.max() >= num_clients):
        raise ValueError(
            f"participation must hold clients from 0 to {num_clients - 1}, or -1 for nobody, got numbers "
            f"from {clients.min()} to {clients.max()}"
        )
    ordered = np.sort(clients, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if twice.any():
        raise ValueError(
            f"participation must draw different clients in a round; round {int(twice.argmax())} has one twice"
        )
    return Schedule(clients.astype(np.int64), np.where(clients >= 0, delay, -1).astype(np.int64))
