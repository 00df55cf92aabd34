"""Compute one round of a simulated federation: the next state, clients' memory, and the round's record."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.forms import zeros_of
from covfree.core.keys import derive
from covfree.core.sums import Compensated
from covfree.core.types import PRNGKey
from covfree.engine.checkpoint import Mark, digest
from covfree.rounds import cohort
from covfree.rounds.adding import Parts, packed, size_in_bytes
from covfree.rounds.algorithm import Algorithm, ClientData
from covfree.rounds.data import ClientTable, Group
from covfree.rounds.memory import Placement, of_clients, updated


class Held(NamedTuple):
    """What a run hands on from one round to the next.

    Attributes:
        state: the server's state.
        memory: what clients remember between rounds.
    """

    state: Any
    memory: Any


class SimulatedRound(NamedTuple):
    """The outcome of one round of a simulated federation.

    Attributes:
        held: what the next round gets; if something is not finite, its memory is that before the round.
        record: the round's record for the history, without evaluation.
        items: the number of rows in each table of the clients' uploads; tables are concatenated, not added.
        unsound: what is not finite, such as "the state", for a warning; None if all is finite.
    """

    held: Held
    record: dict[str, Any]
    items: list[int]
    unsound: str | None


class Simulation(NamedTuple):
    """What is the same in all rounds of a run: the algorithm, the data and the settings.

    What changes from round to round is in `Held`.
    """

    algorithm: Algorithm
    federation: ClientTable
    schedule: np.ndarray
    key: PRNGKey
    place: Placement
    each_client: bool

    def round(self, number: int, held: Held) -> SimulatedRound:
        """Run a round. If all its numbers are finite, the memory in ``held`` must not be used afterwards."""
        key = jax.random.fold_in(derive(self.key, "rounds"), number)
        sent = cohort.broadcast(self.algorithm, held.state)
        drawn = self.schedule[number]
        before: Compensated | None = None
        structure: Any = None
        memories, told, tables, senders, unsound = [], [], [], [], None
        for group in self.federation.groups(drawn, self.place.multiple):
            given = self._answers(group, sent, held.memory, key, before)
            before, structure = given.uploads.sums, given.uploads.structure
            here = group.clients >= 0
            memories.append((group.clients, given.memory))
            parts = group.clients, group.members.size, given.metrics
            own, uploaded = jax.tree.map(
                lambda x, here=here: np.asarray(x)[here], (parts, given.uploads.tables)
            )
            told.append(own)
            # Put the clients' tables below each other.
            tables.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), uploaded))
            senders.append([np.repeat(group.clients[here], own[0].shape[1]) for own in given.uploads.tables])
            if (lost := here & ~np.asarray(given.sound)).any():
                unsound = f"what client {group.clients[lost].min()} remembers"
        total = cohort.total(cast(Compensated, before))
        who, sizes, metrics = jax.tree.map(lambda *parts: np.concatenate(parts), *told)
        # Sort the tables' items by client, so that they do not depend on how clients are grouped.
        orders = [np.argsort(np.concatenate(own), kind="stable") for own in zip(*senders, strict=True)]
        rows = [
            packed(jax.tree.map(lambda *parts, order=order: np.concatenate(parts)[order], *own))
            for own, order in zip(zip(*tables, strict=True), orders, strict=True)
        ]
        state, finite = cohort.serve(self.algorithm, held.state, Parts(total, rows, structure).upload())
        # A client without examples sends nothing.
        arrived = int((sizes > 0).sum())
        record: dict[str, Any] = {"clients": arrived}
        record["bytes_up"] = arrived * size_in_bytes(total) + sum(size_in_bytes(table[:-1]) for table in rows)
        record["bytes_down"] = int((drawn >= 0).sum()) * size_in_bytes(sent)
        record |= _means(metrics, sizes)
        if self.algorithm.report is not None:
            reported = self.algorithm.report(self.algorithm.params, state)
            record |= {name: np.asarray(value).tolist() for name, value in reported.items()}
        # An infinite loss is no error: an example of an absent class has one.
        if unsound is None and np.isnan(record.get("loss", 0.0)):
            unsound = "the clients' loss"
        if self.each_client:
            record["each_client"] = _by_client(metrics, sizes, who)
        items = [len(table[-1]) for table in rows]
        unsound, memory = unsound if finite else "the state", held.memory
        for who, new in [] if unsound else memories:
            memory = updated(memory, who, new, self.place.memory)
        return SimulatedRound(Held(state, memory), record, items, unsound)

    def _answers(self, group: Group, sent: Any, memory: Any, key: PRNGKey, before: Any) -> cohort.Answers:
        return cohort.answers(
            self.algorithm,
            sent,
            self.federation.examples,
            group.members,
            of_clients(memory, group.clients, self.place.memory),
            key,
            before,
            longest=group.longest,
            width=self.place.width,
            mesh=self.place.mesh,
        )

    def given(self, held: Held) -> cohort.Answers:
        """Return `Answers` of zeros, with the shapes and data types that one group of clients would return.

        No client is simulated.
        """
        group = self.federation.groups(np.zeros(1, int), self.place.multiple)[0]

        def run(state: Any, memory: Any) -> cohort.Answers:
            return self._answers(group, cohort.broadcast(self.algorithm, state), memory, self.key, None)

        return zeros_of(run, held.state, held.memory)

    def names(self, held: Held) -> set[str]:
        """Return the names of all entries that a round's record has before it is evaluated, such as "round".

        What an evaluation measures must have other names.
        """
        report = self.algorithm.report
        told = {} if report is None else jax.eval_shape(report, self.algorithm.params, held.state)
        return {"round", "clients", "bytes_up", "bytes_down", "seconds", "each_client", *told} | {
            *self.given(held).metrics
        }

    def structure_after(self, items: list[list[int]], held: Held) -> Any:
        """Return the pytree structure of `Held` after some rounds; a saved run's arrays are loaded into it.

        ``items`` has, for each of these rounds, the number of rows in each table that the clients uploaded.
        ``held`` is that before the first round.
        """
        for counts in items:
            state = cohort.state_after(self.algorithm, held.state, self.given(held).form, counts)
            held = held._replace(state=state)
        return jax.tree.structure(held)

    def identity(self, state: Any, memory: Any) -> dict[str, Mark]:
        """Return fingerprints, by name, of everything that must be the same if the run is resumed.

        They identify the algorithm, its params and computation, the examples and the key; `took_part` has the
        participation so far.
        """
        numbers, _ = jax.tree_util.tree_flatten_with_path(self.algorithm.params)
        return {
            "algorithm": Mark(self.algorithm.name),
            **{f"params{jax.tree_util.keystr(path)}": Mark.of(leaf) for path, leaf in numbers},
            "what clients and the server compute": Mark("", self._computation(state, memory)),
            **self.federation.identity(),
            "key": Mark.of(jax.random.key_data(self.key)),
        }

    def took_part(self, done: int) -> Mark:
        """Return the fingerprint of the clients that take part in the first ``done`` rounds."""
        # A −1 is a place that no client takes. Leave it out: it does not change who takes part.
        drawn = digest(who[who >= 0] for who in self.schedule[:done])
        return Mark(f"clients in {done} rounds", drawn)

    def _computation(self, state: Any, memory: Any) -> str:
        """Return a checksum of a round's computation: the jaxpr of broadcast, one client and server.

        The values of ``params`` do not change it, as they are arguments of the jaxpr.
        """
        examples, longest = self.federation.examples, int(self.federation.size.max(initial=1))

        def one_round(algorithm: Algorithm, examples: Any, state: Any, memory: Any, key: PRNGKey) -> Any:
            sent, places = algorithm.broadcast(algorithm.params, state), jnp.arange(longest)
            data = ClientData(examples.features, examples.labels, places, places[0])
            upload, memory, _ = algorithm.client(algorithm.params, sent, data, memory, key)
            return algorithm.server(algorithm.params, state, upload), memory

        traced = jax.make_jaxpr(one_round)(self.algorithm, examples, state, memory, self.key)
        # Remove the memory addresses of printed functions: they differ between processes.
        text = re.sub("0x[0-9a-f]+", "", str(traced))
        return digest([np.frombuffer(text.encode(), np.uint8), *map(np.asarray, traced.consts)])


def _means(metrics: dict[str, np.ndarray], sizes: np.ndarray) -> dict[str, float]:
    """Average the metrics over the clients of a round, weighted by their numbers of examples."""
    if not sizes.sum():
        return {}
    weight = sizes.astype(float)
    return {name: float(np.average(value, weights=weight)) for name, value in metrics.items()}


def _by_client(
    metrics: dict[str, np.ndarray], sizes: np.ndarray, who: np.ndarray
) -> dict[str, list[int] | list[float]]:
    """Return columns: each client's number, how many examples it has, and its metrics; sorted by client.

    Float metrics of clients without examples are nan, as a mean over no examples is undefined.
    """
    told = {
        name: np.where(sizes > 0, value, np.nan) if value.dtype.kind == "f" else value
        for name, value in metrics.items()
    }
    columns = {"client": who, "examples": sizes, **told}
    return {name: column[np.argsort(who)].tolist() for name, column in columns.items()}
