"""The picture of ``covfree finetune``: accuracy against rounds and against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covfree import methods
from covfree.studies.plots import style as figures
from covfree.studies.result import Result
from covfree.studies.starts import RANDOM
from covfree.studies.training import algorithm_of, start_and_algorithm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Dashes of the algorithms; dots are reserved for the closed-form stage.
_ON_AND_OFF = ((6, 1, 1, 1, 1, 1), (3, 1), (8, 2), (5, 1, 1, 1), (2, 1), (9, 1, 3, 1), (12, 3))
_DASHES = ("-", "--", "-.", *((0, pattern) for pattern in _ON_AND_OFF))


def plot(path: Path, title: str, every: Sequence[Result], num_classes: int) -> list[Path]:
    """Draw accuracy against rounds and against bytes up, as PNG, PDF and SVG.

    Colours show starts, and dashes algorithms. Lines are means over the seeds, bands standard deviations. A
    dotted line shows the closed-form stage, from chance, 1/C, to the start of training.

    Args:
        path: path of one of the files; its suffix is replaced.
        title: title over the picture.
        every: one curve each.
        num_classes: C, the number of classes.

    Returns:
        The paths of the files.
    """
    with figures.style():
        return figures.save_all(draw(title, every, num_classes), path)


def draw(title: str, every: Sequence[Result], num_classes: int, *, narrow: bool = False) -> Figure:
    """Draw the figure; see `plot`. A narrow figure stacks its two parts."""
    from matplotlib.ticker import MaxNLocator

    handles = _handles(every)
    # The legend's lines add to the height of the axes.
    width, height, lines = (figures.PHONE, 5.6, 2) if narrow else (figures.PAGE, 3.2, 1)
    figure = figures.new_figure(width, height + 0.05 * len(handles))
    figures.set_title(figure, title)
    by_round, by_bytes = np.ravel(figure.subplots(lines, 3 - lines, sharey=True))
    ends: list[float] = []
    for curve, style in zip(every, _styles(every), strict=True):
        rounds, size, accuracy = _lines(curve)
        mean, deviation = 100 * accuracy.mean(0), 100 * accuracy.std(0, ddof=min(1, len(accuracy) - 1))
        ends += [*(mean - deviation), *(mean + deviation)]
        for axes, places, before in ((by_round, rounds, -1.0), (by_bytes, size, 0.0)):
            _draw_curve(axes, curve, places, mean, deviation, style)
            if start_and_algorithm(curve.method)[0] != RANDOM:
                from_chance = [before, places[0]], [100 / num_classes, mean[0]]
                axes.plot(*from_chance, linestyle=":", color=style["color"])
    _set_limits(by_round, np.array(ends))
    for axes in (by_round, by_bytes)[:lines]:
        axes.set_ylabel("test accuracy, %")
    by_round.set_xlabel("rounds after the start")
    by_round.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    by_bytes.set_xlabel("bytes up, all clients together")
    figures.byte_axis(by_bytes.xaxis)
    for axes in (by_round, by_bytes):
        axes.grid()
    figures.legend_below(figure, handles)
    return figure


def _styles(every: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the colour and dashes of each curve."""
    colours, dashes = _looks(every)
    parts = [start_and_algorithm(curve.method) for curve in every]
    return [{"color": colours[init], "linestyle": dashes[algorithm]} for init, algorithm in parts]


def _looks(every: Sequence[Result]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return colours by start, and dashes by algorithm."""
    inits, algorithms = zip(*(start_and_algorithm(curve.method) for curve in every), strict=True)
    inits, algorithms = list(dict.fromkeys(inits)), list(dict.fromkeys(algorithms))
    colours = dict(zip(inits, figures.palette(len(inits)), strict=True))
    return colours, {name: _DASHES[i % len(_DASHES)] for i, name in enumerate(algorithms)}


def _handles(every: Sequence[Result]) -> list[Any]:
    """Make the legend's entries: each start, each algorithm, the closed-form stage, divergence."""
    from matplotlib.lines import Line2D

    colours, dashes = _looks(every)
    titles = {init: "random" if init == RANDOM else methods.registry()[init].title for init in colours}
    lines: list[tuple[str, dict[str, Any]]] = [
        *((f"from {titles[init]}", {"color": colour, "marker": "o"}) for init, colour in colours.items()),
        *((f"by {algorithm_of(name)[0].title}", {"linestyle": style}) for name, style in dashes.items()),
    ]
    if list(colours) != [RANDOM]:
        lines.append(("closed-form stage", {"linestyle": ":"}))
    if any(run.diverged is not None for curve in every for run in curve.runs):
        lines.append(("diverged", {"linestyle": "", "marker": "x"}))
    return [Line2D([], [], label=label, **{"color": figures.GREY, **style}) for label, style in lines]


def _draw_curve(
    axes: Axes,
    curve: Result,
    places: np.ndarray,
    mean: np.ndarray,
    deviation: np.ndarray,
    style: dict[str, Any],
) -> None:
    axes.plot(places, mean, label=curve.title, **style)
    mark = {"color": style["color"], "linestyle": ""}
    if len(curve.runs) > 1:
        axes.fill_between(
            places, mean - deviation, mean + deviation, alpha=0.15, linewidth=0, color=style["color"]
        )
    axes.plot(places[:1], mean[:1], marker="o", **mark)
    if any(run.diverged is not None for run in curve.runs):
        axes.plot(places[-1:], mean[-1:], marker="x", markersize=8, markeredgewidth=1.5, **mark)


def _set_limits(axes: Axes, ends: np.ndarray) -> None:
    """Fit the limits to the curves of training; the dotted lines may start below the axes."""
    seen = ends[np.isfinite(ends)]
    if not len(seen):
        return
    margin = 0.06 * max(np.ptp(seen), 1.0)
    axes.set_ylim(max(seen.min() - margin, 0), min(seen.max() + margin, 100.5))


def _lines(curve: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rounds [r], cumulative bytes up [r] and accuracies [seeds, r], up to the shortest run's end."""
    length = min(len(run.evaluated) for run in curve.runs)
    shown = [run.evaluated[:length] for run in curve.runs]
    size = []
    for run, records in zip(curve.runs, shown, strict=True):
        total = np.cumsum([record["bytes_up"] for record in run.history])
        size.append(total[[record["round"] for record in records]])
    rounds = np.array([record["round"] for record in shown[0]])
    return rounds, np.mean(size, 0), np.array([[record["accuracy"] for record in one] for one in shown])
