"""The page of ``covfree compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covfree.studies import Predictions, Result, accuracy_table, report
from covfree.studies.page.content import Grid, Page, Picture, Place
from covfree.studies.page.details import class_by_class, detail
from covfree.studies.page.headline import Scored, behind, headline, over_places
from covfree.studies.page.partitions import partition_of, partition_picture
from covfree.studies.page.pictures import as_svg
from covfree.studies.page.render import command_line
from covfree.studies.plots import accuracy as accuracy_plot
from covfree.studies.plots import style as figures
from covfree.studies.source import Source, class_name
from covfree.studies.summary import place_names
from covfree.studies.tables import Cell

_NOTES = (
    "± is one standard deviation over the seeds. A seed draws the split (if the data has none of its own), "
    "the partition and what methods draw. Intervals are Student's t of the differences seed by seed: they "
    "tell of chance in splits and partitions, not of other data.",
    "Counts of predictions are of all seeds together.",
)


def compared_page(
    title: str,
    results: Sequence[Result],
    sources: Mapping[str, Source],
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Page:
    """Put together what the runs came to.

    Args:
        title: what the results are of.
        results: with counts of predictions in every run.
        sources: data by name.
        settings: by the names of options, of data, methods and seeds too.
        given: what the command line to repeat it says, by the names of options.
    """
    places = list(dict.fromkeys(result.place for result in results))
    down = report.receives(results)
    groups = [[result for result in results if result.place == place] for place in places]
    scored = [[_scored(result, down) for result in group] for group in groups]
    made = [
        _place(name, group, own, sources[dataset], down, f"p{number}")
        for number, (name, (dataset, _), group, own) in enumerate(
            zip(place_names(places), places, groups, scored, strict=True)
        )
    ]
    several = len(places) > 1
    return Page(
        title=title,
        places=made,
        settings=settings,
        environment=report.environment(),
        command=command_line("compare", given),
        notes=tuple(filter(None, (report.names(results), *_NOTES))),
        headline=over_places(scored) if several else (),
        grid=_overview(results) if several else None,
    )


def _scored(result: Result, down: bool) -> Scored:
    size = result.mean(lambda run: run.sent.statistics + (run.received if down else 0))
    return Scored(result.title, {run.seed: run.accuracy for run in result.runs}, size)


def _overview(results: Sequence[Result]) -> Grid:
    """Accuracy by method and federation."""
    table = accuracy_table(results)
    means = {(result.title, result.place): result.accuracy[0] for result in results}
    places = list(dict.fromkeys(result.place for result in results))
    lines = []
    for title, *shares in table.lines:
        cells = [Cell(text, means.get((title, place))) for text, place in zip(shares, places, strict=True)]
        lines.append((Cell(title), *cells))
    return Grid(table.columns, tuple(lines), best=table.best)


def _place(
    name: str,
    results: Sequence[Result],
    scored: Sequence[Scored],
    source: Source,
    down: bool,
    prefix: str,
) -> Place:
    """The results on one federation."""
    federation = results[0].runs[0].federation
    assert federation is not None
    seeds = dict.fromkeys(run.seed for result in results for run in result.runs)
    data = {seed: source.load(seed) for seed in seeds}
    first = data[next(iter(data))]
    partitions = {seed: partition_of(data[seed], federation, seed) for seed in data}
    names = [class_name(first, label) for label in range(first.num_classes)]
    bytes_name = f"bytes {'up and down' if down else 'up'}, all clients together"
    order = sorted(range(len(results)), key=lambda i: _rank(results[i]))
    titles, predictions = [results[i].title for i in order], [_predictions(results[i]) for i in order]
    return Place(
        title=name,
        headline=headline(scored, len(first.test_labels), bytes_name),
        grid=_grid([results[i] for i in order], [scored[i] for i in order], down),
        pictures=[
            _accuracy_picture(results, bytes_name, prefix),
            partition_picture(partitions[next(iter(seeds))], first, federation, next(iter(seeds)), prefix),
        ],
        details=[detail(*each, partitions, names) for each in zip(titles, predictions, strict=True)],
        classes=class_by_class(titles, predictions, names),
    )


def _predictions(result: Result) -> dict[int, Predictions]:
    """Of a method's runs, by seed."""
    return {run.seed: run.predictions for run in result.runs if run.predictions is not None}


def _rank(result: Result) -> tuple[bool, float]:
    """The best first; what is not a number last."""
    mean = result.accuracy[0]
    return mean != mean, -mean


def _grid(results: Sequence[Result], scored: Sequence[Scored], down: bool) -> Grid:
    """The table of the terminal, and how far each method is behind the best."""
    method, accuracy, *others = report.columns(results).names
    lines = []
    for result, gap in zip(results, behind(scored), strict=True):
        title, share, *more = report.cells(result, down)
        lines.append((title, share, gap, *more))
    columns = (method, accuracy, "behind the best", *others)
    return Grid(columns, tuple(lines), sorted_by=1, best=frozenset({(0, 1)}))


def _accuracy_picture(results: Sequence[Result], bytes_name: str, prefix: str) -> Picture:
    with figures.style():
        drawn = [accuracy_plot.draw("", results)]
        if drawn[0].get_figwidth() > figures.PHONE:
            drawn.append(accuracy_plot.draw("", results, width=figures.PHONE))
        drawings = tuple(as_svg(figure, f"{prefix}{size}") for figure, size in zip(drawn, "ab", strict=False))
    text = f"Test accuracy against {bytes_name}, a point a method; the table has the numbers."
    return Picture(f"Accuracy against {bytes_name}", text, drawings)
