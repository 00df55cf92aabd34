"""Runs over seeds, summed up: means and standard deviations, in a table of methods by federations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from covfree.studies.federation import Federation
from covfree.studies.one_run import Run
from covfree.studies.table import Table, percent


@dataclass(frozen=True)
class Result:
    """A method's runs over all seeds; means, medians, and the standard deviation if there are two seeds."""

    method: str
    title: str
    runs: tuple[Run, ...]

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the accuracy."""
        return self.spread(lambda run: run.accuracy)

    def spread(self, value: Callable[[Run], float]) -> tuple[float, float | None]:
        """Mean of a figure over the runs, and its standard deviation if there are two."""
        values = [value(run) for run in self.runs]
        # NumPy's, as `statistics.stdev` fails on NaN.
        return fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def place(self) -> tuple[str, Federation | None]:
        """The data and the federation."""
        return self.runs[0].dataset, self.runs[0].federation

    def mean(self, value: Callable[[Run], float]) -> float:
        """Mean of a figure over the runs."""
        return fmean(value(run) for run in self.runs)

    def median(self, value: Callable[[Run], float]) -> float:
        """Median of a figure over the runs: of times, which whatever else a machine does makes long."""
        return median(value(run) for run in self.runs)


def summarise(runs: Iterable[Run], titles: Mapping[str, str] | None = None) -> list[Result]:
    """Collect runs by data, federation and method, in the order in which these come first.

    Args:
        runs: from `run`, over any seeds.
        titles: how tables name methods; their own names without it.
    """
    groups: dict[tuple[str, Federation | None, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.federation, run.method), []).append(run)
    names = titles or {}
    return [Result(key[-1], names.get(key[-1], key[-1]), tuple(group)) for key, group in groups.items()]


def accuracy_table(results: Iterable[Result]) -> Table:
    """Lay out accuracies: a line a method, a column a federation, the best of each column marked.

    A cell is the mean in percent ± the standard deviation over seeds. A column is named after what differs
    between the federations. What a method has not been run on is left empty.

    Args:
        results: from `summarise`.
    """
    cells = {(result.title, result.place): result for result in results}
    titles = list(dict.fromkeys(title for title, _ in cells))
    places = list(dict.fromkeys(place for _, place in cells))
    lines = [
        [percent(*cells[title, place].accuracy) if (title, place) in cells else "" for place in places]
        for title in titles
    ]
    best = frozenset(
        (row, column + 1)
        for column, place in enumerate(places)
        for row in _highest([cells.get((title, place)) for title in titles])
    )
    columns = ("method", *place_names(places))
    return Table(columns, tuple((title, *line) for title, line in zip(titles, lines, strict=True)), best)


def _highest(results: list[Result | None]) -> list[int]:
    """Places of the highest accuracy, to the digits that are shown."""
    means = [None if result is None else f"{100 * result.accuracy[0]:6.2f}" for result in results]
    top = max((mean for mean in means if mean is not None), default=None)
    return [index for index, mean in enumerate(means) if mean is not None and mean == top]


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
