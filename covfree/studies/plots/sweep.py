"""The picture of a sweep: accuracy against the number that varies; a panel for each data and federation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from covfree.studies.known import alternatives
from covfree.studies.names import parsed
from covfree.studies.plots import style as figures
from covfree.studies.result import Result, place_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = 3  # the number of panels side by side on a page
_TICKS = 7  # the largest number of tick labels that fit below a panel
_DASHES = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (9, 1, 3, 1)))
_WORDS = {"alpha": "alpha of the partition", "clients": "number of clients"}


class _Point(NamedTuple):
    """A point of the picture: one method's accuracy at one value of the setting that the sweep varies.

    Attributes:
        panel: the data set and the federation, which are the same for all points of a panel.
        curve: the curve's name, the method without the varied setting.
        place: the x value, the setting's value; None if the method or federation does not have the setting.
        result: the method's result.
    """

    panel: tuple[str, Any]
    curve: str
    place: float | None
    result: Result


def swept(results: Sequence[Result]) -> str | None:
    """Return the name of the numeric setting that a sweep varies; None if none varies.

    It is "alpha" or "clients", of the federation, or an argument of a method such as "shrinkage". If several
    vary, it is the one with the most values in the results.
    """
    values: dict[str, set[float]] = {"alpha": set(), "clients": set()}
    for result in results:
        federation, own = result.place[1], _numbers(result)
        if federation is not None:
            own |= {"clients": federation.clients}
            own |= {"alpha": federation.alpha} if federation.partition != "iid" else {}
        for name, value in own.items():
            if _is_number(value):
                values.setdefault(name, set()).add(float(value))
    most = max(values, key=lambda name: len(values[name]))
    return most if len(values[most]) > 1 else None


@figures.style()
def draw(title: str, results: Sequence[Result], number: str, *, narrow: bool = False) -> Figure:
    """Draw accuracy against the setting ``number``, which varies; a panel for each data set and federation.

    Lines are means over the seeds, bands one standard deviation. A method that does not take the setting is a
    horizontal line. A curve far below all others is left out of the axes, as it would squeeze the others; the
    legend says so. If ``narrow``, the panels are one below another.
    """
    from matplotlib.lines import Line2D

    points = [_point(result, number) for result in results]
    panels, curves = (
        list(dict.fromkeys(getattr(each, part) for each in points)) for part in ("panel", "curve")
    )
    columns = 1 if narrow else min(len(panels), _PANELS)
    lines = -(-len(panels) // columns)
    labels = {curve: curve + _without(number, curve, points) for curve in curves}
    longest = max(figures.text_width(f"{label} (below the axes)") for label in labels.values())
    longest += 5 * figures.TYPE
    fits = len(panels) == 1 and longest < 72 * figures.COLUMN
    width = figures.PHONE if narrow else figures.COLUMN if fits else figures.PAGE
    figure = figures.new_figure(width, 0.7 + 2.0 * lines + 0.15 * len(curves))
    figures.set_title(figure, title)
    every = np.ravel(figure.subplots(lines, columns, squeeze=False))
    colours = figures.palette(len(curves))
    styles = {
        curve: {"color": colour, "linestyle": _DASHES[place % len(_DASHES)]}
        for place, (curve, colour) in enumerate(zip(curves, colours, strict=True))
    }
    below: set[str] = set()
    for axes, panel, name in zip(every, panels, place_names(panels), strict=False):
        own = [point for point in points if point.panel == panel]
        _set_scale(axes, [point.place for point in own if point.place is not None])
        ends = {
            curve: _draw_curve(axes, [point for point in own if point.curve == curve], style)
            for curve, style in styles.items()
        }
        below |= _set_limits(axes, {curve: end for curve, end in ends.items() if len(end)})
        axes.set_title(name if len(panels) > 1 else "", loc="left", parse_math=False)
        axes.set_xlabel(_WORDS.get(number, number.replace("_", " ")))
        axes.grid()
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    words = _share(list(every[: len(panels)]))
    for axes in every[::columns]:
        axes.set_ylabel(f"test accuracy, %{words}")
    figures.legend_below(
        figure,
        [
            Line2D([], [], label=labels[curve] + " (below the axes)" * (curve in below), **style)
            for curve, style in styles.items()
        ]
        + [figures.band()] * any(result.accuracy[1] is not None for result in results),
    )
    return figure


def _numbers(result: Result) -> dict[str, Any]:
    """Return the arguments in a method's name: {"shrinkage": 0.1} for ``fedcof:shrinkage=0.1``.

    There are none if clients choose among several methods, or if a name given in Python has another form.
    """
    try:
        return {} if len(alternatives(result.method)) > 1 else parsed(result.method, "")[1]
    except ValueError:
        return {}


def _point(result: Result, number: str) -> _Point:
    dataset, federation = result.place
    own = _numbers(result).get(number)
    if federation is not None and number in _WORDS:
        place = None if federation.partition == "iid" and number == "alpha" else getattr(federation, number)
        return _Point((dataset, replace(federation, **{number: 0})), result.title, place, result)
    if not _is_number(own):
        return _Point(result.place, result.title, None, result)
    # Remove the swept number from the title's parentheses, such as (shrinkage=0.1, head=ridge).
    title = re.sub(rf"(, )?\b{number}=[^,)]*(?(1)|(, )?)", "", result.title).replace(" ()", "")
    return _Point(result.place, title, float(own), result)


def _without(number: str, curve: str, points: Sequence[_Point]) -> str:
    """Return a note for a method's legend entry if the method was given no ``number`` at all, else ""."""
    given = any(point.place is not None for point in points if point.curve == curve)
    if given or number in _WORDS or f"{number}=" in curve:
        return ""
    return f" (no {number.replace('_', ' ')} set)"


