"""Results of a study: a `Run` for one seed, a `Result` over seeds, and the file of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from covfree.core.atomic import JsonLines
from covfree.engine.bytes import SentBytes
from covfree.studies.federation import Federation, LeftOut
from covfree.studies.predictions import Predictions
from covfree.studies.table import Table, TableCell, percent, plural

# A line of a training's history: round, accuracy, bytes and seconds.
Record = dict[str, Any]
_NOTHING = LeftOut(0, 0)


@dataclass(frozen=True)
class Run:
    """The result of a method on a federation with a seed.

    A training in rounds sets ``history``. Its ``accuracy`` is measured after the last round; its bytes and
    seconds are sums over all rounds. Only other methods set ``rows`` and ``server_seconds``.

    Attributes:
        method: the method's name.
        seed: seed of the split, the partition and the method.
        accuracy: share of the test examples that the head predicts correctly, in [0, 1].
        sent: bytes up of all clients.
        received: bytes down to all clients, before the head.
        clients: number of clients that hold examples.
        rows: number of rows (`covfree.Rows`), class means or examples, that the method's rounds summed over.
        client_flops: floating-point operations of all clients. In closed form: from features to messages; for
            a training: in all rounds, with those of the feature extractor if known.
        client_seconds: time of all clients' work, run as one batch, without compilation.
        server_seconds: time from the clients' messages to the head, without compilation.
        left_out: how many training examples and classes no client holds.
        dataset: name of the data.
        federation: the partition over clients, unused if the data has clients; None outside a `Study`.
        figures: other metrics of the test examples, by their names in `covfree.metrics.NAMES`.
        predictions: counts of the test predictions by class and client; None if they were not counted.
        history: a training's records, one per round; round 0 is the start of training.
        rates: the learning rates of the clients and the server.
        tried: the rates that were tried, each pair with its accuracy on clients set aside for tuning; None
            without tuning.
        diverged: the round that was undone, as the model was not finite after it; or None.
        taken: if clients chose among methods (`covfree.select`), the index of the chosen one.
    """

    method: str
    seed: int
    accuracy: float
    sent: SentBytes
    received: int
    clients: int
    rows: int = 0
    client_flops: int | float = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    left_out: LeftOut = _NOTHING
    dataset: str = ""
    federation: Federation | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    predictions: Predictions | None = None
    history: Sequence[Record] = ()
    rates: tuple[float, float] | None = None
    tried: list[Record] | None = None
    diverged: int | None = None
    taken: int | None = None

    @property
    def evaluated(self) -> list[Record]:
        """Records of the rounds after which the accuracy was measured."""
        return [record for record in self.history if "accuracy" in record]

    @property
    def trained(self) -> list[Record]:
        """The records with an accuracy, from round 0 (the start of training) on."""
        return [record for record in self.evaluated if record["round"] >= 0]

    @property
    def best(self) -> Record:
        """The record in `trained` with the highest accuracy; of equal ones, the first."""
        return max(self.trained, key=lambda record: record["accuracy"])


@dataclass(frozen=True)
class Result:
    """A method's runs on one federation, over all seeds; computes means, medians and standard deviations.

    ``kind`` names a registered method whose clients send the same, if ``method`` is not such a name itself.
    """

    method: str
    title: str
    runs: tuple[Run, ...]
    kind: str = ""

    @property
    def place(self) -> tuple[str, Federation | None]:
        """The name of the data set, and the settings by which it is divided among clients."""
        return self.runs[0].dataset, self.runs[0].federation

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the accuracy, see `spread`."""
        return self.spread(lambda run: run.accuracy)

    def spread(self, value: Callable[[Run], float]) -> tuple[float, float | None]:
        """Return the mean of ``value`` over the runs, and its standard deviation, None for a single run."""
        values = [value(run) for run in self.runs]
        # Use NumPy, as `statistics.stdev` fails on NaN.
        return fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else None

    def mean(self, value: Callable[[Run], float]) -> float:
        """Return the mean of ``value`` over the runs."""
        return fmean(value(run) for run in self.runs)

    def bytes(self, down: bool = False) -> float:
        """Return the mean over runs of the bytes that all clients send, without counts and labels.

        With ``down``, bytes that clients receive are added.
        """
        return self.mean(lambda run: run.sent.statistics + (run.received if down else 0))

    def median(self, value: Callable[[Run], float]) -> float:
        """Return the median of ``value`` over the runs. Use it for times, which other work may inflate."""
        return float(median(value(run) for run in self.runs))


def summarise(runs: Iterable[Run], titles: Mapping[str, str] | None = None) -> list[Result]:
    """Return a `Result` for each combination of data, federation and method, in order of first appearance.

    Args:
        runs: a study's runs, over any seeds; if one was made twice, the later one counts.
        titles: titles of methods in tables; a method without one keeps its name.
    """
    groups: dict[tuple[str, Federation | None, str], dict[int, Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.federation, run.method), {})[run.seed] = run
    names = titles or {}
    return [
        Result(key[-1], names.get(key[-1], key[-1]), tuple(group.values())) for key, group in groups.items()
    ]


