"""The picture of ``covfree compare``: accuracy against bytes, with labelled points and a Pareto front."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covfree.studies.plots import style as figures
from covfree.studies.plots.placing import place_labels, side_by_side
from covfree.studies.plots.points import FAMILIES, OTHER, Family, Point, pareto_front, point_of
from covfree.studies.report import receives
from covfree.studies.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# A mark's half size and half the width of an error bar's cap in points; most characters in a label's line.
_MARK, _CAP, _LINE = 3.5, 2.0, 24
_STAR = 1.5  # size of a star relative to other marks: it looks smaller, as it is empty between its tips
_EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.4}
_RANGE = 10.0  # percentage points; methods over 3 times this below all others may be left out, see `near`
_FEW = 4  # number of methods whose picture fits the width of a column
_QUIET = "#666666"  # grey, readable on white: the front's line, and labels of points off the front
FRONT = "grey line and bold labels: the best accuracy at so many bytes or fewer"


@figures.style()
def draw(title: str, results: Sequence[Result], width: float | None = None) -> Figure:
    """Draw accuracy (mean and standard deviation) against bytes.

    Bytes are those that clients send. If any method's clients receive bytes before the head, received bytes
    are added for all methods. A method far below all others is left out of the axes; a note has its accuracy.
    The figure's ``width`` in inches depends by default on ``results``.
    """
    down = receives(results)
    every = [point_of(result, down) for result in results]
    points = [point for point in every if isfinite(point.accuracy) and point.size > 0]
    missing = [point.title for point in every if point not in points]
    bars = {point: point.accuracy + (point.deviation or 0.0) * np.array([-1, 1]) for point in points}
    below = [point for point in points if point not in figures.near(bars, least=_RANGE)]
    points = [point for point in points if point not in below]

    if width is None:
        width = figures.COLUMN if len(results) <= _FEW else figures.PAGE
    figure = figures.new_figure(width, width)
    figures.set_title(figure, title)
    axes = figure.subplots()
    set_limits(axes, points)
    axes.set_ylabel("test accuracy, %")
    if any(point.family is not OTHER for point in points):
        add_legend(figure, points)
    notes = []
    if any(point.deviation is not None for point in points):
        notes.append("bars: one standard deviation")
    if len(points) > 1:
        notes.append(FRONT)
    if below:
        notes.append(f"below the axes: {', '.join(f'{one.title} ({one.accuracy:.1f} %)' for one in below)}")
    if missing:
        notes.append(f"not shown, as there is no accuracy: {', '.join(missing)}")
    # The height in inches grows with the number of lines in labels, faster on a narrow page, where labels
    # stack up.
    line = 0.055 if width >= figures.PAGE or len(results) <= _FEW else 0.055 * figures.PAGE / width
    height = 1.8 + line * sum(_in_lines(point.title).count("\n") + 1 for point in points)
    _describe(figure, axes, down, notes, height)
    if points:
        if _marks(_Page(figure, axes), points).shifts.any():
            notes.append("points moved apart sideways have a line to their bytes")
            _describe(figure, axes, down, notes, height)
        # Fix the size of the axes, as the places of labels are chosen for it.
        figure.set_layout_engine("none")
        draw_points(figure, axes, points, range(len(points)))
    return figure


def set_limits(axes: Axes, points: Sequence[Point]) -> None:
    """Set the axes' limits: at least a decade of bytes and two percentage points, with room for labels."""
    exponent = np.log10([point.size for point in points] or [1e5])
    low, high = exponent.min(), exponent.max()
    room = max(0.2 * (high - low), (1 - (high - low)) / 2, 0.3)
    axes.set_xscale("log")
    axes.set_xlim(10 ** max(low - 1.5 * room, 0), 10 ** (high + room))
    figures.byte_axis(axes.xaxis)
    accuracy = np.array([point.accuracy for point in points] or [50.0])
    bars = np.array([point.deviation or 0.0 for point in points] or [0.0])
    low, high = (accuracy - bars).min(), (accuracy + bars).max()
    room = max(0.1 * (high - low), (2 - (high - low)) / 2)
    axes.set_ylim(low - room, high + room)
    axes.grid()


