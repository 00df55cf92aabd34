"""A picture of sites, placed by two measures of how far their class means differ from other sites'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from covfree.protocol import SiteReport
from covfree.studies.plots import style as figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Points outside these limits are drawn at the edge: spread (x axis) is clipped to ±_SPREAD, and agreement
# (y axis) to the range from _LOW to _HIGH.
_SPREAD, _LOW, _HIGH = 40.0, -1.5, 2.5
# The largest number of names that are written.
_NAMED = 24


@figures.style()
def plot_sites(report: SiteReport) -> Figure:
    """Draw each site (client) as a point: x is its ``spread`` and y its ``agreement``, see `Site`.

    Sites that fail the check of `diagnose_sites` have name and reason beside them: at most 24, those that
    differ most.
    """
    figure = figures.new_figure(figures.PHONE, 3.4)
    axes = figure.add_subplot()
    axes.axhline(1, color=figures.GREY, linewidth=0.6)
    axes.axvline(5, color=figures.GREY, linewidth=0.6, linestyle=":")
    axes.set_xlabel("distance of class means from the others', robust deviations")
    axes.set_ylabel("agreement of classes with the others'")
    axes.set_ylim(_LOW - 0.1, _HIGH + 0.1)
    sites = list(report.sites.items())
    places = np.array([(site.spread, site.agreement) for _, site in sites]).reshape(-1, 2)
    places = np.clip(np.nan_to_num(places, nan=1.0), (-_SPREAD, _LOW), (_SPREAD, _HIGH))
    bad = np.array([site.reason is not None for _, site in sites], bool)
    axes.plot(*places[~bad].T, "o", color=figures.BLUE, alpha=0.6, label="others")
    axes.plot(*places[bad].T, "D", color=figures.VERMILLION, label="not to be believed")
    worst = sorted(np.flatnonzero(bad), key=lambda i: -sites[i][1].score)[:_NAMED]
    # Names are in a column at the right, in the order of the points' heights.
    gap, height = min(0.24, (_HIGH - _LOW) / max(len(worst), 1)), _LOW - 1
    room = {i: _HIGH - gap * n for n, i in enumerate(sorted(worst, key=lambda i: -places[i, 1]))}
    for i in sorted(worst, key=lambda i: places[i, 1]):
        name, site = sites[i]
        height = min(max(places[i, 1], height + gap), room[i])
        axes.annotate(
            f"{name}: {str(site.reason).partition(':')[0]}",
            places[i],
            (1.03, height),
            textcoords=("axes fraction", "data"),
            va="center",
            parse_math=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": figures.GREY},
        )
    axes.legend(loc="best")
    title = f"{len(sites)} sites, {int(bad.sum())} not to be believed"
    figures.set_title(figure, title if report.judged else f"{len(sites)} sites: too few to judge")
    return figure
