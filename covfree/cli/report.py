"""How the results of ``covfree compare`` are shown: a table, and records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from covfree.cli.compare import Result, Run
from covfree.cli.tables import Columns, as_bytes, as_flops, as_seconds, percent

COLUMNS = Columns(
    ("method", "accuracy, %", "bytes up", "per client", "client FLOPs", "client time", "server time"),
    broken=("per client", "client FLOPs", "client time", "server time"),
)


def cells(result: Result) -> tuple[str, ...]:
    """A line of the table."""
    return (
        result.title,
        percent(*result.accuracy),
        as_bytes(result.mean(lambda run: run.sent.statistics)),
        as_bytes(result.mean(_bytes_per_client)),
        as_flops(result.mean(lambda run: run.client_flops)),
        as_seconds(result.median(lambda run: run.client_seconds)),
        as_seconds(result.median(lambda run: run.server_seconds)),
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
                "bytes_down": result.mean(lambda run: run.received),
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


def _run_record(run: Run) -> dict[str, Any]:
    return {
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


def _bytes_per_client(run: Run) -> float:
    return run.sent.statistics / max(run.clients, 1)