def add_legend(figure: Figure, points: Sequence[Point]) -> None:
    """Add a legend below the axes, with the points' families (the kinds of statistics that clients send)."""
    present = {point.family for point in points}
    figures.legend_below(figure, [_handle(family) for family in (*FAMILIES, OTHER) if family in present])


def draw_points(figure: Figure, axes: Axes, points: Sequence[Point], labelled: Iterable[int]) -> None:
    """Draw points and their Pareto front; only the points with the indices ``labelled`` get labels.

    A label is bold if its point is on the front of the labelled points. Points without a label are faint.
    """
    page = _Page(figure, axes)
    chosen = [points[i] for i in labelled]
    faint = [point for point in points if point not in chosen]
    for point in faint:
        style = {"marker": point.family.mark, "color": point.family.colour, "alpha": 0.5, **_EDGE}
        axes.plot(point.size, point.accuracy, linestyle="", markersize=_half(point.family), **style)
    marks = _marks(page, chosen)
    best = [points[i] for i in pareto_front(points)]
    # Extend the front to the right edge: the last point is also the best for more bytes.
    end = Point("", "", axes.get_xlim()[1], best[-1].accuracy, None)
    corners = np.array([[point.size, point.accuracy] for point in (*best, end)])
    axes.plot(*corners.T, drawstyle="steps-post", color=_QUIET, linewidth=1.0, zorder=1.5)
    _draw_marks(page, marks, chosen)
    small = page.place(np.array([[point.size, point.accuracy] for point in faint]).reshape(-1, 2))
    beside = np.concatenate([small - _MARK / 2, small + _MARK / 2], 1)
    _draw_labels(page, marks, chosen, np.concatenate([_stairs(page.place(corners)), beside]))


def _half(family: Family) -> float:
    """Return half the size, in points, of the mark that shows a family of methods."""
    return _MARK * (_STAR if family.mark == "*" else 1)


def _handle(family: Family) -> Any:
    from matplotlib.lines import Line2D

    style = {"marker": family.mark, "markersize": 2 * _half(family), "color": family.colour, **_EDGE}
    return Line2D([], [], linestyle="", label=family.title, **style)


class _Page(NamedTuple):
    """A figure and its axes; converts data coordinates to positions in points (1/72 inch), and back."""

    figure: Figure
    axes: Axes

    def place(self, data: np.ndarray) -> np.ndarray:
        """Convert points [n, 2] from data coordinates to positions on the page, in units of 1/72 inch."""
        return self.axes.transData.transform(data) * 72 / self.figure.dpi

    def data(self, places: np.ndarray) -> np.ndarray:
        """Convert positions [n, 2] on the page, in units of 1/72 inch, to data coordinates of the axes."""
        return self.axes.transData.inverted().transform(places * self.figure.dpi / 72)


class _Marks(NamedTuple):
    """Places of marks on the page, in points.

    Attributes:
        centres: [n, 2] centres of the marks.
        shifts: [n] how far each mark was moved sideways.
        boxes: [2n, 4] boxes (left, bottom, right, top) of the marks, then of their error bars.
        bounds: [4] box of the axes.
    """

    centres: np.ndarray
    shifts: np.ndarray
    boxes: np.ndarray
    bounds: np.ndarray


def _marks(page: _Page, points: Sequence[Point]) -> _Marks:
    """Compute where on the page to draw each method's mark; overlapping marks are moved sideways.

    If the size of the axes changes later, the result is no longer valid.
    """
    data = np.array([[point.size, point.accuracy] for point in points])
    bars = np.array([point.deviation or 0.0 for point in points])
    halves = np.array([_half(point.family) for point in points])
    centres = page.place(data)
    reach = page.place(data + bars[:, None] * [0, 1]) - centres
    bounds = np.ravel(page.axes.bbox.get_points()) * 72 / page.figure.dpi
    half = np.stack([halves, reach[:, 1].clip(halves)], 1)
    # Points of the front come first, so that they stay on its line.
    front = pareto_front(points)
    order = front + [i for i in range(len(points)) if i not in front]
    shifts = np.zeros(len(points))
    shifts[order] = side_by_side(np.concatenate([centres - half, centres + half], 1)[order], bounds)
    centres[:, 0] += shifts
    stem = np.stack([np.full(len(points), _CAP), reach[:, 1]], 1)
    boxes = [np.concatenate([centres - size, centres + size], 1) for size in (halves[:, None], stem)]
    return _Marks(centres, shifts, np.concatenate(boxes), bounds)


