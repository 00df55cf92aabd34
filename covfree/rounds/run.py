"""Running an algorithm: all clients of a federation simulated on one machine, round by round."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from covfree.core.checks import check_choice, check_positive
from covfree.core.keys import participation_seed
from covfree.core.types import PRNGKey
from covfree.rounds import cohort
from covfree.rounds.algorithm import Algorithm, check_algorithm
from covfree.rounds.checkpoint import Checkpoints
from covfree.rounds.data import Federation
from covfree.rounds.memory import Bank, Place
from covfree.rounds.schedule import Schedule, as_schedule
from covfree.rounds.simulation import Held, Simulation


class Run(NamedTuple):
    """What came of a run.

    Attributes:
        result: what the algorithm is run for, such as a head.
        state: the server's state after the last round.
        memory: what each client remembers, with an axis of clients in front.
        history: a dict for each round; the keys are those of ``history.jsonl``.
        stopped: why the run ended before its last round; None if it did not.
        best: the result after ``best_round``, if ``best`` named a number; else None.
        best_round: the round whose evaluation was best, the earliest of equals; None if there is none.
    """

    result: Any
    state: Any
    memory: Any
    history: list[dict[str, Any]]
    stopped: str | None
    best: Any = None
    best_round: int | None = None


def run(
    algorithm: Algorithm,
    features: Any,
    labels: Any,
    clients: Any,
    *,
    key: PRNGKey,
    rounds: int | None = None,
    participation: Schedule | np.ndarray | float | int = 1.0,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    every: int = 1,
    best: str | None = None,
    stop: Callable[[list[dict[str, Any]]], bool] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 1,
    history: str | PathLike[str] | None = None,
    width: int = 1,
    memory: Place = "device",
    mesh: Mesh | None = None,
    each_client: bool = False,
) -> Run:
    """Simulate a federation that runs an algorithm.

    The examples lie in one table, of which clients are views: memory does not grow with the number of clients
    but by what they remember. Uploads are added as they are made. Neither ``width`` nor ``mesh`` changes the
    result, but for rounding.

    Args:
        algorithm: e.g. ``covfree.finetune.fedavg(...)``.
        features: [examples, …], numbers of any rank: feature vectors, images.
        labels: [examples], integers; below 0 is padding.
        clients: [examples], integers from 0; below 0 is padding. Numbers without examples are clients that
            have none.
        key: PRNG key of all that is drawn. A client's draws in a round depend on the round and its number.
        rounds: how many; may be left out where the algorithm takes a fixed number.
        participation: a `covfree.rounds.Schedule`; the clients of each round as an array, −1 for nobody;
            or how many clients a round draws: a number (1 is one client) or a share (1.0 is all).
        evaluate: from the algorithm's result to numbers that the history records, such as an accuracy.
            Rounds after which there is no result yet are not evaluated.
        every: rounds from one evaluation to the next; the last round is always evaluated, and so is the one
            after which the run stops.
        best: name of a number of ``evaluate``, such as ``"accuracy"``. `Run.best` is then the result with the
            largest. Evaluate on validation data: a test accuracy by which a round was chosen is too high.
            For algorithms of any number of rounds.
        stop: from the history so far to whether to stop; asked after each round, and before going on. A
            record has what ``evaluate`` measured only where it was asked (``every``), and metrics of clients
            only if one with examples took part.
        checkpoint: a folder in which what the run holds is saved, and from which it goes on if it is there
            (needs the ``rounds`` extra).
        checkpoint_every: rounds from one saving to the next; the end of the run is always saved.
        history: a file that gets a line of JSON for each round as it ends; numbers that are not finite are
            null there.
        width: clients that are simulated at once by ``vmap``. More than one pays on accelerators.
        memory: where clients' memory lies: ``"device"``, or ``"host"`` for more clients than fit there.
        mesh: devices over which the clients of a round are spread.
        each_client: whether the history also has the metrics of each client that took part, beside their
            means: ``each_client``, a dict of lists. The loss of a client without examples is nan, and so are
            other metrics in floats.

    Returns:
        The result, the state, the clients' memory and the history. A round after which the state or a
        client's memory is not finite is undone: the run ends with the state before it, says so in a warning
        and in ``stopped``.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if an argument is out of its range, or the checkpoint is of another run.

    >>> import covfree, covfree.rounds, jax, numpy as np
    >>> features, labels = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
    >>> algorithm = covfree.rounds.as_algorithm(covfree.fedncm(), num_classes=2)
    >>> head = run(algorithm, features, labels, np.array([0, 1, 0, 1]), key=jax.random.key(0)).result
    >>> head(features).argmax(-1).tolist()
    [0, 0, 1, 1]
    """
    check_algorithm(algorithm)
    for name, function in (("evaluate", evaluate), ("stop", stop)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}: expected a function or None, got {function!r}")
    if not isinstance(mesh, Mesh | None):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh or None, got {mesh!r}")
    rounds = _number_of_rounds(algorithm, rounds)
    check_positive("every", every)
    check_positive("checkpoint_every", checkpoint_every)
    check_positive("width", width)
    check_choice("memory", memory, get_args(Place))
    key = _as_key(key)
    if best is not None and (evaluate is None or algorithm.rounds is not None):
        why = "evaluate, which measures it" if evaluate is None else "an algorithm of any number of rounds"
        raise ValueError(f"best: expected {why}, beside best={best!r}; got none")
    federation = Federation.of(
        features, labels, clients, whole=algorithm.whole, num_classes=algorithm.num_classes
    )
    drawn = _schedule(algorithm, participation, federation.num_clients, rounds, key)
    if mesh is not None:
        # Of the kind that leaves to the compiler what is not said; `jax.make_mesh` makes another.
        mesh = Mesh(mesh.devices, mesh.axis_names)
    delays = int(drawn.delay.max(initial=0)) + 1
    simulation = Simulation(algorithm, federation, drawn, delays, key, width, mesh, each_client)

    state, one = cohort.start(algorithm, key, num_clients=federation.num_holders)
    if mesh is not None:
        # Where the next round finds them: else all would be compiled once more for it.
        state, one = jax.device_put((state, one), NamedSharding(mesh, PartitionSpec()))
    bank = Bank.of(one, federation.num_clients, memory)
    held = Held(state, bank.leaves, simulation.nothing_pending(state, bank))
    if best is not None:
        held = held._replace(best=(held.state, _copied(held.memory)))
    done, records, items, saved = 0, [], [], None
    if checkpoint is not None:
        saved = Checkpoints(Path(checkpoint), simulation.identity(state, one, best))
        first = held
        earlier = saved.load(rounds, lambda items: simulation.structure_after(items, first, bank))
        if earlier is not None:
            done, held, records, items = earlier
            bank = Bank.holding(held.memory, memory)
    kept = done
    lines = _Lines(history, records)
    stopped = _stopped(stop, records)
    for number in range(rounds if stopped else done, rounds):
        began = time.perf_counter()
        new = simulation.round(number, held, bank)
        if new.unsound is not None:
            stopped = f"round {number}: {new.unsound} is not finite; the run ends with the state before it"
            warnings.warn(f"{algorithm.name}: {stopped}", RuntimeWarning, stacklevel=2)
            break
        for who, memory_of in new.memories:
            bank.remember(who, memory_of)
        items.append(new.items)
        held, record = Held(new.state, bank.leaves, new.pending, held.best), new.record
        due = number % every == every - 1 or number == rounds - 1
        if due:
            record |= _measured(evaluate, algorithm, held, record)
        record["seconds"] = time.perf_counter() - began
        records.append({"round": number, **record})
        stopped = _stopped(stop, records)
        if stopped is not None and not due:
            records[-1] |= _measured(evaluate, algorithm, held, record)
        lines.add(records[-1])
        if best is not None and _best_round(best, records) == number:
            held = held._replace(best=(held.state, _copied(held.memory)))
        if saved is not None and number % checkpoint_every == checkpoint_every - 1:
            saved.save(number + 1, held, records, items)
            kept = number + 1
        if stopped is not None:
            break
    if saved is not None:
        if len(records) > kept:
            saved.save(len(records), held, records, items)
        saved.close()
    result = algorithm.result(algorithm.params, held.state, held.memory)
    done = Run(result, held.state, held.memory, records, stopped)
    chosen = None if best is None else _best_round(best, records)
    if chosen is None:
        return done
    return done._replace(best=algorithm.result(algorithm.params, *held.best), best_round=chosen)


def _best_round(name: str, records: list[dict[str, Any]]) -> int | None:
    """The round of the largest of these numbers; of rounds without one and of NaN nothing is known."""
    measured = [(record[name], -record["round"]) for record in records if name in record]
    measured = [pair for pair in measured if pair[0] == pair[0]]
    return -max(measured)[1] if measured else None


def _copied(memory: Any) -> Any:
    """A copy of the memory of clients, into which later rounds write; the server's state stays as it is."""
    return jax.tree.map(lambda x: x.copy(), memory)


