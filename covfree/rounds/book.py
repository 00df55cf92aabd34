"""Keep the history of a run: a record for each round, its evaluation, and which round was best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_positive
from covfree.rounds.checkpoint import Folder, Saved
from covfree.rounds.memory import Bank
from covfree.rounds.simulation import Held, Simulation

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """A function that measures an algorithm's result, and the rounds after which it is called.

    Attributes:
        measure: function from the result to numbers that the history records, such as ``{"accuracy": 0.9}``.
        every: rounds from one evaluation to the next; the last round is always evaluated, and so is the one
            after which the run stops.
        best: name of a number, such as ``"accuracy"``: `Run.best` is then the result with the largest one.
            Evaluate on validation data: a test accuracy by which a round was chosen is too high.
    """

    measure: Callable[[Any], Mapping[str, Any]]
    every: int = 1
    best: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise TypeError(f"evaluate: expected a function or None, got {self.measure!r}")
        check_positive("evaluate: every", self.every)

    def __call__(self, result: Any) -> dict[str, Any]:
        """Measure a result; return numbers that JSON can represent, or ``{}`` if the result is None."""
        if result is None:
            return {}
        measured = self.measure(result)
        if not isinstance(measured, Mapping):
            raise TypeError(f'evaluate: expected a dict such as {{"accuracy": 0.9}}, got {measured!r}')
        return {name: np.asarray(value).tolist() for name, value in measured.items()}


@dataclass
class Book:
    """The history of a run so far, with the settings for evaluating, stopping and saving it.

    Attributes:
        simulation: computes the rounds.
        rounds: the number of rounds to run.
        evaluate: the evaluation; None to measure nothing.
        stop: function of the records that returns whether to stop; None for never.
        records: one for each finished round.
        items: for each finished round, the number of items in each `Table` of the round's total; empty unless
            the algorithm fixes the number of rounds.
        stopped: why the run stopped early; None if it did not.
        best_round: the round with the best evaluation so far.
        folder: the folder in which the run is saved every ``save_every`` rounds; None to save nothing.
        saved: the number of finished rounds at the last saving.
    """

    simulation: Simulation
    rounds: int
    evaluate: Evaluation | None
    stop: Callable[[Records], bool] | None
    records: Records = field(default_factory=list)
    items: list[list[int]] = field(default_factory=list)
    stopped: str | None = None
    best_round: int | None = None
    folder: Folder | None = None
    save_every: int = 1
    saved: int = 0

    def end(self, held: Held, record: dict[str, Any], due: bool = True) -> Held:
        """Add a finished round's ``record`` to the history; then save, evaluate or stop the run if needed.

        ``held`` has the state after the round; with ``due`` False, it is not saved again. Return ``held``; if
        this round's evaluation is the best so far, its ``best`` is this state.
        """
        number = record["round"]
        self.records.append({**record})
        if self.folder is not None and due and number % self.save_every == self.save_every - 1:
            self.save(held, record)
        try:
            asked = self.evaluate is not None and (
                number % self.evaluate.every == self.evaluate.every - 1 or number == self.rounds - 1
            )
            if asked:
                held = self._measured(held)
            if self.stop is not None and self.stop(self.records):
                self.stopped = f"round {number}: stop(history) was true"
                if self.evaluate is not None and not asked:
                    held = self._measured(held)
        except BaseException:
            # Save without the evaluation: it is repeated when the run is resumed.
            self.save(held, record)
            raise
        if self.folder is not None:
            self.folder.tell(self.records[-1])
        return held

    def _measured(self, held: Held) -> Held:
        """Evaluate the state after the last round, and add the result to the round's record.

        Return ``held``, with this state as its ``best`` if the evaluation is the best so far.
        """
        measured, memory = self._evaluated(held)
        if taken := sorted(set(measured) & set(self.records[-1])):
            raise ValueError(
                f"evaluate: expected names other than those the history uses itself, got {taken}"
            )
        self.records[-1] |= measured
        return held._replace(best=(held.state, memory)) if self._is_best(self.records[-1]) else held

    def _evaluated(self, held: Held) -> tuple[dict[str, Any], Any]:
        # Later rounds overwrite the clients' memory, so an evaluation must keep a copy.
        memory, algorithm = copied(held.memory), self.simulation.algorithm
        result = algorithm.result(algorithm.params, held.state, memory)
        return ({} if self.evaluate is None else self.evaluate(result)), memory

    def _is_best(self, record: dict[str, Any]) -> bool:
        name = None if self.evaluate is None else self.evaluate.best
        score = None if name is None else record.get(name)
        # NaN is never the best.
        if name is None or score is None or score != score:
            return False
        if self.best_round is not None and not score > self.records[self.best_round][name]:
            return False
        self.best_round = record["round"]
        return True

    def measure_start(self, held: Held, bank: Bank) -> None:
        """Evaluate the state before the first round.

        Raises:
            ValueError: if a measured number has a name that the history uses itself, or ``best`` names none.
        """
        measured, _ = self._evaluated(held)
        best = None if self.evaluate is None else self.evaluate.best
        if measured and (taken := sorted(set(measured) & self.simulation.names(held.state, bank))):
            raise ValueError(
                f"evaluate: expected names other than those the history uses itself, got {taken}"
            )
        if measured and best is not None and best not in measured:
            raise ValueError(
                f"evaluate: expected best to name a measured number, one of {sorted(measured)}, got {best!r}"
            )

    def load(self, first: Held, bank: Bank) -> Held:
        """Load the saved run and return its state, or ``first`` if none is saved.

        If the run broke off before the last saved round was evaluated, that round is evaluated now.
        """

        def structure(saved: Saved) -> Any:
            here = self.simulation._replace(delays=saved.delays)
            pending = here.nothing_pending(first.state, bank)
            return here.structure_after(saved.items, first._replace(pending=pending), bank)

        found = None if self.folder is None else self.folder.load(self.rounds, structure)
        if found is None:
            return first
        held, saved, self.records = found
        self.items, self.saved = saved.items, saved.done
        self.simulation = self.simulation._replace(delays=max(self.simulation.delays, saved.delays))
        nothing = self.simulation.nothing_pending(first.state, bank)
        held = held._replace(pending=_longer(held.pending, nothing))
        for record in self.records:
            self._is_best(record)
        if self.best_round == saved.done - 1:
            held = held._replace(best=(held.state, copied(held.memory)))
        if len(self.records) < saved.done:
            return self.end(held, saved.record, due=False)
        if self.stop is not None and self.stop(self.records):
            self.stopped = f"round {saved.done - 1}: stop(history) was true"
        return held

    def save(self, held: Held, record: dict[str, Any] | None = None) -> None:
        """Save the state and the record of the last round, unless they are saved already."""
        if self.folder is not None and self.saved < len(self.records):
            self.saved = len(self.records)
            record = self.records[-1] if record is None else record
            about = Saved(self.saved, self.simulation.delays, self.items, record)
            self.folder.save(held, about)


def _longer(pending: Any, nothing: Any) -> Any:
    """Append zeros to ``pending``, the sums of late uploads, so that it covers as many delays as ``nothing``.

    On the first axis of its arrays, entry i is due in i rounds. ``nothing`` has zeros for all sums; it is
    returned if ``pending`` is None.
    """
    if pending is None or nothing is None:
        return nothing
    return jax.tree.map(lambda x, zero: jnp.concatenate([x, zero[len(x) :]]), pending, nothing)


def copied(memory: Any) -> Any:
    """Copy the clients' memory, because later rounds overwrite its arrays."""
    return jax.tree.map(lambda x: x.copy(), memory)
