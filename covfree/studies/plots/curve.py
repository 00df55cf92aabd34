"""The picture of ``covfree finetune``: accuracy against rounds, bytes and operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covfree.studies.plots import style as figures
from covfree.studies.result import Result
from covfree.studies.starts import RANDOM, start_title
from covfree.studies.training import algorithm_of, start_and_algorithm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = "rounds", "bytes up, all clients", "operations (FLOP), all clients"
# Dashes of the algorithms; dots are reserved for the closed-form stage.
_ON_AND_OFF = ((6, 1, 1, 1, 1, 1), (3, 1), (8, 2), (5, 1, 1, 1), (2, 1), (9, 1, 3, 1), (12, 3))
_DASHES = ("-", "--", "-.", *((0, pattern) for pattern in _ON_AND_OFF))


@figures.style()
def draw(title: str, every: Sequence[Result], num_classes: int, *, narrow: bool = False) -> Figure:
    """Draw test accuracy against rounds, bytes sent by clients, and operations.

    There is a line for each of the results ``every``: the mean over the seeds, in a band of ± one standard
    deviation. Its colour shows the head from which training starts, and its dashes show the algorithm. If
    this first head is in closed form, a dotted line shows the rounds in which it is computed. The dotted line
    begins at chance, 1 / ``num_classes``, and ends where training starts. A narrow figure has its three plots
    one below another.
    """
    from matplotlib.ticker import MaxNLocator

    colours, dashes = _looks(every)
    handles, several = _handles(every, colours, dashes), len(_NAMES)
    # The figure's height grows with the number of the legend's lines.
    width, height, lines = (figures.PHONE, 8.0, several) if narrow else (figures.PAGE, 3.0, 1)
    figure = figures.new_figure(width, height + 0.05 * len(handles))
    figures.set_title(figure, title)
    axes = np.ravel(figure.subplots(lines, several // lines, sharey=True))
    ends: list[float] = []
    lasts: list[np.ndarray] = []
    for curve in every:
        init, algorithm = start_and_algorithm(curve.method)
        style = {"color": colours[init], "linestyle": dashes[algorithm]}
        rounds, places, accuracy = _lines(curve)
        mean, deviation = 100 * accuracy.mean(0), 100 * accuracy.std(0, ddof=min(1, len(accuracy) - 1))
        ends += [*(mean - deviation), *(mean + deviation)]
        lasts.append(np.array([place[-1] for place in places]))
        for each, place in zip(axes, places, strict=True):
            # The closed-form stage ends with round 0, the start of training.
            stage = rounds <= 0
            _draw_curve(each, curve, place[~stage | (rounds == 0)], mean, deviation, style)
            if init != RANDOM:
                path = [0.0, *place[stage]], [100 / num_classes, *mean[stage]]
                each.plot(*path, linestyle=":", color=style["color"])
    _set_limits(axes[0], np.array(ends))
    for each, name in zip(axes, _NAMES, strict=True):
        each.set_xlabel(name)
        each.grid()
    for each in axes if narrow else axes[:1]:
        each.set_ylabel("test accuracy, %")
    by_round, by_bytes, by_flops = axes
    if [*colours] != [RANDOM]:
        by_round.set_xlabel("rounds, closed form included")
    by_round.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _, last_bytes, last_flops = np.transpose(lasts)
    _stretch(by_bytes, last_bytes)
    _stretch(by_flops, last_flops)
    figures.byte_axis(by_bytes.xaxis, most=3)
    figures.byte_axis(by_flops.xaxis, most=3, unit="")
    figures.legend_below(figure, handles)
    return figure


def _looks(every: Sequence[Result]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a colour for each start of training, and a pattern of dashes for each algorithm."""
    inits, algorithms = zip(*(start_and_algorithm(curve.method) for curve in every), strict=True)
    inits, algorithms = list(dict.fromkeys(inits)), list(dict.fromkeys(algorithms))
    colours = dict(zip(inits, figures.palette(len(inits)), strict=True))
    return colours, {name: _DASHES[i % len(_DASHES)] for i, name in enumerate(algorithms)}


