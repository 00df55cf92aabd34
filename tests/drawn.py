"""What a drawn figure shows: its texts, their sizes and where they lie."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[Text]:
    """All texts that are seen."""
    figure.draw_without_rendering()
    # Ticks outside the axes are there, but are not drawn.
    outside = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                outside |= {tick.label1, tick.label2}
    found = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip())
    return [text for text in found if text not in outside]


def boxes(artists) -> np.ndarray:
    """Left, bottom, right, top of each, in pixels."""
    return np.array([np.ravel(artist.get_window_extent().get_points()) for artist in artists])


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether boxes [m, 4] and [k, 4] overlap: [m, k]."""
    return ((first[:, None, :2] < second[:, 2:]) & (first[:, None, 2:] > second[:, :2])).all(-1)
