"""Results of a study as a table, and as records for JSON and CSV."""

from __future__ import annotations

import json
import math
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import covfree
from covfree.studies.known import alternatives, sees_no_covariance
from covfree.studies.pooled import POOLED
from covfree.studies.result import Result, Run, accuracy_cell, best_of
from covfree.studies.table import Table, TableCell, as_bytes, as_flops, as_seconds, percent

_BROKEN = ("bytes up", "bytes down", "per client", "client FLOPs", "client time", "server time", "best round")
_TRAINED = ("start → algorithm", "start, %", "last, %", "gain", "best, %", "best round")
_COSTS = ("client FLOPs", "client time", "server time")


def environment() -> dict[str, str]:
    """Return versions of software, the device and the platform, to store with results."""
    return {
        "covfree": covfree.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
    }


def is_trained(results: Sequence[Result]) -> bool:
    """Return whether the results come from trainings in rounds."""
    return bool(results[0].runs[0].history)


def receives(results: Sequence[Result]) -> bool:
    """Return whether clients of any method receive something besides the final head, e.g. in later rounds."""
    return any(run.received for result in results for run in result.runs)


def table(results: Sequence[Result]) -> Table:
    """Return a table of the results on one federation, with a line for each method, the best one marked."""
    if is_trained(results):
        columns = (*_TRAINED, "bytes up", "bytes down", "client FLOPs", "time")
        lines = tuple(map(_trained_line, results))
        return Table(columns, lines, best_of(lines, (2,)), broken=_BROKEN)
    down = receives(results)
    more = [f"{name}, {'nats' if name == 'nll' else '%'}" for name in _more(results[0])]
    sizes = ("bytes up", "bytes down", "per client") if down else ("bytes up", "per client")
    columns = ("method", "accuracy, %", *more, *sizes, *_COSTS)
    seeds = max(len(result.runs) for result in results)
    lines = tuple(_line(result, down, seeds) for result in results)
    return Table(columns, lines, best_of(lines, (1,)), broken=_BROKEN)


def _line(result: Result, down: bool, seeds: int) -> tuple[TableCell, ...]:
    more = {name: result.spread(lambda run, name=name: run.figures[name]) for name in _more(result)}
    sizes = [result.bytes()]
    sizes += [result.mean(lambda run: run.received)] if down else []
    sizes.append(result.mean(_bytes_per_client))
    flops = result.mean(lambda run: run.client_flops)
    seconds = [result.median(lambda run: run.client_seconds), result.median(lambda run: run.server_seconds)]
    return (
        TableCell(result.title),
        accuracy_cell(result, seeds),
        *(TableCell(_shown(name, *spread), spread[0]) for name, spread in more.items()),
        *(TableCell(as_bytes(size), size) for size in sizes),
        TableCell(as_flops(flops), flops),
        *(TableCell(as_seconds(time), time) for time in seconds),
    )


def start_of(run: Run) -> float:
    """Return a training's accuracy before its first round."""
    return run.trained[0]["accuracy"]


def gain_of(run: Run) -> float:
    """Return the accuracy that training gained; negative if it lost."""
    return run.accuracy - start_of(run)


def _trained_line(result: Result) -> tuple[TableCell, ...]:
    diverged = any(run.diverged for run in result.runs)
    start, last, gain, best = (
        result.spread(value) for value in (start_of, lambda run: run.accuracy, gain_of, _best)
    )
    sizes = [result.bytes(), result.mean(lambda run: run.received)]
    flops = result.mean(lambda run: run.client_flops)
    seconds = result.median(lambda run: run.client_seconds)
    best_round = result.median(lambda run: run.best["round"])
    return (
        TableCell(f"{result.title}{' (diverged)' if diverged else ''}"),
        *(TableCell(percent(*share), share[0]) for share in (start, last)),
        TableCell(f"{100 * gain[0]:+.2f}".replace("-", "−"), gain[0]),
        TableCell(percent(*best), best[0]),
        TableCell(f"{best_round:.0f}", best_round),
        *(TableCell(as_bytes(size), size) for size in sizes),
        TableCell(as_flops(flops), flops),
        TableCell(as_seconds(seconds), seconds),
    )


