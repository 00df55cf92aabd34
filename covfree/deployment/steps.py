"""Compute, as pure functions, a client's and the server's part of a round between machines.

These functions call those of the simulation, in `covfree.rounds.cohort`, in the same order. So a federation
of machines and `covfree.rounds.run` have the same result to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.forms import zeros_of
from covfree.core.keys import derive
from covfree.core.sums import Compensated
from covfree.core.types import PRNGKey
from covfree.rounds import cohort
from covfree.rounds.adding import Parts
from covfree.rounds.algorithm import Algorithm
from covfree.rounds.from_method import Sent

# The arrays of a message by name. A client's upload has `sum.0`, …, which the server adds over clients, and
# `table.0.0`, …, the columns of tables, with one entry for each row, without padding.
Arrays: TypeAlias = Mapping[str, np.ndarray]


class Steps:
    """What clients and server compute in an algorithm's rounds; nothing is sent or stored here.

    Attributes:
        algorithm: the algorithm.
        most: the largest number of examples that a client may have. No client pads its data to more rows.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        num_clients: int,
        key: PRNGKey,
        example: np.ndarray,
        most: int,
        *,
        private: bool = False,
    ) -> None:
        """Store the settings on which all machines agree.

        Args:
            algorithm: the algorithm.
            num_clients: the number of clients.
            key: PRNG key of all draws.
            example: [1, …], zeros in the shape and data type of one example.
            most: the largest number of examples of a client.
            private: whether errors must not reveal anything about examples. If a client's memory (what it
                keeps between rounds) is no longer finite after a round, `upload` raises an error; if
                ``private``, it returns the memory from before the round instead.
        """
        self.algorithm, self.most = jax.device_put(algorithm), most
        self._num_clients, self._key, self._example, self._private = num_clients, key, example, private
        self._skeletons: list[Any] = []

    def start(self) -> tuple[Any, Any]:
        """Return the server's first state, and a client's first memory (what it keeps between rounds)."""
        return cohort.start(self.algorithm, self._key, num_clients=self._num_clients)

    def broadcast(self, state: Any) -> Any:
        """Return the pytree that the server sends to all clients."""
        return cohort.broadcast(self.algorithm, state)

    def padded(self, examples: int) -> int:
        """Return the number of rows to which a client with ``examples`` examples pads its data."""
        if not self.algorithm.whole:
            return self.most
        return min(self.most, 16 * 4 ** math.ceil(math.log(max(examples, 16) / 16, 4) - 1e-9))

    def upload(
        self, number: int, turn: int, sent: Any, memory: Any, features: np.ndarray, labels: np.ndarray
    ) -> tuple[Arrays, Any]:
        """Return a client's upload in a round, and the client's memory after the round.

        Args:
            number: the client's number.
            turn: the round, from 0.
            sent: the server's broadcast.
            memory: the client's memory (what it keeps between rounds) before the round.
            features: [n, d], or images [n, side, side, 3].
            labels: [n]; below 0 is padding.
        """
        longest = self.padded(int((labels >= 0).sum()))
        given = self._answers(number, turn, sent, memory, features, labels, longest)
        parts, remembered = given.uploads, jax.tree.map(lambda x: np.asarray(x)[0], given.memory)
        upload = {f"sum.{i}": np.asarray(x) for i, x in enumerate(parts.sums.total)}
        for i, (*columns, kept) in enumerate(parts.tables):
            used = np.asarray(kept)[0]
            upload |= {f"table.{i}.{j}": np.asarray(x)[0][used] for j, x in enumerate(columns)}
        if not np.asarray(given.sound)[0] and self._private:
            # Keep the old memory: an error would reveal something about the client's examples.
            remembered = jax.tree.map(np.asarray, memory)
        elif not np.asarray(given.sound)[0]:
            raise ValueError("memory: expected finite numbers after the round; the features may be too large")
        return upload, remembered

    def _answers(
        self, number: int, turn: int, sent: Any, memory: Any, features: Any, labels: np.ndarray, longest: int
    ) -> cohort.Answers:
        """Compute a client's upload and new memory, by the code that also simulates many clients at once.

        ``longest`` is the number of examples to which the client's data are padded; the other arguments are
        those of `upload`.
        """
        # Give a client without examples one row of padding, as the arrays must not be empty.
        features, labels = (x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype) for x in (features, labels))
        # Pad `order` to the length of `labels`: then clients with equal numbers of rows share a compilation.
        own, order = np.flatnonzero(labels >= 0), np.zeros(len(labels), np.int32)
        order[: len(own)] = own
        client, start, sizes = (jnp.asarray([x], jnp.int32) for x in (number, 0, len(own)))
        members = cohort.Members(client, start, sizes)
        return cohort.answers(
            self.algorithm,
            sent,
            cohort.Examples(*map(jnp.asarray, (features, labels.astype(np.int32), order))),
            members,
            jax.tree.map(lambda x: jnp.asarray(x)[None], memory),
            jax.random.fold_in(derive(self._key, "rounds"), turn),
            None,
            longest=longest,
            width=1,
            mesh=None,
        )

    def form(self, state: Any) -> Parts:
        """Return zeros with the shapes of a client's upload in the round after ``state``.

        Each table has as many rows as a client may send at most.
        """

        def one(state: Any) -> Parts:
            sent, memory = cohort.broadcast(self.algorithm, state), self.start()[1]
            example = self._example, np.zeros(1, np.int32)
            return self._answers(0, 0, sent, memory, *example, self.padded(self.most)).form

        return zeros_of(one, state)

    def skeleton(self, items: Sequence[Sequence[int]]) -> Any:
        """Return zeros with the shapes of the server's state after ``len(items)`` rounds.

        The shapes depend on how many rows clients sent: ``items[r][i]`` is the length of the i-th
        `covfree.rounds.Table` of all uploads of round r together.
        """
        if not self._skeletons:
            self._skeletons.append(zeros_of(lambda: self.start()[0]))
        if self.algorithm.rounds is None:
            return self._skeletons[0]
        for counts in items[len(self._skeletons) - 1 :]:
            state = self._skeletons[-1]
            self._skeletons.append(cohort.state_after(self.algorithm, state, self.form(state), counts))
        return self._skeletons[len(items)]

    def check(self, arrays: Arrays, form: Parts) -> None:
        """Check the arrays of a client's message.

        Args:
            arrays: the message's arrays, by name.
            form: the expected shapes and data types, from `form`. A table may have fewer rows.

        Raises:
            ValueError: if a number is not finite, or a shape or data type is not the expected one.
        """
        wanted = {f"sum.{i}": (x.shape, x.dtype) for i, x in enumerate(form.sums)}
        for i, (*columns, kept) in enumerate(form.tables):
            length = len(np.atleast_1d(arrays.get(f"table.{i}.0", 0)))
            if length > len(kept):
                raise ValueError(f"upload: expected at most {len(kept)} rows, got {length}")
            wanted |= {f"table.{i}.{j}": ((length, *x.shape[1:]), x.dtype) for j, x in enumerate(columns)}
        found = {name: (x.shape, x.dtype) for name, x in arrays.items()}
        if found != wanted:
            shown = (", ".join(f"{n}: {t}{list(s)}" for n, (s, t) in own.items()) for own in (wanted, found))
            raise ValueError("upload: expected {}; got {}".format(*shown))
        for name, x in arrays.items():
            if jnp.issubdtype(x.dtype, jnp.inexact) and not np.isfinite(x.astype(np.float64)).all():
                raise ValueError(f"upload: {name}: expected finite numbers")

    def total(self, examples: Mapping[int, int], load: Callable[[int], Arrays], form: Parts) -> Any:
        """Add up the clients' uploads: return one upload, with sums added and tables concatenated.

        Sums are added in the order of the simulation: clients are grouped by padded size, and each group has
        its own compensated sum, to which larger clients are added first. Tables are in the order of clients'
        numbers.

        Args:
            examples: the number of examples of each client to add, by the client's number.
            load: function from a client's number to its upload, called once for each client.
            form: an upload of zeros, from the method `form`.
        """
        zeros = [jnp.zeros_like(x) for x in form.sums]
        total, tables = Compensated(zeros, zeros), dict[int, Arrays]()
        for place, size in enumerate(sorted({self.padded(own) for own in examples.values()})):
            group = Compensated(zeros, zeros)
            for number in sorted(examples, key=lambda number: (-examples[number], number)):
                if self.padded(examples[number]) == size:
                    own = load(number)
                    group = _plus(group, [jnp.asarray(own[f"sum.{i}"]) for i in range(len(zeros))])
                    tables[number] = {name: x for name, x in own.items() if name.startswith("table")}
            total = total.plus(group.total).plus(group.lost) if place else group
        columns = [
            [
                np.concatenate([tables[n][f"table.{i}.{j}"] for n in sorted(tables)])
                for j in range(len(table) - 1)
            ]
            for i, table in enumerate(form.tables)
        ]
        whole = [[*map(jnp.asarray, own), jnp.ones(len(own[0]), bool)] for own in columns]
        upload = Parts(total.value, whole, form.structure).upload()
        if isinstance(upload, Sent):
            # The signature says whose rows these are; the sender's own array of clients is not trusted.
            owner = [np.full(len(tables[n]["table.0.0"]), n, np.int32) for n in sorted(tables)]
            items = replace(upload.rows.items, client=jnp.asarray(np.concatenate(owner)))
            upload = upload._replace(rows=replace(upload.rows, items=items))
        return upload

    def serve(self, state: Any, total: Any) -> tuple[Any, bool]:
        """Return the server's next state, and whether all numbers in this state are finite."""
        state, finite = cohort.serve(self.algorithm, state, total)
        return state, bool(finite)

    def result(self, state: Any) -> Any:
        """Return the algorithm's result, such as a head, from the server's state."""
        return self.algorithm.result(self.algorithm.params, state, None)

    def report(self, state: Any) -> dict[str, Any]:
        """Return the algorithm's numbers about the server's state (`Algorithm.report`), or {}."""
        report = self.algorithm.report
        return {} if report is None else report(self.algorithm.params, state)


@jax.jit
def _plus(group: Compensated, terms: Any) -> Compensated:
    return group.plus(terms)
