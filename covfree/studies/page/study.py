"""The page of a study: headline, tables, pictures and details, which the template turns into HTML.

A page consists of plain dicts. The template escapes every text but drawings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covfree.data import FeatureSet
from covfree.data.partitions import partition_statistics
from covfree.studies import report
from covfree.studies.page.details import class_by_class, detail
from covfree.studies.page.headline import behind, gains, headline, over_places, ranked
from covfree.studies.page.pictures import as_svg
from covfree.studies.page.render import command_line
from covfree.studies.plots import accuracy, curve, style, sweep
from covfree.studies.plots.partition import HEIGHT, plot_partition
from covfree.studies.result import Result, accuracy_table, place_names
from covfree.studies.source import class_name, law_of
from covfree.studies.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Datasets = Mapping[str, Callable[[int], FeatureSet]]
_NOTES = (
    "± is one standard deviation over the seeds. A seed draws the split (if the data has none of its own), "
    "the partition and what methods draw. Intervals are Student's t of the differences seed by seed: they "
    "tell of chance in splits and partitions, not of other data.",
    "Counts of predictions are of all seeds together.",
)
_NOTES_OF_TRAINING = (
    "Accuracies are of the test part after the last round, where nothing else is said; “best” is the highest "
    "of all rounds, which only the test part itself tells. A gain below 0 is what training lost. ± is one "
    "standard deviation over the seeds. Intervals are Student's t of the differences seed by seed.",
    "By class and client: after the last round, all seeds together.",
)


def page_of(
    command: str | None,
    title: str,
    results: Sequence[Result],
    datasets: Datasets,
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    failed: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the page of a study's results, a dict for the template.

    ``settings`` are shown; ``given`` are the options that repeat the ``command``, which is None if the study
    was made in Python; ``failed`` are messages about methods that failed.
    """
    places = list(dict.fromkeys(result.place for result in results))
    groups = [[result for result in results if result.place == place] for place in places]
    several, down = len(places) > 1, report.is_trained(results) or report.receives(results)
    names = place_names(places) if several else [title]
    notes = _NOTES_OF_TRAINING if report.is_trained(results) else (*report.notes(results), *_NOTES)
    return {
        "title": title,
        "places": [
            _place(name, group, datasets[group[0].place[0]], down, f"p{number}")
            for number, (name, group) in enumerate(zip(names, groups, strict=True))
        ],
        "settings": settings,
        "environment": report.environment(),
        "command": None if command is None else command_line(command, given),
        "notes": [*failed, *notes],
        "headline": over_places(groups) if several else [],
        "grid": accuracy_table(results) if several else None,
        "pictures": _sweep(results),
    }


def _place(
    name: str,
    results: Sequence[Result],
    load: Callable[[int], FeatureSet],
    down: bool,
    prefix: str,
) -> dict[str, Any]:
    """Return the page's section on one federation: a dict that the template turns into HTML.

    ``results`` are those of the methods on this federation; ``load(seed)`` returns its data. ``down`` says
    whether bytes that clients receive are counted too. Ids in pictures begin with ``prefix``.
    """
    federation, trained = results[0].runs[0].federation, report.is_trained(results)
    assert federation is not None
    seeds = list(dict.fromkeys(run.seed for result in results for run in result.runs))
    data = {seed: load(seed) for seed in seeds}
    first = data[seeds[0]]
    partitions = {
        seed: partition_statistics(
            each.train_labels, federation.assign(each, seed, warn=False), each.num_classes
        )
        for seed, each in data.items()
    }
    names = [class_name(first, label) for label in range(first.num_classes)]
    bytes_name = f"bytes {'up and down' if down else 'up'}, all{' rounds and' * trained} clients together"
    best = ranked(results)
    order = [*best, *(result for result in results if result not in best)]
    titles = [result.title for result in order]
    predictions = [
        {run.seed: run.predictions for run in result.runs if run.predictions is not None} for result in order
    ]
    if not all(predictions):  # a study in Python may not count them
        titles, predictions = [], []
    shown, widths = partitions[seeds[0]], {f"{prefix}d": style.PAGE, f"{prefix}e": style.PHONE}
    drawn = {name: plot_partition(shown, style.new_figure(width, HEIGHT)) for name, width in widths.items()}
    spread = f"How training examples are spread: {law_of(first, federation)}, seed {seeds[0]}"
    said = headline(results, len(first.test_labels), bytes_name, down)
    return {
        "title": name,
        "headline": gains(results, said) if trained else said,
        "grid": _with_gap(order, 2 if trained else 1),
        "pictures": [
            _curves(results, first.num_classes) if trained else _points(results, bytes_name, prefix),
            _picture(spread, str(shown), drawn),
        ],
        "details": [detail(*each, partitions, names) for each in zip(titles, predictions, strict=True)],
        "classes": class_by_class(titles, predictions, names),
    }


def _with_gap(results: Sequence[Result], place: int) -> Table:
    """Return the table of results, best first, with a column after the accuracy, in column ``place``.

    The column says how far each method is below the best one.
    """
    table, after = report.table(results), place + 1
    columns = (*table.columns[:after], "behind the best", *table.columns[after:])
    lines = tuple(
        (*line[:after], gap, *line[after:]) for line, gap in zip(table.lines, behind(results), strict=True)
    )
    return Table(columns, lines, frozenset({(0, place)}), sorted_by=place)


def _picture(title: str, text: str, figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return a picture for the template: one or two ``figures``, whose keys are the prefixes of ids."""
    return {"title": title, "text": text, "drawings": [as_svg(each, name) for name, each in figures.items()]}


def _points(results: Sequence[Result], bytes_name: str, prefix: str) -> dict[str, Any]:
    drawn = {f"{prefix}a": accuracy.draw("", results)}
    if drawn[f"{prefix}a"].get_figwidth() > style.PHONE:
        drawn[f"{prefix}b"] = accuracy.draw("", results, width=style.PHONE)
    text = f"Test accuracy against {bytes_name}, a point a method; the table has the numbers."
    return _picture(f"Accuracy against {bytes_name}", text, drawn)


def _sweep(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Draw accuracy against the number that varies in the study: one picture, or none if none varies."""
    number = sweep.swept(results)
    if number is None:
        return []
    drawn = {f"s{narrow:d}": sweep.draw("", results, number, narrow=narrow) for narrow in (False, True)}
    text = f"Test accuracy against {number}; bands are one standard deviation over the seeds."
    return [_picture(f"Accuracy by {number}", text, drawn)]


def _curves(results: Sequence[Result], num_classes: int) -> dict[str, Any]:
    drawn = {f"c{narrow:d}": curve.draw("", results, num_classes, narrow=narrow) for narrow in (False, True)}
    text = "Test accuracy against rounds, and against bytes up; a line a start and algorithm."
    return _picture("Accuracy by round and by bytes", text, drawn)
