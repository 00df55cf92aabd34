"""Cells that need data, run one after the other; what is done is kept, and never done twice."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from covfree.studies import Study
from covfree.studies.fingerprint import fingerprint
from covfree.studies.progress import Listener
from covfree.studies.result import RunFile
from experiments.tables import arrivals, measures, one_shot, personal, prompts, trained
from experiments.tables.data import Data, Found, NotAtHand
from experiments.tables.identities import Identities
from experiments.tables.results import Results
from experiments.tables.settings import data_name, federation_of, method_name, method_of, own_settings
from experiments.tables.spec import FROM_DATA, Cell

Tell = Callable[[str], None]
# How a run of a kind is made: from its own settings, the data, the seed, and a folder for what it needs to go
# on where it was stopped. The result is a record: a ``value``, or a ``history`` of rounds and accuracies.
RUNNERS: Mapping[str, Callable[[Mapping[str, Any], Data, int, Path], dict[str, Any]]] = {
    "measured": measures.run,
    "arrivals": arrivals.run,
    "trained": trained.run,
    "prompts": prompts.run,
    "one-shot": one_shot.run,
    "personal": personal.run,
}


@dataclass
class Done:
    """What a command did.

    Attributes:
        computed: runs that were made.
        kept: runs that were there.
        missing: names of cells that could not be run, by the reason.
    """

    computed: int = 0
    kept: int = 0
    missing: dict[str, set[str]] = field(default_factory=dict)

    def miss(self, cell: Cell, reason: str) -> None:
        """Note a cell that could not be run."""
        self.missing.setdefault(reason, set()).add(cell.name)


def run_cells(cells: Iterable[Cell], found: Found, folder: Path, tell: Tell) -> Done:
    """Run the cells that need data, as far as data and weights are at hand.

    Args:
        cells: of one table.
        found: where data and weights are.
        folder: of the results, made when the first is there.
        tell: is told each run when it is done.

    Raises:
        ValueError: if data, weights or settings are wrong, or the folder holds results of other data.
    """
    done, results = Done(), Results(folder)
    identities = Identities(folder / "sources.jsonl")
    wanted: list[Cell] = []
    for cell in cells:
        if cell.kind == "missing":
            done.miss(cell, cell.settings["missing"])
        elif cell.kind in FROM_DATA:
            wanted += cell.parts or [cell]
    for _, group in groupby(sorted(wanted, key=_data), key=_data):
        own = list(group)
        try:
            data = found.data(own[0].settings)
        except NotAtHand as error:
            for cell in own:
                done.miss(cell, str(error))
            continue
        identities.check(data)
        for kind in FROM_DATA:
            of_kind = [cell for cell in own if cell.kind == kind]
            if kind == "accuracy" and of_kind:
                _sweep(data, of_kind, results, done, tell)
            elif of_kind:
                _run(kind, data, of_kind, results, done, tell)
    return done


def _data(cell: Cell) -> str:
    return data_name(cell.settings)


def _sweep(data: Data, cells: list[Cell], results: Results, done: Done, tell: Tell) -> None:
    """Test accuracies of methods in closed form."""
    groups: dict[Any, dict[str, Any]] = {}
    for cell in cells:
        group = federation_of(cell.settings), cell.settings["seeds"]
        name = method_name(cell.settings)
        groups.setdefault(group, {})[name] = method_of(cell.settings)
    for (federation, seeds), methods in groups.items():
        _check_runs(results.runs_file, methods)
        begun = _Begun()
        study = Study({data.name: data.load}, [federation], methods, range(seeds), folder=results.folder)
        for run in study.runs(begun):
            done.computed, done.kept = done.computed + begun.is_new, done.kept + (not begun.is_new)
            if begun.is_new:
                about = f"{data.name}, alpha {federation.alpha:g}, {run.method}, seed {run.seed}"
                lost = run.left_out
                missed = f"; on no client: {lost.examples:,} examples, {lost.classes:,} classes"
                tell(f"{about}: {run.accuracy:.4f}{missed if any(lost) else ''}")
            begun.is_new = False
        for cell, error in study.failed.items():
            raise ValueError(f"{data.name}: {cell.method}, seed {cell.seed}: {error}")


class _Begun(Listener):
    """Whether the run that comes next is made, and not there already."""

    is_new = False

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        self.is_new = True


def _check_runs(file: Path, methods: Mapping[str, Any]) -> None:
    """Raise if a file holds runs of these methods as they were in another version of covfree."""
    prints = {name: fingerprint(method) for name, method in methods.items()}
    for run, made_by in RunFile(file).runs:
        if prints.get(run.method, made_by) != made_by:
            raise ValueError(
                f"{file}: holds runs of {run.method} as it was in another version of covfree; delete the "
                "file, and all its runs are made anew, or give --out another folder"
            )


def _run(kind: str, data: Data, cells: list[Cell], results: Results, done: Done, tell: Tell) -> None:
    """Runs of one of the other kinds: those of a federation and a seed together, which may share work."""
    lines = results.lines(kind)
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(federation_of(cell.settings), []).append(cell)
    for group in groups.values():
        for seed in range(max(cell.settings["seeds"] for cell in group)):
            for cell in group:
                own = own_settings(kind, cell.settings)
                if seed >= cell.settings["seeds"]:
                    continue
                if lines.find(own, seed) is not None:
                    done.kept += 1
                    continue
                folder = results.folder / "work" / f"{_digest(own)}-seed{seed}"
                about = f"{data.name}, {cell.row}, {cell.column}, seed {seed}"
                tell(f"{about}: begins")
                record = RUNNERS[kind](own, data, seed, folder)
                lines.add({"settings": own, "seed": seed, **record})
                # What it would have gone on from is of no use any more.
                shutil.rmtree(folder, ignore_errors=True)
                done.computed += 1
                tell(f"{about}: {_told(record)}")


def _digest(own: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]


def _told(record: Mapping[str, Any]) -> str:
    if "value" in record:
        return f"{record['value']:.6g}"
    number, accuracy = record["history"][-1]
    return f"{accuracy:.4f} after round {number}"
