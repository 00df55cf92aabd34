"""What came of cells: results in files beside a table, and numbers that need none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from covfree.core.atomic import JsonLines
from covfree.studies import Federation, Run
from covfree.studies.result import RunFile
from experiments.tables.counts import count
from experiments.tables.formulas import compared
from experiments.tables.printed import in_form_of, is_cut
from experiments.tables.settings import data_name, federation_of, method_name, own_settings
from experiments.tables.spec import FROM_DATA, Cell

_ABSENT = "data not at hand"


@dataclass(frozen=True)
class Ours:
    """What covfree gives for a cell.

    Attributes:
        shown: the number in the form of the printed one; empty if there is none.
        difference: from the printed one: ``=``, or a number with its sign, and perhaps ``cut``; empty if
            nothing is printed.
        reason: why there is no number.
    """

    shown: str = ""
    difference: str = ""
    reason: str = ""


class Lines:
    """Records of settings and a seed in a file of JSON lines, each added when it is done."""

    def __init__(self, path: Path) -> None:
        self._lines: JsonLines[dict[str, Any]] = JsonLines(path, _with_settings, "settings and a seed")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records, in the order in which they were added."""
        return self._lines.records

    def add(self, record: dict[str, Any]) -> None:
        """Add a record, and force it to the disk."""
        self._lines.add(record, record)

    def find(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any] | None:
        """The record of these settings and this seed."""
        for record in self.records:
            if record["settings"] == settings and record["seed"] == seed:
                return record
        return None


def _with_settings(record: dict[str, Any]) -> dict[str, Any]:
    if lacking := {"settings", "seed"} - record.keys():
        raise KeyError(*sorted(lacking))
    return record


class Results:
    """The results of a table, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[str, Lines] = {}

    @property
    def runs_file(self) -> Path:
        """The file of the sweep's runs."""
        return self.folder / "runs.jsonl"

    def lines(self, kind: str) -> Lines:
        """The records of the other kinds, each of which has a file."""
        if kind not in self._lines:
            self._lines[kind] = Lines(self.folder / f"{kind}.jsonl")
        return self._lines[kind]

    @cached_property
    def _runs(self) -> dict[tuple[str, Federation | None, str, int], Run]:
        return {
            (run.dataset, run.federation, run.method, run.seed): run
            for run, _ in RunFile(self.runs_file).runs
        }

    def ours(self, cell: Cell) -> Ours:
        """What there is for a cell."""
        if cell.kind == "missing":
            return Ours(reason=cell.settings["missing"])
        if cell.kind == "formula":
            return Ours("", compared(cell.settings))
        found = self._combined(cell) if cell.parts else self._found(cell)
        if isinstance(found, str):
            return Ours(reason=found)
        mean, spread = found
        shown, difference = in_form_of(cell.printed, mean, spread)
        return Ours(shown, f"{difference}, cut" if is_cut(cell.printed, mean) else difference)

    def _found(self, cell: Cell) -> tuple[float, float | None] | str:
        """Mean and spread over seeds, or why there are none."""
        if cell.kind not in FROM_DATA:
            return count(cell.settings)
        values = [self._value(cell, seed) for seed in range(cell.settings["seeds"])]
        if reasons := [value for value in values if isinstance(value, str)]:
            return reasons[0]
        numbers = [value for value in values if not isinstance(value, str)]
        spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
        return fmean(numbers), spread

    def _combined(self, cell: Cell) -> tuple[float, float | None] | str:
        """The parts' mean, with the mean of their spreads as the papers have it; or their difference."""
        found = [self._found(part) for part in cell.parts]
        if reasons := [each for each in found if isinstance(each, str)]:
            return reasons[0]
        pairs = [each for each in found if not isinstance(each, str)]
        if cell.settings["combine"] == "difference":
            return pairs[-1][0] - pairs[0][0], None
        spreads = [spread for _, spread in pairs if spread is not None]
        return fmean(mean for mean, _ in pairs), fmean(spreads) if len(spreads) == len(pairs) else None

    def _value(self, cell: Cell, seed: int) -> float | str:
        """A seed's number, or why there is none."""
        settings = cell.settings
        if cell.kind == "accuracy":
            key = (data_name(settings), federation_of(settings), method_name(settings), seed)
            return 100 * self._runs[key].accuracy if key in self._runs else _ABSENT
        record = self.lines(cell.kind).find(own_settings(cell.kind, settings), seed)
        if record is None:
            return _ABSENT
        if record.get("diverged") is not None:
            return f"diverged in round {record['diverged']}"
        if "history" not in record or "result" in settings:
            return record[settings.get("result", "value")]
        history = {number: 100 * accuracy for number, accuracy in record["history"]}
        if "reaches" in settings:
            reached = [number for number, accuracy in history.items() if accuracy >= settings["reaches"]]
            return min(reached) if reached else f"{settings['reaches']} % was not reached"
        wanted = settings.get("round", settings["rounds"])
        return history.get(wanted, f"round {wanted} is after the last, {settings['rounds']}")
