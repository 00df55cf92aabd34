"""Run an algorithm: simulate all clients of a federation on one machine, round by round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from covfree.core.checks import check_positive
from covfree.core.keys import participation_seed
from covfree.core.types import PRNGKey
from covfree.rounds import cohort
from covfree.rounds.algorithm import Algorithm, check_algorithm
from covfree.rounds.book import Book, Checkpoint, Evaluation, Records
from covfree.rounds.data import ClientTable
from covfree.rounds.memory import Placement, of_all, placed
from covfree.rounds.schedule import as_schedule
from covfree.rounds.simulation import Held, Simulation

_HERE = Placement()


class Run(NamedTuple):
    """The result of a run, the final state and the history.

    Attributes:
        result: the algorithm's result, such as a head.
        state: the server's state after the last round.
        memory: the clients' memory after the last round, with a leading axis of clients.
        history: a dict for each round: ``round``, ``clients``, ``bytes_up``, ``bytes_down``, ``seconds``,
            means of the clients' metrics, the algorithm's report, and what ``evaluate`` measured.
        stopped: why the run ended before its last round; None if it did not.
    """

    result: Any
    state: Any
    memory: Any
    history: Records
    stopped: str | None


def run(
    algorithm: Algorithm,
    features: Any,
    labels: Any,
    clients: Any,
    *,
    key: PRNGKey,
    rounds: int | None = None,
    participation: np.ndarray | np.number | float | int = 1.0,
    evaluate: Evaluation | Callable[[Any], Mapping[str, Any]] | None = None,
    stop: Callable[[Records], bool] | None = None,
    checkpoint: Checkpoint | str | PathLike[str] | None = None,
    place: Placement | None = None,
    each_client: bool = False,
) -> Run:
    """Simulate a federation that runs an algorithm.

    The examples are in one table, and a client is a list of indices into it. So a client takes memory only
    for what it remembers. Uploads are added as soon as they are made.

    Args:
        algorithm: e.g. ``covfree.finetune.fedavg(...)``.
        features: [examples, …], arrays of any rank: feature vectors, images; or a pytree of such arrays, such
            as ``{"ids": …, "mask": …}``.
        labels: [examples], integers; below 0 is padding. If the algorithm has no number of classes,
            [examples, …] numbers of any kind.
        clients: [examples], integers from 0; below 0 is padding. Any number below the largest that does not
            occur is a client without examples.
        key: PRNG key of all random draws. A client's draws in a round depend on the round and its number.
        rounds: the number of rounds; may be left out if the algorithm takes a fixed number, or
            ``participation`` is an array.
        participation: the clients of each round, an array [rounds, drawn], −1 for nobody; or how many clients
            a round draws: a number (1 is one client) or a share (1.0 is all).
        evaluate: an `Evaluation`, or its function alone. It is also called once before the first round, so
            that its errors show at once.
        stop: a function of the history so far that returns whether to stop. It is called after each round,
            and before a saved run is resumed. A record has measured numbers only if its round was evaluated,
            and clients' metrics only if a client with examples took part.
        checkpoint: a `Checkpoint`, or its folder alone.
        place: a `Placement`; None for one client at a time on the first device.
        each_client: whether the history also has the metrics of each client that took part, besides their
            means: ``each_client``, a dict of lists. The loss and other float metrics of a client without
            examples are nan.

    Returns:
        The result, the state, the clients' memory and the history. If the state or a client's memory is not
        finite after a round, or the clients' mean loss is NaN, the round is undone: the run ends with the
        state before it, and a warning and ``stopped`` say why.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of its range, or the checkpoint belongs to another run.

    >>> import covfree, covfree.rounds, jax, numpy as np
    >>> features, labels = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
    >>> algorithm = covfree.rounds.as_algorithm(covfree.fedncm(), num_classes=2)
    >>> head = run(algorithm, features, labels, np.array([0, 1, 0, 1]), key=jax.random.key(0)).result
    >>> head(features).argmax(-1).tolist()
    [0, 0, 1, 1]
    """
    check_algorithm(algorithm)
    if stop is not None and not callable(stop):
        raise TypeError(f"stop: expected a function or None, got {stop!r}")
    if evaluate is not None and not isinstance(evaluate, Evaluation):
        evaluate = Evaluation(evaluate)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if rounds is None and algorithm.rounds is None and isinstance(participation, np.ndarray):
        rounds = len(np.atleast_1d(participation))
    rounds = number_of_rounds(algorithm, rounds)
    key = _as_key(key)
    federation = ClientTable.of(
        features, labels, clients, whole=algorithm.whole, num_classes=algorithm.num_classes
    )
    num_clients = len(federation.size)
    drawn = _schedule(algorithm, participation, num_clients, rounds, key)
    place = _HERE if place is None else place
    # Place the arrays once: otherwise every round would transfer them, or be compiled, again.
    where = None if place.mesh is None else NamedSharding(place.mesh, PartitionSpec())
    algorithm, examples = jax.device_put((algorithm, federation.examples), where)
    federation = replace(federation, examples=examples)
    simulation = Simulation(algorithm, federation, drawn, key, place, each_client)
    start = cohort.start(algorithm, key, num_clients=int((federation.size > 0).sum()))
    state, one = jax.device_put(start, where)
    held = Held(state, of_all(one, num_clients, place.memory))
    book = Book(simulation, rounds, evaluate, stop, checkpoint, (state, one))
    try:
        if checkpoint is not None:
            held = book.load(held)
            held = held._replace(memory=placed(held.memory, place.memory))
        if evaluate is not None and not book.records:
            book.measured(held)
        for number in range(rounds if book.stopped else len(book.records), rounds):
            began = time.perf_counter()
            new = simulation.round(number, held)
            if new.unsound is not None:
                book.stopped = (
                    f"round {number}: {new.unsound} is not finite; the run ends with the state before it"
                )
                warnings.warn(f"{algorithm.name}: {book.stopped}", RuntimeWarning, stacklevel=2)
                break
            held = new.held
            if algorithm.rounds is not None:
                book.items.append(new.items)
            book.end(held, {"round": number, **new.record, "seconds": time.perf_counter() - began})
            if book.stopped:
                break
        if checkpoint is not None:
            book.save(held)
    finally:
        if checkpoint is not None:
            book.close()
    result = algorithm.result(algorithm.params, held.state, held.memory)
    return Run(result, held.state, held.memory, book.records, book.stopped)


def _as_key(key: Any) -> PRNGKey:
    """Return a typed PRNG key; convert an old-style key of two integers."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if np.shape(key) != (2,) or not np.issubdtype(np.asarray(key).dtype, np.unsignedinteger):
        raise TypeError(f"key: expected a PRNG key, jax.random.key(0), got {key!r}")
    return jax.random.wrap_key_data(jnp.asarray(key))


