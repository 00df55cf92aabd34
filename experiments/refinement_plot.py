"""The pictures of ``refinement.py``: accuracy by rounds and by bytes, one file a data set and one for all."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.studies.plots import style as figures

# What the results call it: its title, colour, mark, and whether it goes on over rounds.
WAYS: dict[str, tuple[str, str, str]] = {
    "refined": ("FedCOF, refined in rounds", figures.VERMILLION, "o"),
    "FedAdam": ("FedAdam from FedCOF's head", figures.PURPLE, ""),
    "FedAvg": ("FedAvg from FedCOF's head", figures.SKY, ""),
    "directions": ("residual directions, 1 and 8", figures.GREEN, "D"),
    "components": ("variance components", figures.BLACK, "^"),
    "Fed3R": ("Fed3R", figures.ORANGE, "s"),
    "exact covariance": ("exact covariance (d² numbers a class and client)", figures.BLUE, "*"),
}
IN_ROUNDS = ("refined", "FedAdam", "FedAvg")


class Points(NamedTuple):
    """A way's points, means over the seeds: rounds, bytes both ways, accuracy in %."""

    rounds: np.ndarray
    bytes: np.ndarray
    accuracy: np.ndarray


def mean_points(runs: Sequence[dict[str, Any]], way: str) -> Points:
    """Of all seeds."""
    return Points(*np.mean([run[way] for run in runs], axis=0).T)


def draw(by_rounds: Any, by_bytes: Any, runs: Sequence[dict[str, Any]]) -> None:
    """Both panels of one federation."""
    from matplotlib.ticker import MaxNLocator

    for way, (_, colour, mark) in WAYS.items():
        if way not in runs[0]:
            continue
        points = mean_points(runs, way)
        line = way in IN_ROUNDS
        style: dict[str, Any] = {"color": colour, "marker": mark or None, "linestyle": "-" if line else ""}
        style["zorder"] = 3 if way == "refined" else 2
        for axes, place in ((by_rounds, points.rounds), (by_bytes, points.bytes)):
            if line or axes is by_bytes:
                axes.plot(place, points.accuracy, **style)
        if not line:
            best = points.accuracy[-1]
            by_rounds.axhline(best, color=colour, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    for axes in (by_rounds, by_bytes):
        axes.grid()
    by_bytes.set_xscale("log")
    by_rounds.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    accuracies = np.concatenate([mean_points(runs, way).accuracy for way in WAYS if way in runs[0]])
    low, high = accuracies.min(), accuracies.max()
    margin = 0.06 * (high - low)
    for axes in (by_rounds, by_bytes):
        axes.set_ylim(low - margin, high + margin)


def seeds_of(*federations: Sequence[Any]) -> str:
    """How many seeds the points are means of."""
    least, most = min(map(len, federations)), max(map(len, federations))
    return f"{least} seed{'s' * (least > 1)}" if least == most else f"{least} to {most} seeds"


def handles() -> list[Any]:
    """The legend's lines."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=colour, marker=mark or None, linestyle=line, label=title)
        for way, (title, colour, mark) in WAYS.items()
        for line in ("-" if way in IN_ROUNDS else "",)
    ]


def picture(path: Path, title: str, panels: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """A column a federation: above accuracy by rounds, below by bytes. Of one, or on phones, side by side."""
    from matplotlib.ticker import LogLocator

    def drawn(width: float) -> Any:
        beside = len(panels) == 1 or width < figures.PAGE
        if beside:
            figure = figures.new_figure(width, 3.1 if width == figures.PAGE else 2 + 1.6 * len(panels))
            grid = figure.subplots(len(panels), 2, sharey="row", squeeze=False).T
        else:
            figure = figures.new_figure(width, 4.6)
            grid = figure.subplots(2, len(panels), sharey="col")
        for column, (name, runs) in enumerate(panels.items()):
            draw(grid[0, column], grid[1, column], runs)
            if len(panels) > 1:
                grid[0, column].set_title(name)
            grid[0, column].set_xlabel("rounds with clients")
            grid[1, column].set_xlabel("bytes up and down, all clients")
            figures.byte_axis(grid[1, column].xaxis)
            if len(panels) > 1:  # too narrow for more
                grid[1, column].xaxis.set_major_locator(LogLocator(subs=(1.0,)))
                grid[1, column].xaxis.set_minor_locator(LogLocator(subs="auto"))
        for axes in grid[0] if beside else grid[:, 0]:
            axes.set_ylabel("test accuracy, %")
        figures.set_title(figure, f"{title} (dashed: what the ways of one round reach)")
        figures.legend_below(figure, handles())
        return figure

    with figures.style():
        figures.save_for_pages(drawn, path)


def pictures(results: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """A file for each data set without shift and with, of the federations that there are."""
    kinds = {"": "α = 0.1", "-shift": "α = 0.5, shift", "-hard": "α = 0.1, shift"}
    for data in dict.fromkeys(name.split(",")[0] for name in results):
        for suffix, kind in kinds.items():
            names = {f"{number} clients": f"{data}, {number} clients, {kind}" for number in (10, 30, 100)}
            panels = {title: results[name] for title, name in names.items() if results.get(name)}
            if panels:
                text = f"{data}, {kind}, {seeds_of(*panels.values())}"
                picture(out / f"{data.lower()}{suffix}.png", text, panels)


def main() -> None:
    """Draw what ``results.json`` holds; with --only one federation alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of results.json")
    parser.add_argument("--only", help="name of a federation, for a picture of its own, first.png")
    arguments = parser.parse_args()
    results = json.loads((arguments.folder / "results.json").read_text())
    if arguments.only is None:
        pictures(results, arguments.folder)
    else:
        runs = results[arguments.only]
        title = f"{arguments.only}, {seeds_of(runs)}"
        picture(arguments.folder / "first.png", title, {arguments.only: runs})


if __name__ == "__main__":
    main()
