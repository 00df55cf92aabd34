"""Keep the history of a run: a record for each round, its evaluation, and what a folder saves of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covfree.core.atomic import replacing
from covfree.core.checks import check_positive
from covfree.engine.checkpoint import CheckpointFolder, Mark
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


@dataclass(frozen=True)
class Checkpoint:
    """A folder in which a run is saved. If the run was saved there before, it is resumed.

    After each round, a line of JSON is appended to ``history.jsonl`` in the folder, with null for numbers
    that are not finite. Needs the ``rounds`` extra.

    Attributes:
        folder: the folder.
        every: rounds between saves; the end of the run is always saved.
    """

    folder: str | PathLike[str]
    every: int = 1

    def __post_init__(self) -> None:
        check_positive("checkpoint: every", self.every)


class Book:
    """A run's history so far. The book also evaluates the run, stops it, and saves it in a folder.

    Attributes:
        records: one for each finished round.
        items: for each finished round, the number of items in each `Table` of the round's total; empty unless
            the algorithm fixes the number of rounds.
        stopped: why the run stopped early; None if it did not.
    """

    def __init__(
        self,
        simulation: Simulation,
        rounds: int,
        evaluate: Evaluation | None,
        stop: Callable[[Records], bool] | None,
        checkpoint: Checkpoint | None,
        start: tuple[Any, Any],
    ) -> None:
        """Begin an empty history of ``rounds`` rounds, and open the folder of the checkpoint.

        ``start`` has the server's first state, and a client's first memory.
        """
        self.records: Records = []
        self.items: list[list[int]] = []
        self.stopped: str | None = None
        self._simulation, self._rounds = simulation, rounds
        self._evaluate, self._stop = evaluate, stop
        self._folder: CheckpointFolder | None = None
        if checkpoint is not None:
            self._marks = simulation.identity(*start)
            self._folder = CheckpointFolder(Path(checkpoint.folder), "a run of rounds")
            self._lines = self._folder.folder / "history.jsonl"
            self._every, self._saved = checkpoint.every, 0

    def end(self, held: Held, record: dict[str, Any]) -> None:
        """Add a finished round's ``record`` to the history; then save, evaluate or stop the run if needed.

        ``held`` has the state after the round.
        """
        done = record["round"] + 1
        self.records.append({**record})
        if self._folder is not None and done % self._every == 0:
            self.save(held, record)
        try:
            asked = self._evaluate is not None and (done == self._rounds or done % self._evaluate.every == 0)
            if asked:
                self.records[-1] |= self.measured(held)
            if self._stop is not None and self._stop(self.records):
                self.stopped = f"round {done - 1}: stop(history) was true"
                if not asked:
                    self.records[-1] |= self.measured(held)
        except BaseException:
            # Save without the evaluation: it is repeated when the run is resumed.
            self.save(held, record)
            raise
        if self._folder is not None:
            with self._lines.open("a") as file:
                file.write(f"{json.dumps(_each(_finite, self.records[-1]), allow_nan=False)}\n")

    def measured(self, held: Held) -> dict[str, Any]:
        """Evaluate the state after the last round, or before the first; return what was measured.

        Raises:
            ValueError: if a measured number has a name that the history uses itself.
        """
        if self._evaluate is None:
            return {}
        # Later rounds overwrite the clients' memory, so an evaluation must keep a copy.
        memory, algorithm = jax.tree.map(lambda x: x.copy(), held.memory), self._simulation.algorithm
        measured = self._evaluate(algorithm.result(algorithm.params, held.state, memory))
        names = self.records[-1] if self.records else self._simulation.names(held)
        if taken := sorted(set(measured) & set(names)):
            raise ValueError(
                f"evaluate: expected names other than those the history uses itself, got {taken}"
            )
        return measured

    def load(self, first: Held) -> Held:
        """Load the saved run and return its state, or ``first`` if none is saved.

        Lines of rounds after the saved one are removed from ``history.jsonl``. If the run broke off before
        the last saved round was evaluated, that round is evaluated now.
        """
        if self._folder is None:
            return first
        found = self._folder.load(lambda about: self._identity(about["done"]))
        if found is None:
            self._lines.write_text("")
            return first
        leaves, about = found
        done, self.items = about["done"], about["items"]
        lines = self._lines.read_text().splitlines()[:done] if self._lines.exists() else []
        if len(lines) < done - 1:
            raise ValueError(f"checkpoint: expected {done} lines in {self._lines}, got {len(lines)}")
        with replacing(self._lines) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        self.records, self._saved = [_each(_number, json.loads(line)) for line in lines], done
        held = self._simulation.structure_after(self.items, first).unflatten(leaves)
        if len(lines) < done:
            self.end(held, about["record"])
        elif self._stop is not None and self._stop(self.records):
            self.stopped = f"round {done - 1}: stop(history) was true"
        return held

    def save(self, held: Held, record: dict[str, Any] | None = None) -> None:
        """Save the state and the record of the last round, unless they are saved already."""
        done = len(self.records)
        if self._folder is not None and self._saved < done:
            self._saved = done
            about = {"done": done, "items": self.items, "record": record or self.records[-1]}
            self._folder.save(done, held, about, self._identity(done))

    def _identity(self, done: int) -> Mapping[str, Mark]:
        """Return this run's fingerprints after ``done`` rounds; those of a saved run must be the same."""
        if self._folder is not None and done > self._rounds:
            raise ValueError(
                f"rounds: expected at least {done}, as {self._folder.folder} holds, got {self._rounds}"
            )
        return self._marks | {"participation": self._simulation.took_part(done)}

    def close(self) -> None:
        """Unlock the folder."""
        if self._folder is not None:
            self._folder.close()


def _finite(value: Any) -> Any:
    """Replace a number that is not finite by None, as JSON cannot represent it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    """Replace None, read from JSON, by NaN."""
    return math.nan if value is None else value


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert all entries of nested dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _each(convert, part) for name, part in value.items()}
    return [_each(convert, part) for part in value] if isinstance(value, list) else convert(value)