def number_of_rounds(algorithm: Algorithm, rounds: int | None) -> int:
    """Return the number of rounds to run: ``rounds``, or the number that the algorithm fixes.

    Raise an error if ``rounds`` contradicts the fixed number, or if there is neither.
    """
    if algorithm.rounds is None:
        if rounds is None:
            raise TypeError(f"rounds: expected a number, as {algorithm.name!r} has no fixed one; got None")
        check_positive("rounds", rounds)
        return rounds
    if rounds not in (None, algorithm.rounds):
        raise ValueError(f"rounds: expected {algorithm.rounds}, as {algorithm.name!r} needs; got {rounds}")
    return algorithm.rounds


def _schedule(
    algorithm: Algorithm, participation: Any, num_clients: int, rounds: int, key: PRNGKey
) -> np.ndarray:
    seed, same = participation_seed(key), algorithm.same_clients
    if same and isinstance(participation, float | int | np.number):
        return np.repeat(as_schedule(participation, num_clients, 1, seed=seed), rounds, 0)
    drawn = as_schedule(participation, num_clients, rounds, seed=seed)
    who = np.sort(drawn[:rounds], axis=1)
    if same and (who != who[:1]).any():
        raise ValueError(
            f"participation: expected the uploads of the same clients in each of the {rounds} rounds of "
            f"{algorithm.name!r}, as its rounds are steps over the same clients"
        )
    return drawn
