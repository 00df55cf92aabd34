"""One round of a simulated federation, from what is held before it to what is held after it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from covfree.core.keys import derive
from covfree.core.sums import Compensated
from covfree.core.types import PRNGKey
from covfree.engine.parts import digest
from covfree.engine.totals import zeros_of
from covfree.rounds import cohort
from covfree.rounds.algorithm import Algorithm, ClientData
from covfree.rounds.checkpoint import Mark
from covfree.rounds.data import Federation
from covfree.rounds.memory import Bank
from covfree.rounds.schedule import Schedule
from covfree.rounds.uploads import Parts, packed, size_in_bytes


class Held(NamedTuple):
    """What goes from one round to the next.

    Attributes:
        state: the server's.
        memory: the clients'.
        pending: sums of uploads that arrive in later rounds, with an axis of delays; None without delays.
        best: state and memory after the round whose evaluation was best; None if nobody asks for it.
    """

    state: Any
    memory: Any
    pending: Any
    best: Any = None


class Round(NamedTuple):
    """What came of a round.

    Attributes:
        state: the server's next.
        pending: as of `Held`.
        memories: clients (−1 for padding), and what each of them remembers now.
        record: what the history tells of it.
        items: of each table in the total of the uploads.
        unsound: what is not finite; None if all is.
    """

    state: Any
    pending: Any
    memories: list[tuple[np.ndarray, Any]]
    record: dict[str, Any]
    items: list[int]
    unsound: str | None


class Simulation(NamedTuple):
    """What stays the same through a run."""

    algorithm: Algorithm
    federation: Federation
    schedule: Schedule
    delays: int
    key: PRNGKey
    width: int
    mesh: Mesh | None
    each_client: bool

    def round(self, number: int, held: Held, bank: Bank) -> Round:
        """Run a round; nothing that is held is changed."""
        key = jax.random.fold_in(derive(self.key, "rounds"), number)
        sent = cohort.broadcast(self.algorithm, held.state)
        drawn, delay = self.schedule.clients[number], self.schedule.delay[number]
        before: Compensated | None = None
        structure: Any = None
        tables, senders, memories, arrived, metrics, sizes, who = [], [], [], 0, [], [], []
        unsound: str | None = None
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
            memories.append((np.where(here, group.clients, -1), given.memory))
            tables.append([[_items(here, part) for part in table] for table in given.tables])
            senders.append([np.repeat(group.clients[here], table[0].shape[1]) for table in given.tables])
            # A client without examples sends nothing.
            arrived += int((here & (np.asarray(group.members.size) > 0)).sum())
            metrics.append(jax.tree.map(lambda x, here=here: np.asarray(x)[here], given.metrics))
            sizes.append(np.asarray(group.members.size)[here])
            who.append(group.clients[here])
            if (lost := here & ~np.asarray(given.sound)).any():
                unsound = f"what client {group.clients[lost].min()} remembers"
        now, pending = cohort.due(cast(Compensated, before), held.pending)
        # By client, in whatever groups the clients ran.
        rows = [
            packed([np.concatenate(parts)[np.argsort(np.concatenate(of), kind="stable")] for parts in own])
            for own, of in zip(_each(tables), zip(*senders, strict=True), strict=True)
        ]
        total = Parts(now, rows, structure).upload()
        state, finite = cohort.serve(self.algorithm, held.state, total)
        record: dict[str, Any] = {"clients": arrived}
        record["bytes_up"] = arrived * size_in_bytes(now) + sum(size_in_bytes(table[:-1]) for table in rows)
        record["bytes_down"] = int((drawn >= 0).sum()) * size_in_bytes(sent)
        joined = jax.tree.map(lambda *parts: np.concatenate(parts), *metrics)
        record |= _means(joined, np.concatenate(sizes))
        if self.algorithm.report is not None:
            told = self.algorithm.report(self.algorithm.params, state)
            record |= {name: np.asarray(value).tolist() for name, value in told.items()}
        # Not of infinite ones: an example of a class that is absent has such a loss.
        if unsound is None and np.isnan(record.get("loss", 0.0)):
            unsound = "the clients' loss"
        if self.each_client:
            record["each_client"] = _by_client(joined, np.concatenate(sizes), np.concatenate(who))
        items = [len(table[-1]) for table in rows]
        return Round(state, pending, memories, record, items, unsound if finite else "the state")

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
        if self.delays == 1:
            return None
        given = self._given(state, bank)
        if given.tables:
            raise ValueError(
                "participation: expected no late uploads, as those of "
                f"{self.algorithm.name!r} hold tables, which are of their own round; got some"
            )
        return given.sums.total

    def structure_after(self, items: list[list[int]], held: Held, bank: Bank) -> Any:
        """The structure of what the run holds after some rounds.

        Args:
            items: of the tables of each round: few rows may be kept in another form than many.
            held: before the first round.
            bank: before the first round.
        """
        state = held.state
        for counts in items if self.algorithm.rounds is not None else ():
            given = self._given(state, bank)
            sums = [x[0] for x in given.sums.total]
            tables = [
                [jnp.zeros((number, *x.shape[2:]), x.dtype) for x in table]
                for number, table in zip(counts, given.tables, strict=True)
            ]
            total = Parts(sums, tables, given.structure.value).upload()
            state = zeros_of(cohort.serve, self.algorithm, state, total)[0]
        return jax.tree.structure(held._replace(state=state))

    def identity(self, state: Any, memory: Any, best: str | None) -> Callable[[int], dict[str, Mark]]:
        """What must be the same for a run to go on, by what to call it: a function of the rounds so far.

        Args:
            state: the server's first.
            memory: a client's first.
            best: by which number the best round is chosen.
        """
        numbers, _ = jax.tree_util.tree_flatten_with_path(self.algorithm.params)
        about = {
            "algorithm": Mark(self.algorithm.name),
            **{f"params{jax.tree_util.keystr(path)}": Mark.of(leaf) for path, leaf in numbers},
            "what clients and the server compute": Mark("", self._computation(state, memory)),
            **self.federation.identity(),
            "key": Mark.of(jax.random.key_data(self.key)),
            "longest delay": Mark(str(self.delays - 1)),
            **({} if best is None else {"best": Mark(best)}),
        }

        def after(done: int) -> dict[str, Mark]:
            drawn = digest(part[:done] for part in self.schedule)
            return about | {"participation": Mark(f"clients and delays in {done} rounds", drawn)}

        return after

    def _computation(self, state: Any, memory: Any) -> str:
        """A checksum of what a client and the server compute, as jax traces it; numbers apart."""
        examples, longest = self.federation.examples, int(self.federation.size.max(initial=1))

        def one_round(algorithm: Algorithm, examples: Any, state: Any, memory: Any, key: PRNGKey) -> Any:
            sent, places = algorithm.broadcast(algorithm.params, state), jnp.arange(longest)
            data = ClientData(examples.features, examples.labels, places, places[0])
            upload, memory, _ = algorithm.client(algorithm.params, sent, data, memory, key)
            return algorithm.server(algorithm.params, state, upload), memory

        traced = jax.make_jaxpr(one_round)(self.algorithm, examples, state, memory, self.key)
        # Functions are printed with where in memory they are.
        text = re.sub("0x[0-9a-f]+", "", str(traced))
        return digest([np.frombuffer(text.encode(), np.uint8), *map(np.asarray, traced.consts)])


def _each(groups: list[list[list[np.ndarray]]]) -> list[list[tuple[np.ndarray, ...]]]:
    """Of the tables of several groups, for each table and each of its arrays what the groups have."""
    return [list(zip(*tables, strict=True)) for tables in zip(*groups, strict=True)]


def _items(here: np.ndarray, table: Any) -> np.ndarray:
    """Items of the tables of those members that are here, one table below the other."""
    return np.asarray(table)[here].reshape(-1, *table.shape[2:])


def _means(metrics: dict[str, np.ndarray], sizes: np.ndarray) -> dict[str, float]:
    """Means of clients' metrics over those who took part, weighted by their examples."""
    if not sizes.sum():
        return {}
    weight = sizes.astype(float)
    return {name: float(np.average(value, weights=weight)) for name, value in metrics.items()}


def _by_client(
    metrics: dict[str, np.ndarray], sizes: np.ndarray, who: np.ndarray
) -> dict[str, list[int] | list[float]]:
    """Clients' metrics one by one, in the order of their numbers.

    A mean over no examples, such as a loss, is no number: floats of clients without any are nan.
    """
    told = {
        name: np.where(sizes > 0, value, np.nan) if value.dtype.kind == "f" else value
        for name, value in metrics.items()
    }
    columns = {"client": who, "examples": sizes, **told}
    return {name: column[np.argsort(who)].tolist() for name, column in columns.items()}
