"""Keep the history of a run: a record for each round, and its evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from covfree.core.checks import check_positive
from covfree.rounds.checkpoint import RunFolder, Saved
from covfree.rounds.simulation import Held, Simulation

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """A function that measures an algorithm's result, and the rounds after which it is called.

    Attributes:
        measure: function from the result to numbers that the history records, such as ``{"accuracy": 0.9}``.
        every: rounds from one evaluation to the next; the last round is always evaluated, and so is the one
            after which the run stops.
    """

    measure: Callable[[Any], Mapping[str, Any]]
    every: int = 1

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
    folder: RunFolder | None = None
    save_every: int = 1
    saved: int = 0

    def end(self, held: Held, record: dict[str, Any]) -> None:
        """Add a finished round's ``record`` to the history; then save, evaluate or stop the run if needed.

        ``held`` has the state after the round.
        """
        number = record["round"]
        self.records.append({**record})
        if self.folder is not None and number % self.save_every == self.save_every - 1:
            self.save(held, record)
        try:
            last = number == self.rounds - 1
            asked = self.evaluate is not None and (last or (number + 1) % self.evaluate.every == 0)
            if asked:
                self.records[-1] |= self.measured(held)
            if self.stop is not None and self.stop(self.records):
                self.stopped = f"round {number}: stop(history) was true"
                if not asked:
                    self.records[-1] |= self.measured(held)
        except BaseException:
            # Save without the evaluation: it is repeated when the run is resumed.
            self.save(held, record)
            raise
        if self.folder is not None:
            self.folder.tell(self.records[-1])

    def measured(self, held: Held) -> dict[str, Any]:
        """Evaluate the state after the last round, or before the first; return what was measured.

        Raises:
            ValueError: if a measured number has a name that the history uses itself.
        """
        if self.evaluate is None:
            return {}
        # Later rounds overwrite the clients' memory, so an evaluation must keep a copy.
        memory, algorithm = jax.tree.map(lambda x: x.copy(), held.memory), self.simulation.algorithm
        measured = self.evaluate(algorithm.result(algorithm.params, held.state, memory))
        names = self.records[-1] if self.records else self.simulation.names(held)
        if taken := sorted(set(measured) & set(names)):
            raise ValueError(
                f"evaluate: expected names other than those the history uses itself, got {taken}"
            )
        return measured

    def load(self, first: Held) -> Held:
        """Load the saved run and return its state, or ``first`` if none is saved.

        If the run broke off before the last saved round was evaluated, that round is evaluated now.
        """

        def structure(saved: Saved) -> Any:
            return self.simulation.structure_after(saved.items, first)

        found = None if self.folder is None else self.folder.load(self.rounds, structure)
        if found is None:
            return first
        held, saved, self.records = found
        self.items, self.saved = saved.items, saved.done
        if len(self.records) < saved.done:
            self.end(held, saved.record)
        elif self.stop is not None and self.stop(self.records):
            self.stopped = f"round {saved.done - 1}: stop(history) was true"
        return held

    def save(self, held: Held, record: dict[str, Any] | None = None) -> None:
        """Save the state and the record of the last round, unless they are saved already."""
        if self.folder is not None and self.saved < len(self.records):
            self.saved = len(self.records)
            about = Saved(self.saved, self.items, record or self.records[-1])
            self.folder.save(held, about)
