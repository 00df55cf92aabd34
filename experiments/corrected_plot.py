"""The picture of ``corrected.py``: accuracy by rounds and by bytes.

Run ``python experiments/corrected_plot.py FOLDER``, the folder of its results.
Means over the seeds at which federated training was run, so that all ways have the same examples and clients.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from covfree.studies.plots import style as figures

# What the results call a way: its title, colour and line.
WAYS: dict[str, tuple[str, str, Literal["-", "--"]]] = {
    "Student, corrected": ("Student head, corrected", figures.VERMILLION, "-"),
    "FedCOF, corrected": ("FedCOF, corrected", figures.ORANGE, "-"),
    "refined": ("FedCOF, refined", figures.BLUE, "-"),
    "SCAFFOLD": ("SCAFFOLD from FedCOF's head", figures.GREEN, "-"),
    "FedAdam": ("FedAdam from FedCOF's head", figures.PURPLE, "-"),
    "FedAvg": ("FedAvg from FedCOF's head", figures.SKY, "-"),
    "pooled": ("all data in one place", figures.BLACK, "--"),
}


def picture(results: dict, path: Path) -> None:
    """One column for each federation with training: above accuracy by rounds, below by bytes."""
    results = {name: [run for run in runs if "SCAFFOLD" in run] for name, runs in results.items()}
    names = [name for name, runs in results.items() if runs]

    def draw(width: float) -> Figure:
        wide = width == figures.PAGE
        figure = figures.new_figure(width, 4.6 if wide else 1.9 * len(names) + 1.2)
        # On a narrow page each federation is a row: its axes by rounds, then by bytes.
        grid = (
            figure.subplots(2, len(names), sharey="col")
            if wide
            else figure.subplots(len(names), 2, sharey="row").T
        )
        for column, name in enumerate(names):
            for way, (_, colour, line) in WAYS.items():
                runs = [run[way] for run in results[name]]
                rounds, size, accuracy = np.mean(runs, axis=0).T[:3]
                for row, place in enumerate((rounds, size)):
                    if way == "pooled":
                        grid[row, column].axhline(accuracy[0], color=colour, linestyle=line, linewidth=0.8)
                    else:
                        grid[row, column].plot(place, accuracy, color=colour, linestyle=line)
            grid[0, column].set_title(name.split(",")[0])
            grid[0, column].set_xlabel("rounds after the first")
            grid[1, column].set_xlabel("bytes, both ways")
            grid[1, column].set_xscale("log")
            for axes in grid[:, column]:
                axes.grid()
        for axes in grid[:, 0] if wide else grid[0]:
            axes.set_ylabel("test accuracy, %")
        lines = [Line2D([], [], color=c, linestyle=line, label=title) for title, c, line in WAYS.values()]
        seeds = {name.split(",")[0]: len(results[name]) for name in names}
        usual = max(seeds.values())
        fewer = "".join(f", {name} over {number}" for name, number in seeds.items() if number < usual)
        figures.set_title(figure, f"100 clients, α = 0.1; means over {usual} seeds{fewer}")
        figures.legend_below(figure, lines)
        return figure

    with figures.style():
        figures.save_for_pages(draw, path)


def main() -> None:
    """Draw what ``results.json`` holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of results.json")
    folder = parser.parse_args().folder
    picture(json.loads((folder / "results.json").read_text()), folder / "rounds.png")


if __name__ == "__main__":
    main()