def _share(panels: Sequence[Axes]) -> str:
    """Give all panels the same limits of accuracy, unless that squeezes one to less than a third.

    Return a text to append to the axes' label: it says so if their scales differ, and is empty if not.
    """
    panels = [axes for axes in panels if not axes.get_autoscaley_on()]  # those with an accuracy
    if not panels:
        return ""
    limits = np.array([axes.get_ylim() for axes in panels])
    low, high = limits[:, 0].min(), limits[:, 1].max()
    if 3 * np.ptp(limits, axis=1).min() < high - low:
        return "\n(scales differ)"
    for axes in panels:
        axes.set_ylim(low, high)
    return ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _set_scale(axes: Axes, places: Sequence[float]) -> None:
    """Make the x axis logarithmic if its values are at least 0 and span a factor of 8.

    If the values are few, each gets a tick.
    """
    from matplotlib.ticker import NullLocator

    values = sorted(set(places))
    if not values:
        axes.set_xticks([])
        return
    positive = [value for value in values if value > 0]
    if values[0] >= 0 and positive and values[-1] >= 8 * positive[0]:
        # If 0 is among the values, the axis is linear below the smallest positive one.
        more = {} if values[0] > 0 else {"linthresh": positive[0]}
        axes.set_xscale("symlog" if more else "log", **more)
    if len(values) <= _TICKS:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())


def _draw_curve(axes: Axes, points: Sequence[_Point], style: dict[str, Any]) -> np.ndarray:
    """Draw the mean accuracies at points, and a band of one standard deviation on both sides.

    Return the lower and upper ends of the band, in one array.
    """
    if not points:
        return np.zeros(0)
    accuracy = np.array([point.result.accuracy[0] for point in points], float)
    deviation = np.array([point.result.accuracy[1] or 0.0 for point in points], float)
    low, mean, high = 100 * (accuracy - deviation), 100 * accuracy, 100 * (accuracy + deviation)
    if points[0].place is None:
        axes.axhline(mean[0], **style)
        axes.axhspan(low[0], high[0], alpha=figures.BAND, linewidth=0, color=style["color"])
    else:
        places = np.array([point.place for point in points], float)
        order = np.argsort(places)
        axes.plot(places[order], mean[order], marker="o", markersize=3.5, **style)
        axes.fill_between(
            places[order], low[order], high[order], alpha=figures.BAND, linewidth=0, color=style["color"]
        )
    return np.concatenate([low, high])


def _set_limits(axes: Axes, ends: dict[str, np.ndarray]) -> set[str]:
    """Set the y axis's limits to show all curves except those far below; return the names of these.

    ``ends`` maps a curve's name to values that must be in sight for it, such as the ends of its band.
    """
    known = {curve: end[np.isfinite(end)] for curve, end in ends.items() if np.isfinite(end).any()}
    if not known:
        return set()
    shown = figures.near(known, least=1.0)
    seen = np.concatenate([known[each] for each in shown])
    margin = 0.06 * max(np.ptp(seen), 1.0)
    axes.set_ylim(seen.min() - margin, seen.max() + margin)
    return set(known) - set(shown)