def place_names(places: Sequence[tuple[str, Federation | None]]) -> tuple[str, ...]:
    """Return a short name for each pair of a data set and a federation: the settings in which they differ.

    Pairs that differ only in the number of clients are named "10 clients" and "50 clients". If there is no
    difference, the name is the data set's.
    """
    datasets = {dataset for dataset, _ in places}
    made = [federation for _, federation in places if federation is not None]
    partitions, clients = ({getattr(each, name) for each in made} for name in ("partition", "clients"))
    alphas = {each.alpha for each in made if each.partition != "iid"}

    def name(dataset: str, federation: Federation | None) -> str:
        words = [dataset] if len(datasets) > 1 else []
        if federation is not None:
            words += [federation.partition] if len(partitions) > 1 else []
            count = federation.clients
            words += [f"{count} {plural('client', count)}"] if len(clients) > 1 else []
            words += (
                [f"alpha {federation.alpha:g}"] if len(alphas) > 1 and federation.partition != "iid" else []
            )
        return ", ".join(words) or dataset

    return tuple(name(*place) for place in places)


def accuracy_cell(result: Result, seeds: int) -> TableCell:
    """Format an accuracy, mean ± deviation in percent; add the number of seeds if it is below ``seeds``."""
    number = len(result.runs)
    of = f" ({number} {plural('seed', number)})" if number < seeds else ""
    return TableCell(percent(*result.accuracy) + of, result.accuracy[0])


def accuracy_table(results: Iterable[Result]) -> Table:
    """Return a table of accuracies, a line for each method and a column for each federation.

    A cell is the mean in percent ± the standard deviation over seeds, and empty if the method was not run on
    that federation. The best cell of each column is marked. If a method failed with some seeds, its cell also
    gives the number of the other seeds, and gets no mark. Columns are named after the settings that differ
    between federations.

    Args:
        results: results of `summarise`.
    """
    every = {(result.method, result.place): result for result in results}
    places = list(dict.fromkeys(place for _, place in every))
    seeds = {place: max(len(every[each].runs) for each in every if each[1] == place) for place in places}
    cells = {key: accuracy_cell(result, seeds[key[1]]) for key, result in every.items()}
    titles = {method: result.title for (method, _), result in every.items()}
    lines = tuple(
        (TableCell(title), *(cells.get((method, place), TableCell("")) for place in places))
        for method, title in titles.items()
    )
    names = place_names(places)
    return Table(("method", *names), lines, best_of(lines, range(1, len(places) + 1)), broken=names)


def best_of(lines: Sequence[Sequence[str]], columns: Iterable[int]) -> frozenset[tuple[int, int]]:
    """Return (line, column) of the best accuracy in each of the columns; none if there is a single line."""
    return frozenset(
        (row, column)
        for column in columns
        for row in _highest([line[column] for line in lines])
        if len(lines) > 1
    )


def _highest(cells: Sequence[str]) -> list[int]:
    """Return the indices of the cells with the highest accuracy, as printed; failed seeds are skipped."""
    means = [f"{float(cell.split()[0]):6.2f}" if cell and "seed" not in cell else None for cell in cells]
    top = max((mean for mean in means if mean is not None), default=None)
    return [index for index, mean in enumerate(means) if mean is not None and mean == top]


class RunFile:
    """A file of JSON lines that keeps runs of methods in closed form, each with its method's fingerprint.

    A fingerprint is a digest of the method's functions and numbers, which shows whether the method changed.

    Args:
        path: the file; see `JsonLines`.

    Raises:
        ValueError: if a complete line cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _from_record, "a run")

    @property
    def runs(self) -> list[tuple[Run, str]]:
        """The runs, each with the fingerprint of its method."""
        return self._lines.records

    def add(self, run: Run, method: str) -> None:
        """Append a run; ``method`` is the fingerprint of its method."""
        record = {**asdict(run), "sent": run.sent._asdict(), "fingerprint": method}
        for name in ("history", "rates", "tried", "diverged"):
            del record[name]
        if run.taken is None:
            del record["taken"]
        if run.predictions is None:
            del record["predictions"]
        else:
            record["predictions"] = run.predictions._asdict()
        self._lines.add((run, method), record)


def _from_record(record: dict[str, Any]) -> tuple[Run, str]:
    fingerprint = record.pop("fingerprint")
    sent, federation = SentBytes(**record.pop("sent")), Federation(**record.pop("federation"))
    left_out = LeftOut(*record.pop("left_out"))
    counts = {name: tuple(map(tuple, rows)) for name, rows in record.pop("predictions", {}).items()}
    predictions = Predictions(**counts) if counts else None
    parts = {"sent": sent, "federation": federation, "left_out": left_out, "predictions": predictions}
    return Run(**record, **parts), fingerprint
