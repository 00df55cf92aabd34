"""Running an algorithm: all clients of a federation simulated on one machine, round by round."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from covfree.checks import check_positive
from covfree.engine.parts import digest
from covfree.engine.totals import zeros_of
from covfree.federation.schedule import Schedule, as_schedule
from covfree.keys import derive
from covfree.rounds import cohort
from covfree.rounds.algorithm import Algorithm, check_algorithm
from covfree.rounds.checkpoint import Checkpoints
from covfree.rounds.data import Federation
from covfree.rounds.memory import Bank, Place
from covfree.rounds.uploads import Parts, packed, size_in_bytes
from covfree.sums import Compensated
from covfree.types import PRNGKey


class Run(NamedTuple):
    """What came of a run.

    Attributes:
        result: what the algorithm is run for, such as a head.
        state: the server's state after the last round.
        memory: what each client remembers, with an axis of clients in front.
        history: a dict for each round; the keys are those of ``history.jsonl``.
        stopped: why the run ended before its last round; None if it did not.
    """

    result: Any
    state: Any
    memory: Any
    history: list[dict[str, Any]]
    stopped: str | None


class _Held(NamedTuple):
    """What goes from one round to the next.

    Attributes:
        state: the server's.
        memory: the clients'.
        pending: sums of uploads that arrive in later rounds, with an axis of delays; None without delays.
    """

    state: Any
    memory: Any
    pending: Any


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
    stop: Callable[[list[dict[str, Any]]], bool] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 1,
    history: str | PathLike[str] | None = None,
    width: int = 1,
    memory: Place = "device",
    mesh: Mesh | None = None,
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
        participation: a `covfree.federation.Schedule`; the clients of each round as an array, −1 for nobody;
            or how many clients a round draws, as a number or a share.
        evaluate: from the algorithm's result to numbers that the history records, such as an accuracy.
        every: rounds from one evaluation to the next; the last round is always evaluated.
        stop: from the history so far to whether to stop; asked after each round.
        checkpoint: a folder in which what the run holds is saved, and from which it goes on if it is there
            (needs the ``rounds`` extra).
        checkpoint_every: rounds from one saving to the next; the end of the run is always saved.
        history: a file that gets a line of JSON for each round as it ends.
        width: clients that are simulated at once by ``vmap``. More than one pays on accelerators.
        memory: where clients' memory lies: ``"device"``, or ``"host"`` for more clients than fit there.
        mesh: devices over which the clients of a round are spread.

    Returns:
        The result, the state, the clients' memory and the history. A round whose state is not finite is
        undone: the run ends with the state before it, says so in a warning and in ``stopped``.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if an argument is out of its range, or the checkpoint is of another run.

    >>> import covfree, jax, numpy as np
    >>> features, labels = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
    >>> algorithm = covfree.rounds.as_algorithm(covfree.fedncm(), num_classes=2)
    >>> head = run(algorithm, features, labels, np.array([0, 1, 0, 1]), key=jax.random.key(0)).result
    >>> head(features).argmax(-1).tolist()
    [0, 0, 1, 1]
    """
    check_algorithm(algorithm)
    rounds = _number_of_rounds(algorithm, rounds)
    check_positive("every", every)
    check_positive("checkpoint_every", checkpoint_every)
    check_positive("width", width)
    if not jnp.issubdtype(jnp.asarray(key).dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    federation = Federation.of(
        features, labels, clients, whole=algorithm.whole, num_classes=algorithm.num_classes
    )
    drawn = _schedule(algorithm, participation, federation.num_clients, rounds, key)
    delays = int(drawn.delay[:rounds].max(initial=0)) + 1
    simulation = _Simulation(algorithm, federation, drawn, delays, key, width, mesh)

    state, one = cohort.start(algorithm, key, num_clients=federation.num_clients)
    bank = Bank.of(one, federation.num_clients, memory)
    held = _Held(state, bank.leaves, simulation.nothing_pending(state, bank))
    done, records, saved = 0, [], None
    if checkpoint is not None:
        saved = Checkpoints(Path(checkpoint), simulation.identity())
        first = held
        if (earlier := saved.load(lambda done: simulation.structure_after(done, first, bank))) is not None:
            done, held, records = earlier
            bank = Bank.holding(held.memory, memory)
    kept = done
    lines = _Lines(history, records)
    stopped = None
    for number in range(done, rounds):
        began = time.perf_counter()
        state, pending, record, finite = simulation.round(number, held, bank)
        if not finite:
            stopped = f"round {number}: the state is not finite; the run ends with the state before it"
            warnings.warn(f"{algorithm.name}: {stopped}", RuntimeWarning, stacklevel=2)
            break
        held = _Held(state, bank.leaves, pending)
        if evaluate is not None and (number % every == every - 1 or number == rounds - 1):
            measured = evaluate(algorithm.result(algorithm.params, state))
            record |= {name: _plain(value) for name, value in measured.items()}
        record["seconds"] = time.perf_counter() - began
        records.append({"round": number, **record})
        lines.add(records[-1])
        if saved is not None and number % checkpoint_every == checkpoint_every - 1:
            saved.save(number + 1, held, records)
            kept = number + 1
        if stop is not None and stop(records):
            stopped = f"round {number}: stop(history) was true"
            break
    if saved is not None:
        if len(records) > kept:
            saved.save(len(records), held, records)
        saved.close()
    return Run(algorithm.result(algorithm.params, held.state), held.state, bank.leaves, records, stopped)


class _Simulation(NamedTuple):
    """What stays the same through a run."""

    algorithm: Algorithm
    federation: Federation
    schedule: Schedule
    delays: int
    key: PRNGKey
    width: int
    mesh: Mesh | None

    def round(self, number: int, held: _Held, bank: Bank) -> tuple[Any, Any, dict[str, Any], bool]:
        """The next state, what is pending then, what to record, and whether the state is finite."""
        key = jax.random.fold_in(derive(self.key, "rounds"), number)
        sent = cohort.broadcast(self.algorithm, held.state)
        drawn, delay = self.schedule.clients[number], self.schedule.delay[number]
        before: Compensated | None = None
        structure: Any = None
        tables, senders, arrived, metrics, sizes = [], [], 0, [], []
        for group in self.federation.groups(drawn, delay, self._multiple, self.delays):
            given = cohort.answers(
                self.algorithm,
                sent,
                self.federation.examples,
                group.members,
                bank.of_clients(group.clients),
                key,
                before,
                longest=group.longest,
                width=self.width,
                mesh=self.mesh,
            )
            before, structure = given.sums, given.structure.value
            here = np.any(np.asarray(group.members.arrives), axis=1)
            bank.remember(np.where(here, group.clients, -1), given.memory)
            tables.append([[_items(here, part) for part in table] for table in given.tables])
            senders.append([np.repeat(group.clients[here], table[0].shape[1]) for table in given.tables])
            # A client without examples sends nothing.
            arrived += int((here & (np.asarray(group.members.size) > 0)).sum())
            metrics.append(jax.tree.map(lambda x, here=here: np.asarray(x)[here], given.metrics))
            sizes.append(np.asarray(group.members.size)[here])
        sums = cast(Compensated, before).value
        if held.pending is not None:
            sums = [jnp.add(*pair) for pair in zip(sums, held.pending, strict=True)]
        pending = None
        if held.pending is not None:
            pending = [jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]) for x in sums]
        now = [x[0] for x in sums]
        # By client, in whatever groups the clients ran.
        rows = [
            packed([np.concatenate(parts)[np.argsort(np.concatenate(who), kind="stable")] for parts in own])
            for own, who in zip(_each(tables), zip(*senders, strict=True), strict=True)
        ]
        total = Parts(now, rows, structure).upload()
        state, finite = cohort.serve(self.algorithm, held.state, total)
        record: dict[str, Any] = {"clients": arrived}
        record["bytes_up"] = arrived * size_in_bytes(now) + sum(size_in_bytes(table[:-1]) for table in rows)
        record["bytes_down"] = int((drawn >= 0).sum()) * size_in_bytes(sent)
        record |= _means(metrics, sizes)
        return state, pending, record, bool(finite)

    @property
    def _multiple(self) -> int:
        return self.width * (1 if self.mesh is None else self.mesh.size)

    def _given(self, state: Any, bank: Bank) -> cohort.Answers:
        """Zeros in the shapes of what one group of members gives."""
        group = self.federation.groups(np.zeros(1, int), np.zeros(1, int), self._multiple, self.delays)[0]

        def run(state: Any, memory: Any) -> cohort.Answers:
            return cohort.answers(
                self.algorithm,
                cohort.broadcast(self.algorithm, state),
                self.federation.examples,
                group.members,
                memory,
                self.key,
                None,
                longest=group.longest,
                width=self.width,
                mesh=self.mesh,
            )

        return zeros_of(run, state, bank.of_clients(group.clients))

    def nothing_pending(self, state: Any, bank: Bank) -> Any:
        """What is pending before the first round; None if all uploads arrive in their round."""
        return None if self.delays == 1 else self._given(state, bank).sums.total

    def structure_after(self, rounds: int, held: _Held, bank: Bank) -> Any:
        """The structure of what the run holds after so many rounds."""
        state = held.state
        for _ in range(rounds if self.algorithm.rounds is not None else 0):
            given = self._given(state, bank)
            sums = [x[0] for x in given.sums.total]
            tables = [[x[0] for x in table] for table in given.tables]
            total = Parts(sums, tables, given.structure.value).upload()
            state = zeros_of(cohort.serve, self.algorithm, state, total)[0]
        return jax.tree.structure(held._replace(state=state))

    def identity(self) -> dict[str, str]:
        """What must be the same for a run to go on, by what to call it."""
        numbers = jax.tree.leaves(self.algorithm.params)
        return {
            "algorithm": self.algorithm.name,
            "the algorithm's numbers": digest(np.asarray(leaf) for leaf in numbers),
            "the examples": self.federation.digest(),
            "the key": digest([np.asarray(jax.random.key_data(self.key))]),
        }


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
    seed = int(jax.random.bits(derive(key, "participation"), dtype=jnp.uint32))
    if algorithm.rounds is None:
        return as_schedule(participation, num_clients, rounds, seed=seed)
    # Such rounds are steps of one computation over the same clients.
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


