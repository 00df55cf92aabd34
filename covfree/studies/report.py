"""How the results of ``covfree compare`` are shown: a table, and records."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import covfree
from covfree.studies import Result, Run
from covfree.studies.table import percent
from covfree.studies.tables import Cell, Columns, as_bytes, as_flops, as_seconds

COLUMNS = Columns(
    ("method", "accuracy, %", "bytes up", "per client", "client FLOPs", "client time", "server time"),
    broken=("bytes up", "bytes down", "per client", "client FLOPs", "client time", "server time"),
)


def cells(result: Result, down: bool) -> tuple[Cell, ...]:
    """A line of the table, with or without bytes down."""
    more = {name: result.spread(lambda run, name=name: run.figures[name]) for name in _more(result)}
    sent, received = (result.mean(lambda run: run.sent.statistics), result.mean(lambda run: run.received))
    each, flops = result.mean(_bytes_per_client), result.mean(lambda run: run.client_flops)
    seconds = [result.median(lambda run: run.client_seconds), result.median(lambda run: run.server_seconds)]
    return (
        Cell(result.title),
        Cell(percent(*result.accuracy), result.accuracy[0]),
        *(Cell(_shown(name, *spread), spread[0]) for name, spread in more.items()),
        Cell(as_bytes(sent), sent),
        *([Cell(as_bytes(received), received)] if down else []),
        Cell(as_bytes(each), each),
        Cell(as_flops(flops), flops),
        *(Cell(as_seconds(time), time) for time in seconds),
    )


def environment() -> dict[str, str]:
    """Versions and machine, so that figures can be read later."""
    return {
        "covfree": covfree.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
    }


def as_records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One record a method, as JSON and CSV show them: means over the seeds, of seconds the medians.

    If there are several federations, records name theirs.
    """
    records = []
    several = len({result.place for result in results}) > 1
    for result in results:
        mean, deviation = result.accuracy
        records.append(
            {
                **(_place(result) if several else {}),
                "method": result.method,
                "title": result.title,
                "seeds": len(result.runs),
                "accuracy_mean": mean,
                "accuracy_sd": deviation,
                **_figures(result),
                "bytes_up": result.mean(lambda run: run.sent.statistics),
                "bytes_up_with_counts": result.mean(lambda run: run.sent.total),
                "bytes_down": result.mean(lambda run: run.received),
                "bytes_up_per_client": result.mean(_bytes_per_client),
                "client_flops": result.mean(lambda run: run.client_flops),
                "client_seconds": result.median(lambda run: run.client_seconds),
                "server_seconds": result.median(lambda run: run.server_seconds),
            }
        )
    return records


def names(results: Sequence[Result]) -> str:
    """What `--methods` calls the methods that tables show by their titles."""
    called = dict.fromkeys((result.method, result.title) for result in results)
    shown = [f"{name} is {title}" for name, title in called if name != title.lower()]
    return f"On the command line {'; '.join(shown)}." if shown else ""


def as_json(config: Mapping[str, Any], environment: Mapping[str, str], results: Sequence[Result]) -> str:
    """Everything: the configuration, the machine, what the table shows, every run."""
    records = as_records(results)
    for record, result in zip(records, results, strict=True):
        record["runs"] = [_run_record(run) for run in result.runs]
    content: dict[str, Any] = {"config": dict(config), "environment": dict(environment), "results": records}
    return json.dumps(content, indent=2, ensure_ascii=False)


def columns(results: Sequence[Result]) -> Columns:
    """The head of the table: with the figures that were measured, and bytes down if there are any."""
    method, accuracy, up, *others = COLUMNS.names
    down = ["bytes down"] if receives(results) else []
    return Columns(
        (method, accuracy, *map(_with_unit, _more(results[0])), up, *down, *others), COLUMNS.broken
    )


def _with_unit(name: str) -> str:
    """How the table's head calls a figure."""
    return f"{name}, {'nats' if name == 'nll' else '%'}"


def receives(results: Sequence[Result]) -> bool:
    """Whether clients of any method receive anything before the head."""
    return any(run.received for result in results for run in result.runs)


def _more(result: Result) -> list[str]:
    """Figures beside the accuracy."""
    return [name for name in result.runs[0].figures if name != "accuracy"]


def _figures(result: Result) -> dict[str, float | None]:
    found = {}
    for name in _more(result):
        mean, deviation = result.spread(lambda run, name=name: run.figures[name])
        found[f"{name}_mean"] = _finite(mean)
        found[f"{name}_sd"] = None if deviation is None else _finite(deviation)
    return found


def _finite(figure: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return figure if math.isfinite(figure) else None


def _shown(name: str, mean: float, deviation: float | None) -> str:
    """Shares in percent; a likelihood in nats."""
    if name != "nll":
        return percent(mean, deviation)
    return f"{mean:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def _place(result: Result) -> dict[str, Any]:
    """The data and the federation."""
    dataset, federation = result.place
    if federation is None:
        return {"dataset": dataset}
    parts = ("partition", federation.partition), ("clients", federation.clients), ("alpha", federation.alpha)
    return {"dataset": dataset, **dict(parts)}


def _run_record(run: Run) -> dict[str, Any]:
    record = {
        "seed": run.seed,
        "accuracy": run.accuracy,
        "bytes_up": run.sent.statistics,
        "bytes_up_with_counts": run.sent.total,
        "bytes_down": run.received,
        "clients": run.clients,
        "rows": run.rows,
        "client_flops": run.client_flops,
        "client_seconds": run.client_seconds,
        "server_seconds": run.server_seconds,
    }
    record |= {name: _finite(figure) for name, figure in run.figures.items()}
    return record | ({"left_out": run.left_out._asdict()} if any(run.left_out) else {})


def _bytes_per_client(run: Run) -> float:
    return run.sent.statistics / max(run.clients, 1)