def _handles(every: Sequence[Result], colours: dict[str, str], dashes: dict[str, Any]) -> list[Any]:
    """Make the legend's entries: each start, each algorithm, the closed-form stage, divergence."""
    from matplotlib.lines import Line2D

    titles = {init: "random" if init == RANDOM else start_title(init) for init in colours}
    lines: list[tuple[str, dict[str, Any]]] = [
        *((f"from {titles[init]}", {"color": colour, "marker": "o"}) for init, colour in colours.items()),
        *((f"by {algorithm_of(name)[0].title}", {"linestyle": style}) for name, style in dashes.items()),
    ]
    if list(colours) != [RANDOM]:
        lines.append(("closed-form stage", {"linestyle": ":"}))
    if any(run.diverged is not None for curve in every for run in curve.runs):
        lines.append(("diverged", {"linestyle": "", "marker": "x"}))
    bands = [figures.band()] * any(len(curve.runs) > 1 for curve in every)
    return [
        *(Line2D([], [], label=label, **{"color": figures.GREY, **style}) for label, style in lines),
        *bands,
    ]


def _draw_curve(
    axes: Axes,
    curve: Result,
    places: np.ndarray,
    mean: np.ndarray,
    deviation: np.ndarray,
    style: dict[str, Any],
) -> None:
    """Draw a method's accuracy against the rounds of training, or what they cost, on ``axes``.

    A line shows the mean over the runs, and a band ± one standard deviation. A dot marks the start, and a
    cross the end if a run diverged. ``places`` has the x value of each round of training. ``mean`` and
    ``deviation`` may begin with entries for earlier rounds, which are not drawn.
    """
    mean, deviation = mean[-len(places) :], deviation[-len(places) :]
    axes.plot(places, mean, label=curve.title, **style)
    mark = {"color": style["color"], "linestyle": ""}
    if len(curve.runs) > 1:
        axes.fill_between(
            places, mean - deviation, mean + deviation, alpha=figures.BAND, linewidth=0, color=style["color"]
        )
    # Do not clip the mark of a start on the edge of the axes, at 0 or 100 %.
    axes.plot(places[:1], mean[:1], marker="o", clip_on=False, zorder=3, **mark)
    if any(run.diverged is not None for run in curve.runs):
        axes.plot(places[-1:], mean[-1:], marker="x", markersize=8, markeredgewidth=1.5, **mark)


def _stretch(axes: Axes, lasts: np.ndarray) -> None:
    """Make the x axis logarithmic, but linear near 0, if the longest curve is over 30 times the shortest.

    ``lasts`` are the x values at which the curves end.
    """
    lasts = lasts[lasts > 0]
    if len(lasts) and lasts.max() > 30 * lasts.min():
        linear = 10 ** np.floor(np.log10(lasts.min()))
        axes.set_xscale("symlog", linthresh=linear)
        axes.set_xlim(-0.1 * linear, 1.3 * lasts.max())


def _set_limits(axes: Axes, ends: np.ndarray) -> None:
    """Set the limits of the y axis such that all bands fit; ``ends`` are their lower and upper ends.

    Dotted lines may be cut off: they start at the accuracy of chance, often far below.
    """
    seen = ends[np.isfinite(ends)]
    if not len(seen):
        return
    margin = 0.06 * max(np.ptp(seen), 1.0)
    axes.set_ylim(max(seen.min() - margin, 0), min(seen.max() + margin, 100.5))


def _lines(curve: Result) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the rounds [r] that all runs measured, their x values [r] in each plot, and their accuracies.

    The x values are rounds, bytes that clients sent, and FLOPs; each is a mean over the runs. The accuracies
    are [seeds, r].
    """
    measured = [{record["round"] for record in run.evaluated} for run in curve.runs]
    rounds = np.array(sorted(set.intersection(*measured)))
    places, accuracy = [], []
    for run in curve.runs:
        first = run.history[0]
        # The first round of a closed-form stage counts as 1; a random start takes no round, and counts as 0.
        passed = rounds - first["round"] + (first["clients"] > 0)
        total = {name: np.cumsum([each[name] for each in run.history]) for name in ("bytes_up", "flops")}
        places.append([passed, *(each[rounds - first["round"]] for each in total.values())])
        found = {record["round"]: record["accuracy"] for record in run.evaluated}
        accuracy.append([found[number] for number in rounds])
    return rounds, list(np.mean(places, 0)), np.array(accuracy)
