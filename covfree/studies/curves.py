"""How the results of ``covfree finetune`` are shown: a line as it runs, a table, and records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from rich.progress import Progress, TaskID

from covfree import methods
from covfree.finetune import registry
from covfree.studies.history import Record
from covfree.studies.table import percent
from covfree.studies.tables import Cell, Columns, as_bytes, as_seconds
from covfree.studies.training import RANDOM, Run

COLUMNS = Columns(
    ("start → algorithm", "start, %", "last, %", "best, %", "best round", "bytes up", "bytes down", "time"),
    broken=("best round", "bytes up", "bytes down"),
)


@dataclass(frozen=True)
class Curve:
    """The runs of one start and algorithm over all seeds."""

    init: str
    algorithm: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """How tables name it."""
        start = "Random" if self.init == RANDOM else methods.registry()[self.init].title
        return f"{start} → {registry()[self.algorithm].title}"

    def spread(self, value: Callable[[Run], Any]) -> tuple[float, float | None]:
        """Mean and standard deviation of a figure over the runs."""
        values = [value(run) for run in self.runs]
        return fmean(values), stdev(values) if len(values) > 1 else None


def curves(runs: Sequence[Run]) -> list[Curve]:
    """Runs by their start and algorithm."""
    kinds = dict.fromkeys((run.init, run.algorithm) for run in runs)
    return [Curve(*kind, tuple(run for run in runs if (run.init, run.algorithm) == kind)) for kind in kinds]


def cells(curve: Curve) -> tuple[Cell, ...]:
    """A line of the table."""
    diverged = any(run.diverged for run in curve.runs)
    shares = [
        curve.spread(value)
        for value in (
            lambda run: run.evaluated[0]["accuracy"],
            lambda run: run.evaluated[-1]["accuracy"],
            lambda run: run.best["accuracy"],
        )
    ]
    sizes = [fmean(run.total(name) for run in curve.runs) for name in ("bytes_up", "bytes_down")]
    seconds = median(run.total("seconds") for run in curve.runs)
    best = median(run.best["round"] for run in curve.runs)
    return (
        Cell(f"{curve.title}{' (diverged)' if diverged else ''}"),
        *(Cell(percent(*share), share[0]) for share in shares),
        Cell(f"{best:.0f}", best),
        *(Cell(as_bytes(size), size) for size in sizes),
        Cell(as_seconds(seconds), seconds),
    )


def as_records(every: Sequence[Curve]) -> list[dict[str, Any]]:
    """One record a curve, as JSON and CSV show them: means over the seeds, of seconds the medians."""
    records = []
    for curve in every:
        record: dict[str, Any] = {
            "init": curve.init,
            "algorithm": curve.algorithm,
            "title": curve.title,
            "seeds": len(curve.runs),
        }
        for name, value in (
            ("start", lambda run: run.evaluated[0]["accuracy"]),
            ("last", lambda run: run.evaluated[-1]["accuracy"]),
            ("best", lambda run: run.best["accuracy"]),
        ):
            record[f"{name}_accuracy_mean"], record[f"{name}_accuracy_sd"] = curve.spread(value)
        for name in ("bytes_up", "bytes_down"):
            record[name] = fmean(run.total(name) for run in curve.runs)
        record["seconds"] = median(run.total("seconds") for run in curve.runs)
        record["diverged"] = sum(run.diverged is not None for run in curve.runs)
        records.append(record)
    return records


def as_json(config: Mapping[str, Any], environment: Mapping[str, str], every: Sequence[Curve]) -> str:
    """Everything but the rounds, which the histories hold: settings, machine, the table, and every run."""
    records = as_records(every)
    for record, curve in zip(records, every, strict=True):
        record["runs"] = [_run_record(run) for run in curve.runs]
    content = {"config": dict(config), "environment": dict(environment), "results": records}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _run_record(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "client_lr": run.rates.client,
        "server_lr": run.rates.server,
        "rounds": len(run.history) - 1,
        "start_accuracy": run.evaluated[0]["accuracy"],
        "last_accuracy": run.evaluated[-1]["accuracy"],
        "best_accuracy": run.best["accuracy"],
        "best_round": run.best["round"],
        "bytes_up": run.total("bytes_up"),
        "bytes_down": run.total("bytes_down"),
        "seconds": run.total("seconds"),
        "diverged_in_round": run.diverged,
        "tried": run.tried,
    }


class Live:
    """Says how far a run is: a bar on a terminal, a line for each evaluation elsewhere."""

    def __init__(self, bar: Progress, task: TaskID, name: str, rounds: int) -> None:
        self._bar, self._task, self._name, self._rounds = bar, task, name, rounds

    def __call__(self, records: list[Record]) -> None:
        """Show the history so far."""
        accuracy = [record["accuracy"] for record in records if "accuracy" in record][-1]
        now = records[-1]["round"]
        up, down, seconds = (
            sum(record[key] for record in records) for key in ("bytes_up", "bytes_down", "seconds")
        )
        share, sent = f"{100 * accuracy:.2f} %", f"{as_bytes(up)} up"
        if not self._bar.disable:
            # Beside it stand the round and the time.
            text = f"{self._name}: {share}, {sent}"
            self._bar.update(self._task, description=text, completed=now, total=self._rounds)
        elif "accuracy" in records[-1]:
            where = f"{self._name}: round {now}/{self._rounds}"
            text = f"{where}, {share}, {seconds:.1f} s, {sent}, {as_bytes(down)} down"
            print(text, file=sys.stderr, flush=True)


class LiveTuning:
    """Says how far tuning is: a bar on a terminal, a line for each pair of rates elsewhere."""

    def __init__(self, bar: Progress, task: TaskID, name: str) -> None:
        self._bar, self._task, self._name = bar, task, name

    def __call__(self, done: int, number: int, tried: Record) -> None:
        """Show what came of the pair that was tried last."""
        share = "diverged" if tried["accuracy"] is None else f"{100 * tried['accuracy']:.2f} %"
        rates = f"--client-lr {tried['client_lr']:g} --server-lr {tried['server_lr']:g}"
        if not self._bar.disable:
            text = f"{self._name}: tuning, {rates}: {share}"
            self._bar.update(self._task, description=text, completed=done, total=number)
        else:
            print(f"{self._name}: tuning {done}/{number}, {rates}: {share}", file=sys.stderr, flush=True)