def _describe(figure: Figure, axes: Axes, down: bool, notes: Sequence[str], height: float) -> None:
    """Label the x axis, and write ``notes`` below the label; make the axes ``height`` inches high.

    The label says that x counts bytes up; with ``down``, bytes up and down. The figure grows as needed.
    """
    lines = [f"bytes {'up and down' if down else 'up'}, all clients together"]
    if notes:
        lines.append(figures.wrapped("; ".join(notes), 72 * figure.get_figwidth() - 50))
    axes.set_xlabel("\n".join(lines), parse_math=False)
    figure.draw_without_rendering()
    figure.set_figheight(figure.get_figheight() + height - axes.bbox.height / figure.dpi)
    figure.draw_without_rendering()


def _stairs(corners: np.ndarray) -> np.ndarray:
    """Return the lines of a staircase as flat boxes [2n − 2, 4] (left, bottom, right, top).

    Labels must avoid these boxes. Each of the n ``corners`` [n, 2] is joined to the next by two lines: to the
    right, then up.
    """
    left, bottom = corners[:-1].T
    right, top = corners[1:].T
    return np.concatenate(
        [np.stack(sides, 1) for sides in ((left, bottom, right, bottom), (right, bottom, right, top))]
    )


def _draw_marks(page: _Page, marks: _Marks, points: Sequence[Point]) -> None:
    for point, (x, _), shift in zip(points, page.data(marks.centres), marks.shifts, strict=True):
        family, y = point.family, point.accuracy
        style = {"fmt": family.mark, "markersize": 2 * _half(family), "color": family.colour, **_EDGE}
        style |= {"capsize": _CAP, "capthick": 0.8, "elinewidth": 0.8}
        page.axes.errorbar(x, y, yerr=point.deviation or None, zorder=3, **style)
        if shift:
            page.axes.plot([point.size, x], [y, y], color=family.colour, linewidth=1.2, zorder=2)


def _draw_labels(page: _Page, marks: _Marks, points: Sequence[Point], obstacles: np.ndarray) -> None:
    front = pareto_front(points)
    strong, weak = {"fontweight": "bold"}, {"color": _QUIET}
    styles: list[dict[str, Any]] = [strong if i in front else weak for i in range(len(points))]
    texts = [
        page.axes.text(0, 0, _in_lines(point.title), va="center", parse_math=False, **style)
        for point, style in zip(points, styles, strict=True)
    ]
    boxes = [text.get_window_extent() for text in texts]
    sizes = np.array([[box.width, box.height] for box in boxes]) * 72 / page.figure.dpi
    avoided = np.concatenate([marks.boxes, obstacles])
    centres, ends = place_labels(marks.centres, sizes, avoided, marks.bounds)
    for text, centre, size, end, mark in zip(texts, centres, sizes, ends, marks.centres, strict=True):
        # Align the lines of text towards the mark.
        aside = (centre - mark)[0] / size[0]
        align = "center" if abs(aside) < 0.5 else "left" if aside > 0 else "right"
        anchor = centre + size * np.array([{"left": -0.5, "center": 0, "right": 0.5}[align], 0])
        (x, y), (from_x, from_y), (to_x, to_y) = page.data(np.array([anchor, mark, end]))
        text.set(x=x, y=y, ha=align)
        if np.hypot(*(end - mark)) > 3 * _MARK:
            page.axes.plot([from_x, to_x], [from_y, to_y], color=figures.GREY, linewidth=0.5, zorder=1)


def _in_lines(title: str) -> str:
    """Break a title into as few lines as possible, of similar lengths."""
    lines = textwrap.wrap(title, _LINE)
    for width in range(_LINE, 0, -1):
        shorter = textwrap.wrap(title, width, break_long_words=False)
        if len(shorter) > len(lines):
            break
        lines = shorter
    return "\n".join(lines)
