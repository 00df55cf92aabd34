"""Convert Matplotlib figures to SVG elements of a page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from covfree.studies.plots import style as figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that become variables of the page's style, as they differ on a dark page.
_COLOURS = {
    "#000000": "var(--text)",
    "#ffffff": "var(--card)",
    figures.BLUE.lower(): "var(--bar)",
    figures.VERMILLION.lower(): "var(--miss)",
}


def as_svg(figure: Figure, prefix: str) -> str:
    """Return a figure as an ``<svg>`` element that takes the page's colours and may shrink with the page.

    Its ids begin with ``prefix``, as ids of one page must differ.
    """
    file = io.BytesIO()
    with figures.style():
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Keep only ids that something refers to; drop others, such as those of groups.
    ids = {name: f' id="{prefix}{name}"' for name in re.findall(r"(?:url\(|href=\")#([^\")]+)", text)}
    # Rewrite tags only: the text of the figure is between them.
    text = re.sub(r"<[^>]*>", lambda tag: _rewritten(tag[0], prefix, ids), text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    width = 72 * figure.get_figwidth()
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 style="--width: {width:.0f}"', text, count=1)
    return re.sub(r">\s+<", "><", text).strip()


def _rewritten(tag: str, prefix: str, ids: dict[str, str]) -> str:
    """Return an SVG tag, fitted to the page: colours, ids, and numbers rounded to hundredths.

    Colours that differ on a dark page become variables of the page's style. References to an id get
    ``prefix``. ``ids`` has, for each id that is referred to, e.g. ``line``, the new attribute
    `` id="p1-line"`` (for the prefix ``p1-``); other ids are removed.
    """
    tag = re.sub(r' id="([^"]*)"', lambda found: ids.get(found[1], ""), tag)
    tag = re.sub(r"(url\(|href=\")#", rf"\g<1>#{prefix}", tag)
    for colour, variable in _COLOURS.items():
        tag = re.sub(rf"((?:fill|stroke): ){colour}", rf"\g<1>{variable}", tag)
    # A precision of hundredths of a point is enough.
    return re.sub(r"\d+\.\d{3,}", _rounded, tag)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"
