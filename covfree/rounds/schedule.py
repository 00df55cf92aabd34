"""Draw which clients take part in each round; count rounds until all took part."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64

from covfree.core.checks import check_above_zero, check_integer, check_share
from covfree.data.partitions.partition import generator


def as_schedule(
    clients: np.ndarray | np.number | float | int,
    num_clients: int,
    num_rounds: int,
    *,
    seed: int,
) -> Int64[np.ndarray, "rounds drawn"]:
    """Convert ``clients``, which a user passed as ``participation``, to an array of each round's clients.

    Args:
        clients: an array of each round's clients, −1 for nobody; or how many clients a round draws, as
            a number or a share.
        num_clients: K.
        num_rounds: the least number of rounds that there must be.
        seed: for the draw, if ``clients`` is a number or a share.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if there are too few rounds, or a client does not exist or is twice in a round.
    """
    num_rounds = check_integer("rounds", num_rounds, 1)
    if isinstance(clients, np.integer | np.floating):
        clients = clients.item()
    if isinstance(clients, bool) or not isinstance(clients, int | float | np.ndarray):
        raise TypeError(
            "participation: expected clients of a round, a number or a share, or an array of clients, got "
            f"{clients!r}"
        )
    if isinstance(clients, np.ndarray):
        drawn = check_schedule("participation", clients, num_clients)
        if len(drawn) < num_rounds:
            raise ValueError(f"participation: expected {num_rounds} rounds, got {len(drawn)}")
        return drawn
    if not 0 < clients <= (1.0 if isinstance(clients, float) else num_clients):
        raise ValueError(
            f"participation: expected a number of clients from 1 to {num_clients}, or a share of them in "
            f"(0, 1], got {clients!r}"
        )
    return participation(num_clients, clients, num_rounds, seed=seed)


def check_schedule(name: str, clients: np.ndarray, num_clients: int) -> Int64[np.ndarray, "rounds drawn"]:
    """Check an array of each round's clients, −1 for nobody."""
    clients = np.asarray(clients)
    if clients.ndim != 2 or clients.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: expected integers [rounds, drawn], got {clients.dtype}{list(clients.shape)}"
        )
    if clients.size and (clients.min() < -1 or clients.max() >= num_clients):
        raise ValueError(
            f"{name}: expected clients from 0 to {num_clients - 1}, or -1 for nobody, got numbers from "
            f"{clients.min()} to {clients.max()}"
        )
    ordered = np.sort(clients, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if twice.any():
        raise ValueError(
            f"{name}: expected different clients in a round; round {int(twice.argmax())} has one twice"
        )
    return clients.astype(np.int64)


def participation(
    num_clients: int,
    per_round: int | float,
    num_rounds: int,
    *,
    seed: int,
    replacement: bool = True,
) -> Int64[np.ndarray, "rounds drawn"]:
    """Draw the clients that take part in each round.

    A round draws ``per_round`` different clients, uniformly.

    Args:
        num_clients: K.
        per_round: clients drawn in a round, an integer in [1, K]; or their share, a float in (0, 1], which
            is rounded to a number of at least 1.
        num_rounds: rounds, numbered from 0.
        seed: integer of at least 0.
        replacement: whether a client may be drawn again in a later round. If not, each round draws from
            the clients that have not taken part yet, so later rounds may have fewer than ``per_round``.

    Returns:
        The clients of each round, from 0, in no particular order; −1 where the round has fewer clients.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of its range.

    >>> participation(5, 2, 3, seed=0, replacement=False).tolist()
    [[2, 4], [3, 0], [1, -1]]
    """
    num_clients = check_integer("num_clients", num_clients, 1)
    drawn = _clients_per_round(per_round, num_clients)
    num_rounds = check_integer("num_rounds", num_rounds, 1)
    rng = generator(seed)
    if replacement:
        rounds = (rng.choice(num_clients, drawn, replace=False, shuffle=False) for _ in range(num_rounds))
        return np.stack(list(rounds)).astype(np.int64, copy=False)
    schedule = np.full((num_rounds, drawn), -1, np.int64)
    order = rng.permutation(num_clients)[: schedule.size]
    schedule.flat[: order.size] = order
    return schedule


def first_rounds(
    schedule: Int64[np.ndarray, "rounds drawn"], num_clients: int
) -> Int64[np.ndarray, " clients"]:
    """Find the first round in which each client takes part.

    A sum over clients counts each client once. So after r rounds the server has the statistics of the clients
    with ``0 <= first < r``.

    Args:
        schedule: the clients of each round, from `participation` or your own; −1 for nobody.
        num_clients: K.

    Returns:
        The first round of each client, from 0; −1 if it takes part in none.

    Raises:
        ValueError: if a client is not in [−1, K).

    >>> first_rounds(np.array([[2, 0], [0, 3], [3, -1]]), 4).tolist()
    [0, -1, 0, 1]
    """
    num_clients = check_integer("num_clients", num_clients, 1)
    schedule = check_schedule("schedule", schedule, num_clients)
    clients, places = np.unique(schedule, return_index=True)
    first = np.full(num_clients, -1, np.int64)
    first[clients[clients >= 0]] = places[clients >= 0] // schedule.shape[1]
    return first


def rounds_to_meet(num_clients: int, per_round: int | float, share: float = 1.0) -> tuple[float, float]:
    """Compute mean and standard deviation of the number of rounds until a share of the clients took part.

    This is the batch coupon collector: each round draws ``per_round`` different clients uniformly, and rounds
    are independent (`participation` with replacement). The number m of clients that have taken part is a
    Markov chain, from which the moments follow exactly up to rounding. A round draws b of the K clients, of
    which K − m have not taken part; j of the b are new with the hypergeometric probability p_j. So the number
    T_m of remaining rounds satisfies

        E T_m = (1 + Σ_{j≥1} p_j E T_{m+j}) / (1 − p_0),
        Var T_m = (Σ_{j≥1} p_j Var T_{m+j} + Σ_{j≥0} p_j (E T_{m+j} + 1 − E T_m)²) / (1 − p_0).

    All terms are positive, so no digits cancel. (The closed form, by inclusion and exclusion, is an
    alternating sum of binomials.) Costs K·b operations.

    Args:
        num_clients: K.
        per_round: b, as in `participation`.
        share: share of the clients, in (0, 1]: rounds are counted until ⌈share·K⌉ have taken part.

    Returns:
        Mean and standard deviation of the number of rounds.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of its range.

    Source: Fed3R (Fanì et al. 2024), Appendix I. With ``per_round=1`` the mean is K (1 + 1/2 + … + 1/K).

    >>> mean, deviation = rounds_to_meet(2, 1)
    >>> round(mean, 6), round(deviation**2, 6)
    (3.0, 2.0)
    """
    num_clients = check_integer("num_clients", num_clients, 1)
    drawn = _clients_per_round(per_round, num_clients)
    check_share("share", check_above_zero("share", share))
    # Round first: in floats 0.07·100 is 7.000000000000001, but 7 is meant.
    wanted = max(1, math.ceil(round(share * num_clients, 9)))
    # Entry m is for the rounds that are left once m clients have taken part; from `wanted` on it stays 0. The
    # first round always draws `drawn` new clients, so smaller m do not occur.
    mean, variance = np.zeros((2, num_clients + 1))
    for met in range(wanted - 1, drawn - 1, -1):
        weight = _new_clients(num_clients - met, met, drawn)
        new, after = weight[1:], slice(met + 1, met + weight.size)
        moves = new.sum()
        mean[met] = (weight.sum() + new @ mean[after]) / moves
        gap = mean[met : met + weight.size] + 1 - mean[met]
        variance[met] = (new @ variance[after] + weight @ np.square(gap)) / moves
    start = min(drawn, wanted)
    return 1.0 + float(mean[start]), math.sqrt(variance[start])


def _new_clients(unmet: int, met: int, drawn: int) -> np.ndarray:
    """Return the probabilities, up to a factor, that a round draws 0, 1, 2, … new clients.

    The round draws ``drawn`` clients: from ``met`` ≥ ``drawn`` clients that earlier rounds drew, and from
    ``unmet`` new ones.
    """
    j = np.arange(min(unmet, drawn))
    # The ratio is p_{j+1}/p_j, where p_j is the probability of j such clients. Add logarithms, as products of
    # thousands of ratios overflow or underflow.
    ratio = (unmet - j) * (drawn - j) / ((j + 1) * (met - drawn + j + 1))
    log_weight = np.concatenate([[0.0], np.cumsum(np.log(ratio))])
    return np.exp(log_weight - log_weight.max())


def _clients_per_round(per_round: int | float, num_clients: int) -> int:
    """Return ``per_round``, a number or a share (a float) of the K clients, as a number in [1, K]."""
    if isinstance(per_round, float | np.floating):
        check_share("per_round", check_above_zero("per_round", per_round))
        return max(1, round(per_round * num_clients))
    drawn = check_integer("per_round", per_round, 1)
    if drawn > num_clients:
        raise ValueError(f"per_round: expected at most num_clients, {num_clients}, got {drawn}")
    return drawn