def _each(groups: list[list[list[np.ndarray]]]) -> list[list[tuple[np.ndarray, ...]]]:
    """Of the tables of several groups, for each table and each of its arrays what the groups have."""
    return [list(zip(*tables, strict=True)) for tables in zip(*groups, strict=True)]


def _items(here: np.ndarray, table: Any) -> np.ndarray:
    """Items of the tables of those members that are here, one table below the other."""
    return np.asarray(table)[here].reshape(-1, *table.shape[2:])


class _Lines:
    """The file that gets a line of JSON for each round."""

    def __init__(self, path: str | PathLike[str] | None, records: list[dict[str, Any]]) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None:
            # Of rounds after the checkpoint, which are run again, lines may be there.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("".join(f"{json.dumps(record)}\n" for record in records))

    def add(self, record: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{json.dumps(record)}\n")


def _means(metrics: list[dict[str, np.ndarray]], sizes: list[np.ndarray]) -> dict[str, float]:
    """Means of clients' metrics over those who took part, weighted by their examples."""
    weight = np.concatenate(sizes).astype(float)
    if not weight.sum():
        return {}
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *metrics)
    return {name: float(np.average(value, weights=weight)) for name, value in joined.items()}


def _plain(value: Any) -> Any:
    """A number as JSON has it, or a list of numbers."""
    return np.asarray(value).tolist()
