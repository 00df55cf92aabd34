"""Plots of a participation schedule. Matplotlib is imported only when a plot is made."""

from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from covfree import figures
from covfree.federation.partition_plot import draw_histogram, integer_ticks
from covfree.federation.schedule_summary import ScheduleStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (figures.PAGE, 5.4)  # inches
_MAP_CLIENTS = 30
_KINDS = {
    "first upload": figures.BLUE,
    "again": figures.SKY,
    "late": figures.ORANGE,
    "never arrives": figures.GREY,
}


def plot_schedule(
    statistics: ScheduleStatistics,
    target: "str | PathLike[str] | Figure | None" = None,
    *,
    title: str | None = None,
) -> "Figure":
    """Draw who is drawn in which round, and how much of the federation has been seen after each.

    The upper part maps rounds against the first 30 clients. Its colours tell a client's first upload that
    arrives in the round in which it is drawn from later ones, and from uploads that are late or never arrive.
    The lower part has the shares of clients, examples and classes that have been seen by the end of each
    round, and a histogram of the number of rounds for which a client is drawn.

    Opens no window and leaves Matplotlib's global state as it is, with any backend.

    Args:
        statistics: from `schedule_statistics`.
        target: where to draw: a path, whose suffix is the format, or a Matplotlib `Figure`, which is not
            written. With None, a new figure is made, not written.
        title: what the schedule is of, over the picture.

    Returns:
        The Matplotlib `Figure`.

    Raises:
        ImportError: Matplotlib is not installed; it comes with `pip install 'covfree[cli]'`.

    >>> from covfree.federation import schedule, schedule_statistics
    >>> plan = schedule(5, 2, 8, seed=0, dropout=0.2)
    >>> figure = plot_schedule(schedule_statistics(plan, np.arange(20) % 4, np.arange(20) % 5))
    >>> len(figure.axes)
    3
    """
    with figures.style():
        figure: Figure = (
            figures.new_figure(*_SIZE) if target is None or isinstance(target, str | PathLike) else target
        )
        if title is not None:
            figures.set_title(figure, title)
        grid = figure.add_gridspec(2, 2, height_ratios=(1.5, 1))
        _draw_map(figure.add_subplot(grid[0, :]), statistics)
        _draw_shares(figure.add_subplot(grid[1, 0]), statistics)
        axes = figure.add_subplot(grid[1, 1])
        draw_histogram(figure, axes, statistics.times_drawn, "times drawn", "clients")
        if isinstance(target, str | PathLike):
            figures.save(figure, target)
    return figure


def _draw_map(axes: "Axes", statistics: ScheduleStatistics) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    shown = min(statistics.num_clients, _MAP_CLIENTS)
    clients, delay = statistics.schedule
    rows = np.broadcast_to(np.arange(len(clients))[:, None], clients.shape)
    inside = (clients >= 0) & (clients < shown)
    rows, clients, delay = rows[inside], clients[inside], delay[inside]
    # Places in `_KINDS`.
    kind = np.where(rows == statistics.first_arrival[clients], 0, 1)
    kind = np.where(delay > 0, 2, np.where(delay < 0, 3, kind))
    cells = np.ma.masked_all((shown, statistics.num_rounds), int)
    cells[clients, rows] = kind
    colours = ListedColormap(list(_KINDS.values()))
    # Rounds count from 1 in all that users see of commands.
    extent = (0.5, statistics.num_rounds + 0.5, shown - 0.5, -0.5)
    axes.imshow(
        cells,
        cmap=colours,
        vmin=-0.5,
        vmax=len(_KINDS) - 0.5,
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    # Neighbours that are alike would run together; of many rounds, lines would hide the cells.
    axes.hlines(np.arange(shown - 1) + 0.5, *extent[:2], color="white", linewidth=0.8)
    if statistics.num_rounds <= 100:
        axes.vlines(np.arange(1, statistics.num_rounds) + 0.5, *extent[2:], color="white", linewidth=0.8)
    axes.set(xlabel="round", ylabel="client", xlim=extent[:2], ylim=extent[2:])
    part = (
        "" if shown == statistics.num_clients else f", the first {shown} of {statistics.num_clients:,} shown"
    )
    axes.set_title(f"clients drawn in each round{part}", loc="left")
    integer_ticks(axes)
    _tick_rounds(axes, statistics.num_rounds, 10)
    found = np.unique(kind)
    handles = [Patch(color=colour, label=name) for name, colour in _KINDS.items()]
    if found.size:
        # Right of the title, as it explains this panel alone.
        axes.legend(
            handles=[handles[place] for place in found],
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=len(found),
            handlelength=1,
            handletextpad=0.5,
            columnspacing=1,
            borderpad=0,
            borderaxespad=0.5,
        )


def _draw_shares(axes: "Axes", statistics: ScheduleStatistics) -> None:
    rounds = np.arange(1, statistics.num_rounds + 1)
    curves = (
        ("classes", statistics.classes_seen, statistics.num_classes, figures.GREEN, "-"),
        ("examples", statistics.examples_seen, statistics.num_examples, figures.VERMILLION, "--"),
        ("clients", statistics.clients_seen, statistics.num_clients, figures.BLACK, ":"),
    )
    for name, seen, total, colour, line in curves:
        axes.plot(rounds, 100 * seen / max(total, 1), color=colour, linestyle=line, label=name)
    axes.set(xlabel="round", ylabel="seen by its end, %", ylim=(0, 104))
    axes.set_title("what the server has seen", loc="left")
    axes.legend(loc="lower right")
    integer_ticks(axes)
    _tick_rounds(axes, statistics.num_rounds, 5)
    axes.grid()


def _tick_rounds(axes: "Axes", num_rounds: int, most: int) -> None:
    """Put ticks at the first round and at about so many round numbers."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]).tick_values(1, num_rounds)
    step = ticks[1] - ticks[0]
    axes.set_xticks([1, *(tick for tick in ticks if 1 + step / 2 <= tick <= num_rounds)])
