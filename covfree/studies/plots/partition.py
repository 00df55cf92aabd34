"""Plots of a partition. Matplotlib is imported only when a plot is made."""

from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from covfree.data.partitions.partition_statistics import PartitionStatistics
from covfree.studies.plots import style as figures
from covfree.studies.table import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAP_CLIENTS = 30
HEIGHT = 5.4  # inches


@figures.style()
def plot_partition(
    statistics: PartitionStatistics,
    target: "str | PathLike[str] | Figure | None" = None,
    *,
    title: str | None = None,
) -> "Figure":
    """Draw the spread of examples over clients and classes.

    The upper part maps the first 30 clients against the classes. The area of a disc is the number of examples
    of that class on that client, relative to the largest number; with more than 60 classes, the shade of a
    cell shows the number instead, on a logarithmic scale. The lower part has histograms of examples per
    client, classes per client and clients per class, each with its median. Examples and classes that no
    client holds, and clients that hold nothing, are counted in words.

    No window opens, and Matplotlib's global state stays as it is, with any backend.

    Args:
        statistics: from `partition_statistics`.
        target: where to draw. With a path, the plot is written there, in the format of its suffix. A
            Matplotlib `Figure` is drawn into, but not written. With None, a new figure is made, not written.
        title: title over the picture, such as the name of the data.

    Returns:
        The Matplotlib `Figure`.

    Raises:
        ImportError: Matplotlib is not installed; it comes with the extra ``cli``.

    >>> from covfree.data.partitions import iid, partition_statistics
    >>> labels = np.repeat(np.arange(4), 25)
    >>> figure = plot_partition(partition_statistics(labels, iid(labels, 5, seed=0)))
    >>> len(figure.axes)
    4
    """
    # Test for a path and not for a `Figure`, which would need an import of Matplotlib.
    figure: Figure = (
        figures.new_figure(figures.PAGE, HEIGHT)
        if target is None or isinstance(target, str | PathLike)
        else target
    )
    if title is not None:
        figures.set_title(figure, title)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.7, 1))
    _draw_map(figure, figure.add_subplot(grid[0, :]), statistics)
    histograms = (
        ("examples per client", "clients", statistics.sizes),
        ("classes per client", "clients", statistics.classes_per_client),
        ("clients per class", "classes", statistics.clients_per_class),
    )
    for column, (quantity, of, values) in enumerate(histograms):
        _draw_histogram(figure, figure.add_subplot(grid[1, column]), values, quantity, of)
    if isinstance(target, str | PathLike):
        figures.save(figure, target)
    return figure


def _draw_map(figure: "Figure", axes: "Axes", statistics: PartitionStatistics) -> None:
    shown = min(statistics.num_clients, _MAP_CLIENTS)
    first = statistics.pair_clients < shown
    x, y = statistics.pair_labels[first], statistics.pair_clients[first]
    counts = statistics.pair_counts[first]
    largest = int(counts.max()) if counts.size else 1
    if statistics.num_classes <= 60:
        # Areas in points²: the largest disc just fits in its cell of a figure of the default height.
        width = 430 * figure.get_figwidth() / figures.PAGE
        cell = min(width / statistics.num_classes, 165 / shown)
        axes.scatter(x, y, s=np.maximum(counts / largest * cell**2, 0.5), color=figures.BLUE, linewidths=0)
        scale = f"largest disc: {largest:,} examples"
    else:
        from matplotlib import colormaps
        from matplotlib.colors import ListedColormap, LogNorm
        from matplotlib.ticker import FuncFormatter

        table = np.zeros((shown, statistics.num_classes))
        table[y, x] = counts
        cells = np.ma.masked_equal(table, 0)
        # Start above the lightest blues, so that even a single pixel is distinct from white.
        shades = ListedColormap(colormaps["Blues"](np.linspace(0.35, 1, 256)))
        norm = LogNorm(1, max(largest, 2))
        image = axes.imshow(cells, cmap=shades, norm=norm, aspect="auto", interpolation="nearest")
        ticks = [step * 10**power for power in range(len(str(largest))) for step in (1, 2, 5)]
        bar = figure.colorbar(image, ax=axes, pad=0.01, ticks=[tick for tick in ticks if tick <= norm.vmax])
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,g}"))
        bar.minorticks_off()
        bar.set_label("examples")
        scale = "white: none"
    axes.set(
        xlim=(-0.5, statistics.num_classes - 0.5),
        ylim=(shown - 0.5, -0.5),
        xlabel="class",
        ylabel="client",
    )
    heading = _heading(statistics, f"the first {shown} shown; " * (shown < statistics.num_clients) + scale)
    width = 72 * figure.get_figwidth() - 60
    axes.set_title("\n".join(figures.wrapped(line, width) for line in heading), loc="left")
    _integer_ticks(axes)
    axes.grid()


def _heading(statistics: PartitionStatistics, shown: str) -> list[str]:
    """Return the heading of a partition's picture as one or two lines.

    The first line has the numbers of examples and clients, then in brackets ``shown``, a note on how to read
    the picture. The second, if needed, counts examples and classes on no client, and clients without
    examples.
    """
    held = statistics.num_examples - statistics.num_unassigned
    clients = statistics.num_clients
    lines = [f"{held:,} examples on {clients:,} {plural('client', clients)} ({shown})"]
    absent = int((statistics.clients_per_class == 0).sum())
    kinds = ((statistics.num_unassigned, "example"), (absent, "class"))
    nowhere = [f"{count:,} {plural(name, count)}" for count, name in kinds if count]
    left_out = [f"on no client: {' and '.join(nowhere)}"] if nowhere else []
    if empty := statistics.num_empty_clients:
        left_out.append(f"without examples: {empty:,} {plural('client', empty)}")
    return lines + (["; ".join(left_out)] if left_out else [])


def _draw_histogram(figure: "Figure", axes: "Axes", values: np.ndarray, quantity: str, of: str) -> None:
    """Draw a histogram of values with their median, on a logarithmic axis if the values spread far.

    ``quantity`` is the label of the x axis. ``of`` says what is counted; it is the label of the y axis.
    """
    low, high, median = int(values.min()), int(values.max()), float(np.median(values))
    logarithmic = low >= 1 and high > 30 * median
    if logarithmic:
        edges = np.geomspace(low, high + 1, 21)
        axes.set_xscale("log")
    else:
        # Bin widths are whole numbers; at a width of 1, bins are centred on whole numbers.
        width = max(1, -(-(high - low + 1) // 25))
        edges = np.arange(low, high + width + 1, width) - 0.5
        _integer_ticks(axes)
    heights, _ = np.histogram(values, edges)
    axes.stairs(heights, edges, fill=True, color=figures.BLUE)
    axes.axvline(median, color="black", linewidth=1, linestyle="--")
    axes.set(xlabel=quantity, ylabel=of)
    heading = f"median {median:,g} (from {low:,} to {high:,})"
    axes.set_title(figures.wrapped(heading, 24 * figure.get_figwidth() - 35), loc="left")
    if high == low:
        axes.set_xlim(low - 2, high + 2)
    if not logarithmic:
        # Counts are at least 0, so show no ticks below.
        axes.set_xlim(left=max(axes.get_xlim()[0], -0.5))


def _integer_ticks(axes: "Axes") -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
