"""Style of pictures: sizes, fonts, colours, axes that show bytes, and saving to files.

Matplotlib is imported where it is used.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from covfree.core.optional import optional

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

T = TypeVar("T")

# Widths in inches of a column, and of the page's text, in a two-column paper.
COLUMN, PAGE = 3.3, 6.9
# Width in inches of a picture that a phone shows without scaling.
PHONE = 4.0
# Type sizes in points of all text, and of titles.
TYPE, TITLE = 8.0, 9.0
FORMATS = ("png", "pdf", "svg")

# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is faint on white;
# and grey and brown.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK, GREY = "#56B4E9", "#CC79A7", "#000000", "#7F7F7F"
BROWN = "#8C564B"
BAND = 0.15  # opacity of the band of a standard deviation around a line
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK)

_SETTINGS: dict[str, Any] = {
    "font.size": TYPE,
    "axes.titlesize": TYPE,
    "axes.labelsize": TYPE,
    "xtick.labelsize": TYPE,
    "ytick.labelsize": TYPE,
    "legend.fontsize": TYPE,
    "legend.frameon": False,
    "figure.titlesize": TITLE,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 5,
    # Keep text as text, to be searched and edited. The salt makes files reproducible.
    "svg.fonttype": "none",
    "svg.hashsalt": "covfree",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Return a context in which Matplotlib has the settings for pictures; draw and save figures inside."""
    with optional("matplotlib", "cli").rc_context(_SETTINGS):
        yield


def new_figure(width: float | int, height: float | int) -> Figure:
    """Make a figure, sized in inches, that pyplot does not register and that opens no window."""
    agg, figures = (optional(f"matplotlib.{name}", "cli") for name in ("backends.backend_agg", "figure"))
    figure = figures.Figure(figsize=(width, height), dpi=200, layout="constrained")
    agg.FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure in the format of the path's suffix, without a date, so that files can be compared."""
    dated = {".pdf": "CreationDate", ".svg": "Date"}.get(Path(path).suffix.lower())
    with style():
        figure.savefig(path, metadata=None if dated is None else {dated: None})


def save_all(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG, PDF and SVG, and return the paths."""
    paths = [path.with_suffix(f".{suffix}") for suffix in FORMATS]
    for each in paths:
        save(figure, each)
    return paths


def save_for_pages(draw: Callable[[float], Figure], path: Path) -> list[Path]:
    """Write the figure ``draw(PAGE)`` as `save_all` does, and ``draw(PHONE)`` as NAME-phone.png.

    The documentation's site shows the second one on narrow screens.
    """
    phone = path.with_name(f"{path.stem}-phone.png")
    save(draw(PHONE), phone)
    return [*save_all(draw(PAGE), path), phone]


def palette(count: int) -> list[str]:
    """Return ``count`` different colours: Okabe and Ito's, then darker and lighter shades of them.

    >>> palette(2)
    ['#0072b2', '#d55e00']
    >>> len(set(palette(21)))
    21
    """
    from matplotlib.colors import to_hex, to_rgb

    own, shades = COLOURS[:-1], []  # black has no darker shade
    for level in range(1 + count // len(own)):
        # Level 0 mixes in nothing; the next ones mix in black, white, more black, …
        share, end = min(0.35 * ((level + 1) // 2), 0.8), float(level % 2 == 0)
        red_green_blue = [(1 - share) * np.array(to_rgb(each)) + share * end for each in own]
        shades += [to_hex((red, green, blue)) for red, green, blue in red_green_blue]
        if level == 0:
            shades.append(to_hex(BLACK))
    return shades[:count]


def byte_axis(axis: Axis, most: int | None = None, unit: str = "B") -> None:
    """Label about ``most`` ticks of an axis in bytes, or another unit, with prefixes: 10 kB, 1 MB."""
    from matplotlib.scale import SymmetricalLogTransform
    from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        steps = (1.0,) if math.log10(high / low) > 1.5 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=steps, numticks=most))
        axis.set_minor_locator(LogLocator(subs="auto") if len(steps) == 1 else NullLocator())
        axis.set_minor_formatter(lambda *_: "")
    elif axis.get_scale() == "symlog":
        high, transform = math.floor(math.log10(axis.get_view_interval()[1])), axis.get_transform()
        assert isinstance(transform, SymmetricalLogTransform)
        decades = 10.0 ** np.arange(high, math.log10(transform.linthresh) - 0.5, -1)
        step = -(-len(decades) // (most or 6))
        axis.set_major_locator(FixedLocator([0.0, *decades[::step]]))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most or 6))
    axis.set_major_formatter(EngFormatter(unit))


def near(values: Mapping[T, np.ndarray], least: float) -> list[T]:
    """Choose the curves or points to draw: all but those far below the others, which would squeeze them.

    ``values`` has the values of each curve by its name. The result is the names of the chosen ones, the
    highest first. A curve is left out if it is below by more than three times the range of the others, or
    three times ``least`` if the range is smaller. The two highest are always chosen.

    >>> near({"a": np.array([90.0, 94.0]), "b": np.array([3.0]), "c": np.array([95.0])}, least=1.0)
    ['c', 'a']
    """
    shown: list[T] = []
    for name in sorted(values, key=lambda name: -values[name].max()):
        seen = np.concatenate([values[each] for each in shown]) if shown else values[name]
        # Always show the two highest: with one shown, its own range, perhaps 0, would decide which others are
        # far below.
        if len(shown) > 1 and seen.min() - values[name].max() > 3 * max(np.ptp(seen), least):
            break
        shown.append(name)
    return shown


def text_width(text: str, size: float = TYPE) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def wrapped(text: str, width: float | int, size: float = TYPE) -> str:
    """Break text into lines of at most ``width`` points; a word that is too long is broken as well."""
    for characters in range(max(len(text), 1), 1, -1):
        lines = textwrap.wrap(text, characters)
        if all(text_width(line, size) <= width for line in lines):
            return "\n".join(lines)
    return text


def set_title(figure: Figure, text: str) -> None:
    """Set a figure's title, wrapped at the figure's width; none for an empty text."""
    if not text:
        return
    width = 72 * figure.get_figwidth() - 8
    title = figure.suptitle(wrapped(text, width, TITLE), x=4 / (72 * figure.get_figwidth()), ha="left")
    # Turn off math text, as names of data sets may contain dollar signs.
    title.set_parse_math(False)


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend below the axes, in as many columns as fit the figure's width."""
    widths = [text_width(str(handle.get_label())) + 4.5 * TYPE for handle in handles]
    # Matplotlib fills columns as `array_split` does, each as wide as its widest entry.
    fitting = [
        columns
        for columns in range(1, len(widths) + 1)
        if sum(part.max() for part in np.array_split(widths, columns)) <= 72 * figure.get_figwidth()
    ]
    legend = figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=max(fitting, default=1),
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def band() -> Any:
    """Return the legend's entry for bands, which show one standard deviation around a line."""
    from matplotlib.patches import Patch

    return Patch(color=GREY, alpha=BAND, linewidth=0, label="mean ± one standard deviation")
