"""What came of a cell of a study, a record that is kept; and of its seeds together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.json_lines import JsonLines
from covfree.engine.bytes import SentBytes
from covfree.methods import Method
from covfree.studies.federation import Federation, LeftOut
from covfree.studies.predictions import Predictions
from covfree.studies.table import Cell, Table, percent

# A line of the history of a training: a round, what it came to and what it took.
Record = dict[str, Any]
_NOTHING = LeftOut(0, 0)


@dataclass(frozen=True)
class Run:
    """What came of a method on a federation with a seed.

    A trained head has a history; its accuracy is that after the last round, its bytes and seconds are those
    of all rounds. `rows`, `client_flops` and `server_seconds` are of methods in closed form.

    Attributes:
        method: its name.
        seed: of the split, the partition and the method.
        accuracy: share of the test examples that the head gets right, in [0, 1].
        sent: bytes up of all clients.
        received: bytes down to all clients, before the head.
        clients: clients that hold examples.
        rows: rows that the method's rounds summed over.
        client_flops: floating-point operations of all clients, from features to what they send.
        client_seconds: time of all clients' work, run as one batch, compilation left out.
        server_seconds: time from what the clients sent to the head, compilation left out.
        left_out: training examples and classes that no client holds.
        dataset: name of the data.
        federation: how the examples were spread, if the data did not say so.
        figures: other figures of the test examples, by their names in `covfree.metrics.NAMES`.
        predictions: of the test examples, by class and client; None if they were not counted.
        history: of a training, a record for each round, from 0, the start.
        rates: of the clients and the server, that it trained with.
        tried: the rates that were tried on clients set aside; None if none were.
        diverged: the round that gave no finite state and was undone; None if none did.
    """

    method: str
    seed: int
    accuracy: float
    sent: SentBytes
    received: int
    clients: int
    rows: int = 0
    client_flops: int = 0
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

    @property
    def evaluated(self) -> list[Record]:
        """The rounds after which the accuracy was measured."""
        return [record for record in self.history if "accuracy" in record]

    @property
    def best(self) -> Record:
        """The first of those with the highest accuracy."""
        return max(self.evaluated, key=lambda record: record["accuracy"])


@dataclass(frozen=True)
class Result:
    """A method's runs over all seeds; means, medians, and the standard deviation if there are two seeds."""

    method: str
    title: str
    runs: tuple[Run, ...]

    @property
    def place(self) -> tuple[str, Federation | None]:
        """The data and the federation."""
        return self.runs[0].dataset, self.runs[0].federation

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the accuracy."""
        return self.spread(lambda run: run.accuracy)

    def spread(self, value: Callable[[Run], float]) -> tuple[float, float | None]:
        """Mean of a figure over the runs, and its standard deviation if there are two."""
        values = [value(run) for run in self.runs]
        # NumPy's, as `statistics.stdev` fails on NaN.
        return fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else None

    def mean(self, value: Callable[[Run], float]) -> float:
        """Mean of a figure over the runs."""
        return fmean(value(run) for run in self.runs)

    def median(self, value: Callable[[Run], float]) -> float:
        """Median of a figure over the runs: of times, which whatever else a machine does makes long."""
        return float(median(value(run) for run in self.runs))


def summarise(runs: Iterable[Run], titles: Mapping[str, str] | None = None) -> list[Result]:
    """Collect runs by data, federation and method, in the order in which these come first.

    Args:
        runs: of a study, over any seeds.
        titles: how tables name methods; their own names without it.
    """
    groups: dict[tuple[str, Federation | None, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.federation, run.method), []).append(run)
    names = titles or {}
    return [Result(key[-1], names.get(key[-1], key[-1]), tuple(group)) for key, group in groups.items()]


def place_names(places: Sequence[tuple[str, Federation | None]]) -> tuple[str, ...]:
    """Name data and federations by what differs between them; by the data if nothing does."""
    datasets = {dataset for dataset, _ in places}
    made = [federation for _, federation in places if federation is not None]
    partitions, clients = ({getattr(each, name) for each in made} for name in ("partition", "clients"))
    alphas = {each.alpha for each in made if each.partition != "iid"}

    def name(dataset: str, federation: Federation | None) -> str:
        words = [dataset] if len(datasets) > 1 else []
        if federation is not None:
            words += [federation.partition] if len(partitions) > 1 else []
            words += [f"{federation.clients} clients"] if len(clients) > 1 else []
            words += (
                [f"alpha {federation.alpha:g}"] if len(alphas) > 1 and federation.partition != "iid" else []
            )
        return ", ".join(words) or dataset

    return tuple(name(*place) for place in places)


def accuracy_table(results: Iterable[Result]) -> Table:
    """Lay out accuracies: a line a method, a column a federation, the best of each column marked.

    A cell is the mean in percent ± the standard deviation over seeds. A column is named after what differs
    between the federations. What a method has not been run on is left empty.

    Args:
        results: from `summarise`.
    """
    cells = {
        (result.title, result.place): Cell(percent(*result.accuracy), result.accuracy[0])
        for result in results
    }
    titles = list(dict.fromkeys(title for title, _ in cells))
    places = list(dict.fromkeys(place for _, place in cells))
    lines = tuple(
        (Cell(title), *(cells.get((title, place), Cell("")) for place in places)) for title in titles
    )
    best = frozenset(
        (row, column)
        for column in range(1, len(places) + 1)
        for row in _highest([line[column] for line in lines])
    )
    names = place_names(places)
    return Table(("method", *names), lines, best, broken=names)


def _highest(cells: Sequence[str]) -> list[int]:
    """Places of the highest accuracy, to the digits that are shown."""
    means = [f"{float(cell.split()[0]):6.2f}" if cell else None for cell in cells]
    top = max((mean for mean in means if mean is not None), default=None)
    return [index for index, mean in enumerate(means) if mean is not None and mean == top]


class RunFile:
    """Runs of methods in closed form in a file of JSON lines, each with its method's fingerprint.

    Args:
        path: the file; see `JsonLines`.

    Raises:
        ValueError: if a line that is not the last cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _from_record, "a run")

    @property
    def runs(self) -> list[tuple[Run, str]]:
        """The runs, and the fingerprints of their methods."""
        return self._lines.records

    def add(self, run: Run, method: str) -> None:
        """Add a run of a method with this fingerprint."""
        record = {**asdict(run), "sent": run.sent._asdict(), "fingerprint": method}
        for name in ("history", "rates", "tried", "diverged"):
            del record[name]
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


def fingerprint(method: Method) -> str:
    """Tell methods apart: equal for two whose functions and numbers are equal, in any process.

    >>> import covfree
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(1.0))
    True
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(2.0))
    False
    """
    leaves, structure = jax.tree.flatten(method)
    # A function shows the place in memory where it lies.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]
