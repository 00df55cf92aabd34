"""The page of ``covfree finetune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from covfree.studies import Federation, Predictions, curves, report
from covfree.studies.curves import Curve
from covfree.studies.page.content import Grid, Page, Picture, Place
from covfree.studies.page.details import class_by_class, detail
from covfree.studies.page.headline import Scored, behind, headline
from covfree.studies.page.partitions import partition_of, partition_picture
from covfree.studies.page.pictures import as_svg
from covfree.studies.page.render import command_line
from covfree.studies.plots import curve as curve_plot
from covfree.studies.plots import style as figures
from covfree.studies.source import Source, class_name

_NOTES = (
    "Accuracies are of the test part after the last round, where nothing else is said; “best” is the highest "
    "of all rounds, which only the test part itself tells. ± is one standard deviation over the seeds. "
    "Intervals are Student's t of the differences seed by seed.",
    "By class and client: after the last round, all seeds together.",
)


def finetuned_page(
    title: str,
    every: Sequence[Curve],
    source: Source,
    federation: Federation,
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Page:
    """Put together what the runs came to.

    Args:
        title: what the results are of.
        every: the curves, with counts of predictions in every run.
        source: of the data.
        federation: how its examples are spread.
        settings: by the names of options.
        given: what the command line to repeat it says, by the names of options.
    """
    seeds = list(dict.fromkeys(run.seed for curve in every for run in curve.runs))
    data = {seed: source.load(seed) for seed in seeds}
    first = data[seeds[0]]
    partitions = {seed: partition_of(data[seed], federation, seed) for seed in seeds}
    scored = [_scored(curve) for curve in every]
    order = sorted(range(len(every)), key=lambda i: -scored[i].mean)
    names = [class_name(first, label) for label in range(first.num_classes)]
    bytes_name = "bytes up and down, all rounds and clients together"
    titles, predictions = [every[i].title for i in order], [_predictions(every[i]) for i in order]
    place = Place(
        title=title,
        headline=headline(scored, len(first.test_labels), bytes_name),
        grid=_grid([every[i] for i in order], [scored[i] for i in order]),
        pictures=[
            _curve_picture(every, first.num_classes),
            partition_picture(partitions[seeds[0]], first, federation, seeds[0], "p"),
        ],
        details=[detail(*each, partitions, names) for each in zip(titles, predictions, strict=True)],
        classes=class_by_class(titles, predictions, names),
    )
    command = command_line("finetune", given)
    return Page(title, [place], settings, report.environment(), command, _NOTES)


def _scored(curve: Curve) -> Scored:
    accuracy = {run.seed: run.evaluated[-1]["accuracy"] for run in curve.runs}
    size = fmean(run.total("bytes_up") + run.total("bytes_down") for run in curve.runs)
    return Scored(curve.title, accuracy, size)


def _predictions(curve: Curve) -> dict[int, Predictions]:
    """Of the runs of a curve, by seed."""
    return {run.seed: run.predictions for run in curve.runs if run.predictions is not None}


def _grid(every: Sequence[Curve], scored: Sequence[Scored]) -> Grid:
    """The table of the terminal, and how far each is behind the best."""
    title, start, last, *others = curves.COLUMNS.names
    lines = []
    for curve, gap in zip(every, behind(scored), strict=True):
        *first, now, best, best_round, up, down, time = curves.cells(curve)
        lines.append((*first, now, gap, best, best_round, up, down, time))
    columns = (title, start, last, "behind the best", *others)
    return Grid(columns, tuple(lines), sorted_by=2, best=frozenset({(0, 2)}))


def _curve_picture(every: Sequence[Curve], num_classes: int) -> Picture:
    with figures.style():
        drawings = tuple(
            as_svg(curve_plot.draw("", every, num_classes, narrow=narrow), f"c{narrow:d}")
            for narrow in (False, True)
        )
    return Picture(
        "Accuracy by round and by bytes",
        "Test accuracy against rounds, and against bytes up; a line a start and algorithm.",
        drawings,
    )
