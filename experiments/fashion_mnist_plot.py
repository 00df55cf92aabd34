"""The pictures of ``fashion_mnist.py``: accuracy of methods of one round, and by rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from baselines.ways import FROZEN, ONE_SHOT, SCRATCH, TUNED, WAYS

from covfree.studies.plots import style as figures

MARKS = ("o", "s", "^", "D", "v", "P")
LEVELS = {"ensemble": "ensemble, one round", "fedcof": "FedCOF's head, one round"}


def accuracy(
    records: Sequence[dict[str, Any]], method: str, alpha: float
) -> tuple[float, float, float] | None:
    """Mean, least and greatest over the seeds, in percent; None if nobody measured it."""
    found = [100 * np.mean(r["accuracy"]) for r in records if (r["method"], r["alpha"]) == (method, alpha)]
    return (float(np.mean(found)), float(min(found)), float(max(found))) if found else None


def one_round(records: Sequence[dict[str, Any]], alphas: Sequence[float], path: Path) -> None:
    """A line for each method of one round: for each α a dot, the mean of the seeds, on their range."""
    from matplotlib.lines import Line2D

    names = [name for name, way in WAYS.items() if way.group in (ONE_SHOT, FROZEN)]
    names = [name for name in names if any(record["method"] == name for record in records)]
    colours = figures.palette(len(alphas))
    with figures.style():
        figure = figures.new_figure(figures.COLUMN, 0.5 + 0.24 * len(names))
        axes = figure.subplots()
        for alpha, colour, mark in zip(alphas, colours, MARKS, strict=False):
            found = [accuracy(records, name, alpha) or (np.nan,) * 3 for name in names]
            mean, least, greatest = np.transpose(found)
            axes.plot(mean, range(len(names)), mark, color=colour, markersize=4)
            axes.hlines(range(len(names)), least, greatest, color=colour, linewidth=1)
        axes.set_yticks(range(len(names)), [WAYS[name].title.replace("`", "") for name in names])
        axes.invert_yaxis()
        split = sum(WAYS[name].group == ONE_SHOT for name in names)
        axes.axhline(split - 0.5, color=figures.GREY, linewidth=0.6)
        axes.grid()
        axes.set_xlabel("test accuracy, %")
        figures.legend_below(
            figure,
            [
                Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4, label=f"α = {alpha:g}")
                for alpha, colour, mark in zip(alphas, colours, MARKS, strict=False)
            ],
        )
        figures.save_all(figure, path)


def by_rounds(records: Sequence[dict[str, Any]], alphas: Sequence[float], width: float) -> Any:
    """Accuracy after each round, from scratch above and from the backbone below, a column for each α.

    Lines are means of the seeds, bands their range.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    names = [name for name, way in WAYS.items() if way.group == SCRATCH]
    colours = dict(zip(names, figures.palette(len(names)), strict=True))
    marks = dict(zip(names, MARKS, strict=False))
    level = {"ensemble": (figures.BLACK, (0, (4, 2))), "fedcof": (figures.GREY, (0, (1, 1)))}
    with figures.style():
        figure = figures.new_figure(width, 4.4)
        grid = figure.subplots(2, len(alphas), sharey="row", sharex="row", squeeze=False)
        for column, alpha in enumerate(alphas):
            for row, prefix in enumerate(("", "tuned-")):
                axes = grid[row, column]
                for name in names:
                    runs = [
                        r["history"] for r in records if (r["method"], r["alpha"]) == (prefix + name, alpha)
                    ]
                    if runs:
                        places, values = np.mean(runs, axis=0).T
                        range_of = 100 * np.min(runs, 0)[:, 1], 100 * np.max(runs, 0)[:, 1]
                        axes.fill_between(places, *range_of, color=colours[name], alpha=0.12, linewidth=0)
                        style: dict[str, Any] = {
                            "color": colours[name],
                            "marker": marks[name],
                            "markersize": 3,
                        }
                        axes.plot(places, 100 * values, **style)
                for name, (colour, line) in level.items():
                    found = accuracy(records, name, alpha)
                    if found is not None and not (row == 1 and name == "ensemble"):
                        axes.axhline(found[0], color=colour, linestyle=line, linewidth=1, zorder=1)
                axes.grid()
                axes.set_xlabel("rounds")
                axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            grid[0, column].set_title(f"α = {alpha:g}")
        grid[0, 0].set_ylabel("from scratch: accuracy, %")
        grid[1, 0].set_ylabel("fine-tuned: accuracy, %")
        lines = [
            Line2D([], [], color=colours[name], marker=marks[name], markersize=3, label=WAYS[name].title)
            for name in names
        ]
        lines += [
            Line2D([], [], color=colour, linestyle=line, label=LEVELS[name])
            for name, (colour, line) in level.items()
        ]
        figures.legend_below(figure, lines)
        return figure


def pictures(records: Sequence[dict[str, Any]], out: Path) -> None:
    """Draw what the records hold."""
    alphas = sorted({record["alpha"] for record in records if record["alpha"] is not None})
    groups = {WAYS[record["method"]].group for record in records}
    if groups & {ONE_SHOT, FROZEN}:
        one_round(records, alphas, out / "one_round.png")
    if groups & {SCRATCH, TUNED}:
        figures.save_for_pages(lambda width: by_rounds(records, alphas, width), out / "by_rounds.png")