def _as_key(key: Any) -> PRNGKey:
    """A typed PRNG key."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if np.shape(key) != (2,) or not np.issubdtype(np.asarray(key).dtype, np.unsignedinteger):
        raise TypeError(f"key: expected a PRNG key, jax.random.key(0), got {key!r}")
    return jax.random.wrap_key_data(jnp.asarray(key))


def _stopped(
    stop: Callable[[list[dict[str, Any]]], bool] | None, records: list[dict[str, Any]]
) -> str | None:
    """Why to stop after these rounds, if there is a reason."""
    if stop is None or not records or not stop(records):
        return None
    return f"round {records[-1]['round']}: stop(history) was true"


def _measured(
    evaluate: Callable[[Any], Mapping[str, Any]] | None,
    algorithm: Algorithm,
    held: Held,
    record: Mapping[str, Any],
) -> dict[str, Any]:
    if evaluate is None:
        return {}
    # Later rounds write into the clients' memory; what ``evaluate`` keeps must stay as it is.
    result = algorithm.result(algorithm.params, held.state, _copied(held.memory))
    if result is None:
        return {}
    measured = evaluate(result)
    if not isinstance(measured, Mapping):
        raise TypeError(f'evaluate: expected a dict such as {{"accuracy": 0.9}}, got {measured!r}')
    if taken := sorted({"round", "seconds", *record} & set(measured)):
        raise ValueError(f"evaluate: expected names that the history does not have, got {taken}")
    return {name: _plain(value) for name, value in measured.items()}


def _number_of_rounds(algorithm: Algorithm, rounds: int | None) -> int:
    if algorithm.rounds is None:
        if rounds is None:
            raise TypeError(f"rounds: expected how many, as {algorithm.name!r} takes any number; got None")
        check_positive("rounds", rounds)
        return rounds
    if rounds not in (None, algorithm.rounds):
        raise ValueError(f"rounds: expected {algorithm.rounds}, which {algorithm.name!r} takes; got {rounds}")
    return algorithm.rounds


def _schedule(
    algorithm: Algorithm, participation: Any, num_clients: int, rounds: int, key: PRNGKey
) -> Schedule:
    seed = participation_seed(key)
    if algorithm.rounds is None:
        return as_schedule(participation, num_clients, rounds, seed=seed)
    if not algorithm.same_clients:
        drawn = as_schedule(participation, num_clients, rounds, seed=seed)
        if (drawn.delay[:rounds] > 0).any():
            raise ValueError(
                "participation: expected no late uploads, as what clients send differs from round to round "
                f"in {algorithm.name!r}"
            )
        return drawn
    if isinstance(participation, int | float):
        once = as_schedule(participation, num_clients, 1, seed=seed)
        return Schedule(*(np.repeat(part, rounds, 0) for part in once))
    drawn = as_schedule(participation, num_clients, rounds, seed=seed)
    arrive = [np.sort(who[late == 0]) for who, late in zip(*drawn, strict=True)][:rounds]
    if (drawn.delay[:rounds] > 0).any() or any(not np.array_equal(who, arrive[0]) for who in arrive):
        raise ValueError(
            f"participation: expected the uploads of the same clients in each of the {rounds} rounds of "
            f"{algorithm.name!r}, none of them late, as its rounds are steps over the same clients"
        )
    return drawn


class _Lines:
    """The file that gets a line of JSON for each round."""

    def __init__(self, path: str | PathLike[str] | None, records: list[dict[str, Any]]) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None:
            # Of rounds after the checkpoint, which are run again, lines may be there.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("".join(map(_line, records)))

    def add(self, record: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(_line(record))


def _line(record: Any) -> str:
    return f"{json.dumps(_finite(record), allow_nan=False)}\n"


def _finite(value: Any) -> Any:
    """None for each number that is not finite, for which JSON has no word."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """A number as JSON has it, or a list of numbers."""
    return np.asarray(value).tolist()
