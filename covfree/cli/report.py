"""How results are shown: a table, JSON, CSV, and a picture of accuracy against bytes up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from covfree.cli.compare import Result, Run


def as_table(title: str, results: Sequence[Result]) -> Table:
    """A table for the terminal."""
    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    first, *others = _COLUMNS
    table.add_column(first, min_width=14)
    for column in others:
        header = column.replace(" ", "\n") if column in _BROKEN else column
        table.add_column(header, justify="right")
    for result in results:
        table.add_row(*_cells(result))
    return table


def as_markdown(results: Sequence[Result]) -> str:
    """The same table in Markdown."""
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(_cells(result) for result in results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_COLUMNS = ("method", "accuracy, %", "bytes up", "per client", "client FLOPs", "client time", "server time")
# Broken in two on the terminal, so that numbers need not be.
_BROKEN = ("per client", "client FLOPs", "client time", "server time")


def _cells(result: Result) -> tuple[str, ...]:
    mean, deviation = result.accuracy
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return (
        result.title,
        f"{100 * mean:.2f}{spread}",
        _bytes(result.mean(lambda run: run.sent.statistics)),
        _bytes(result.mean(_bytes_per_client)),
        _flops(result.mean(lambda run: run.client_flops)),
        _seconds(result.median(lambda run: run.client_seconds)),
        _seconds(result.median(lambda run: run.server_seconds)),
    )


def as_records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One record a method, as JSON and CSV show them: means over the seeds, of seconds the medians."""
    records = []
    for result in results:
        mean, deviation = result.accuracy
        records.append(
            {
                "method": result.method,
                "title": result.title,
                "seeds": len(result.runs),
                "accuracy_mean": mean,
                "accuracy_sd": deviation,
                "bytes_up": result.mean(lambda run: run.sent.statistics),
                "bytes_up_with_counts": result.mean(lambda run: run.sent.total),
                "bytes_up_per_client": result.mean(_bytes_per_client),
                "client_flops": result.mean(lambda run: run.client_flops),
                "client_seconds": result.median(lambda run: run.client_seconds),
                "server_seconds": result.median(lambda run: run.server_seconds),
            }
        )
    return records


def as_json(config: Mapping[str, Any], environment: Mapping[str, str], results: Sequence[Result]) -> str:
    """Everything: the configuration, the machine, what the table shows, and every run."""
    records = as_records(results)
    for record, result in zip(records, results, strict=True):
        record["runs"] = [_run_record(run) for run in result.runs]
    content = {"config": dict(config), "environment": dict(environment), "results": records}
    return json.dumps(content, indent=2, ensure_ascii=False)


def as_csv(results: Sequence[Result]) -> str:
    """One line a method."""
    records = as_records(results)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def plot(path: Path, title: str, results: Sequence[Result]) -> None:
    """Draw accuracy (mean and standard deviation) against bytes up."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    markers = "osD^vPX*<>d"  # 11, so that with 10 colours 110 combinations differ
    for index, result in enumerate(results):
        mean, deviation = result.accuracy
        axes.errorbar(
            result.mean(lambda run: run.sent.statistics),
            100 * mean,
            yerr=None if deviation is None else 100 * deviation,
            fmt=markers[index % len(markers)],
            markersize=8,
            capsize=4,
            color=f"C{index % 10}",
            label=result.title,
        )
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.6, high * 1.6)
    axes.set_xlabel("bytes up, all clients together")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=150)


def _run_record(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "accuracy": run.accuracy,
        "bytes_up": run.sent.statistics,
        "bytes_up_with_counts": run.sent.total,
        "clients": run.clients,
        "rows": run.rows,
        "client_flops": run.client_flops,
        "client_seconds": run.client_seconds,
        "server_seconds": run.server_seconds,
    }


def _bytes_per_client(run: Run) -> float:
    return run.sent.statistics / max(run.clients, 1)


def _bytes(number: float) -> str:
    return _with_unit(number, ("B", "kB", "MB", "GB"))


def _flops(number: float) -> str:
    return _with_unit(number, ("", "k", "M", "G", "T"))


def _with_unit(number: float, units: tuple[str, ...]) -> str:
    """In the largest unit that leaves a number of at least 1, or the last."""
    power = 0
    while number >= 1000 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{_short(number) if power else f'{number:.0f}'} {units[power]}".rstrip()


def _short(number: float) -> str:
    """About three digits, so that a table fits a terminal of 80 columns."""
    return f"{number:.1f}" if number < 99.95 else f"{number:.0f}"


def _seconds(number: float) -> str:
    return f"{_short(1000 * number)} ms" if number < 1 else f"{_short(number)} s"