def _best(run: Run) -> float:
    return run.best["accuracy"]


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one record per method for JSON and CSV: means over the seeds, but medians of seconds.

    If methods in closed form ran on several federations, each record names its federation.
    """
    if is_trained(results):
        return [_trained_record(result) for result in results]
    several = len({result.place for result in results}) > 1
    return [{**(_place(result) if several else {}), **_record(result)} for result in results]


def _record(result: Result) -> dict[str, Any]:
    mean, deviation = result.accuracy
    return {
        "method": result.method,
        "title": result.title,
        "seeds": len(result.runs),
        "accuracy_mean": mean,
        "accuracy_sd": deviation,
        **_figures(result),
        "bytes_up": result.bytes(),
        "bytes_up_with_counts": result.mean(lambda run: run.sent.total),
        "bytes_down": result.mean(lambda run: run.received),
        "bytes_up_per_client": result.mean(_bytes_per_client),
        "client_flops": result.mean(lambda run: run.client_flops),
        "client_seconds": result.median(lambda run: run.client_seconds),
        "server_seconds": result.median(lambda run: run.server_seconds),
    }


def _trained_record(result: Result) -> dict[str, Any]:
    init, _, algorithm = result.method.partition(" → ")
    record: dict[str, Any] = {"init": init, "algorithm": algorithm, "title": result.title}
    record["seeds"] = len(result.runs)
    for name, value in (("start", start_of), ("last", lambda run: run.accuracy), ("best", _best)):
        record[f"{name}_accuracy_mean"], record[f"{name}_accuracy_sd"] = result.spread(value)
    record["gain_mean"], record["gain_sd"] = result.spread(gain_of)
    record["bytes_up"] = result.bytes()
    record["bytes_down"] = result.mean(lambda run: run.received)
    record["client_flops"] = result.mean(lambda run: run.client_flops)
    record["seconds"] = result.median(lambda run: run.client_seconds)
    record["diverged"] = sum(run.diverged is not None for run in result.runs)
    return record


def as_json(config: Mapping[str, Any], environment: Mapping[str, str], results: Sequence[Result]) -> str:
    """Return settings, environment, the table's values and every run, without its history, as a JSON text."""
    found = records(results)
    for record, result in zip(found, results, strict=True):
        record["runs"] = [_trained_run(run) if run.history else _run(run) for run in result.runs]
    content: dict[str, Any] = {"config": dict(config), "environment": dict(environment), "results": found}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _run(run: Run) -> dict[str, Any]:
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
    record |= {} if run.taken is None else {"taken": _taken(run)}
    return record | ({"left_out": run.left_out._asdict()} if any(run.left_out) else {})


def _trained_run(run: Run) -> dict[str, Any]:
    client_lr, server_lr = run.rates or (None, None)
    return {
        "seed": run.seed,
        "client_lr": client_lr,
        "server_lr": server_lr,
        "start_rounds": sum(record["round"] <= 0 < record["clients"] for record in run.history),
        "rounds": run.history[-1]["round"],
        "start_accuracy": start_of(run),
        "last_accuracy": run.accuracy,
        "best_accuracy": run.best["accuracy"],
        "best_round": run.best["round"],
        "bytes_up": run.sent.statistics,
        "bytes_down": run.received,
        "client_flops": run.client_flops,
        "seconds": run.client_seconds,
        "diverged_in_round": run.diverged,
        "tried": run.tried,
    }


def notes(results: Sequence[Result]) -> list[str]:
    """Return lines of text to print below a table of results; there may be none.

    If clients chose among methods, a line says how often they chose each. If there is only one client,
    another says which methods see no covariance. For methods in closed form, another line gives their names
    on the command line, where these are not the titles.
    """
    alone = [
        sees_no_covariance(each.kind or each.method, run.clients) for each in results for run in each.runs
    ]
    lines = [*dict.fromkeys(filter(None, alone))]
    choices = {result.method: names for result in results if len(names := alternatives(result.method)) > 1}
    for method, names in choices.items():
        runs = [run for result in results if result.method == method for run in result.runs]
        counts = Counter(map(_taken, runs))
        shown = [f"{name} {counts[name]}" for name in names]
        lines.append(f"How often clients took each method, of {len(runs)}: {', '.join(shown)}.")
    called = dict.fromkeys((result.method, result.title) for result in results)
    # Skip methods in which clients choose among several, as their titles already list the names; and what the
    # option --pooled adds, which is no method.
    named = [
        # The title may hold numbers of all methods (--set), which the method's name lacks.
        ":".join(dict.fromkeys([*name.split(":"), *re.findall(r"\w+=[^,)]+", title)])) + f" is {title}"
        for name, title in called
        if name not in choices and name not in (title, title.lower(), POOLED.name)
    ]
    if named and not is_trained(results):
        lines.append(f"On the command line {'; '.join(named)}.")
    return lines


def _taken(run: Run) -> str:
    """Return the name of the method that clients chose."""
    return alternatives(run.method)[run.taken or 0]


def _more(result: Result) -> list[str]:
    """Return the names of the measured metrics other than the accuracy."""
    return [name for name in result.runs[0].figures if name != "accuracy"]


def _figures(result: Result) -> dict[str, float | None]:
    found = {}
    for name in _more(result):
        mean, deviation = result.spread(lambda run, name=name: run.figures[name])
        found[f"{name}_mean"] = _finite(mean)
        found[f"{name}_sd"] = None if deviation is None else _finite(deviation)
    return found


def _finite(figure: float) -> float | None:
    """Return the figure, or None for NaN and infinity, which JSON lacks."""
    return figure if math.isfinite(figure) else None


def _shown(name: str, mean: float, deviation: float | None) -> str:
    """Format the metric ``name``: ``nll``, the negative log-likelihood, in nats; any other in percent."""
    if name != "nll":
        return percent(mean, deviation)
    return f"{mean:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def _place(result: Result) -> dict[str, Any]:
    """Return the names of the data set and, for runs of a `Study`, of the federation's settings."""
    dataset, federation = result.place
    if federation is None:
        return {"dataset": dataset}
    parts = ("partition", federation.partition), ("clients", federation.clients), ("alpha", federation.alpha)
    return {"dataset": dataset, **dict(parts)}


def _bytes_per_client(run: Run) -> float:
    return run.sent.statistics / max(run.clients, 1)
