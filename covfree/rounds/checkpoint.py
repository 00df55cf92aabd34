"""The checkpoint of a simulated run of rounds: its state, and the history in a file of JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from covfree.core.atomic import replacing
from covfree.core.checks import check_positive
from covfree.engine.checkpoint import CheckpointFolder, Mark


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


class Saved(NamedTuple):
    """What a checkpoint stores after a round, besides the arrays of the run's state.

    Attributes:
        done: the number of finished rounds.
        items: for each finished round, the lengths of the tables in its total, see `Book.items`; they
            determine the structure of the saved arrays.
        record: the last round's record in the history; its evaluation may be missing.
    """

    done: int
    items: list[list[int]]
    record: dict[str, Any]


class RunFolder:
    """The folder of a `Checkpoint`: the saved state of a run, and its history.

    Args:
        folder: the folder, see `CheckpointFolder`.
        identity: ``identity(n)`` describes this run after n rounds: fingerprints of its algorithm, examples
            and key, which must equal those in the checkpoint.
    """

    def __init__(self, folder: Path, identity: Callable[[int], Mapping[str, Mark]]) -> None:
        self._saved, self._identity = CheckpointFolder(folder, "a run of rounds"), identity
        self._lines = folder / "history.jsonl"
        self.close = self._saved.close

    def tell(self, record: Mapping[str, Any]) -> None:
        """Add a round's record to the history."""
        with self._lines.open("a") as file:
            file.write(f"{json.dumps(_each(_finite, record), allow_nan=False)}\n")

    def save(self, trees: Any, saved: Saved) -> None:
        """Save the run's arrays and ``saved``, as a whole or not at all."""
        self._saved.save(saved.done, trees, saved._asdict(), self._identity(saved.done))

    def load(
        self, rounds: int, structure: Callable[[Saved], Any]
    ) -> tuple[Any, Saved, list[dict[str, Any]]] | None:
        """Return the arrays, the `Saved` data and the rounds' records; None if nothing is saved.

        Lines of rounds after the saved one are removed from ``history.jsonl``. The saved round's own record
        is missing if the round was saved before its evaluation.

        Args:
            rounds: the number of rounds that the run is to have.
            structure: function from `Saved` to the pytree structure of the saved arrays.
        """

        def identity(about: Mapping[str, Any]) -> Mapping[str, Mark]:
            if about["done"] > rounds:
                raise ValueError(
                    f"rounds: expected at least {about['done']}, as {self._saved.folder} holds, got {rounds}"
                )
            return self._identity(about["done"])

        found = self._saved.load(identity)
        if found is None:
            self._lines.write_text("")
            return None
        saved = Saved(**{name: found[1][name] for name in Saved._fields})
        lines = self._lines.read_text().splitlines()[: saved.done] if self._lines.exists() else []
        if len(lines) < saved.done - 1:
            raise ValueError(f"checkpoint: expected {saved.done} lines in {self._lines}, got {len(lines)}")
        with replacing(self._lines) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        return (
            structure(saved).unflatten(found[0]),
            saved,
            [_each(_number, json.loads(line)) for line in lines],
        )


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
