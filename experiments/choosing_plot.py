"""Accuracy against bytes of all methods on four federations, from what ``covfree compare`` kept.

Run ``python experiments/choosing_plot.py --out docs/figures/choosing.png`` for PNG, PDF and SVG. Labels are
those of the methods that no other beats at their bytes, and of four that serve as landmarks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from covfree.studies.plots import style as figures
from covfree.studies.plots.accuracy import FRONT, add_legend, draw_points, set_limits
from covfree.studies.plots.points import Point, pareto_front

HERE = Path(__file__).parent
PANELS = {
    "methods-digits": "Digits, 100 clients, α = 0.1",
    "methods-caltech101": "Caltech-101, 100 clients, α = 0.1",
    "methods-text": "CLINC150 (text), 100 clients, α = 0.1",
    "methods-speech": "Spoken digits, 6 speakers",
}
LANDMARKS = ("fedncm", "fed3r", "fedcof", "fedcof-student")


def points_of(file: Path) -> list[Point]:
    """The points of a results.json: bytes are those up and down, without the head."""
    return [
        Point(
            record["method"],
            record["method"],  # as the page's table names it; titles are too long for four panels
            record["bytes_up"] + record["bytes_down"],
            100 * record["accuracy_mean"],
            100 * record["accuracy_sd"],
        )
        for record in json.loads(file.read_text())["results"]
    ]


def apart(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """The points to show, and those so far below the others that they would press these together."""
    accuracy = np.array([point.accuracy for point in points])
    low, high = np.percentile(accuracy, [25, 75])
    bound = low - max(10, 5 * (high - low))
    return [p for p in points if p.accuracy >= bound], [p for p in points if p.accuracy < bound]


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="one of the files to write")
    out: Path = parser.parse_args().out

    def draw(width: float) -> Figure:
        wide = width == figures.PAGE
        figure = figures.new_figure(width, 7.6 if wide else 14.0)
        every = np.ravel(figure.subplots(*((2, 2) if wide else (4, 1))))
        panels = []
        for axes, (folder, title) in zip(every, PANELS.items(), strict=True):
            points, lost = apart(points_of(HERE / folder / "results.json"))
            panels.append(points)
            set_limits(axes, points)
            figures.byte_axis(axes.xaxis, most=5)
            axes.set_title(title, loc="left")
            axes.set_ylabel("test accuracy, %")
            label = "bytes up and down, all clients together"
            if lost:
                below = ", ".join(f"{point.method} {point.accuracy:.0f} %" for point in lost)
                label += "\n" + figures.wrapped(f"below the picture: {below}", 210)
            axes.set_xlabel(label)
        figures.set_title(figure, f"Bars: one standard deviation over 5 seeds; {FRONT}")
        add_legend(figure, [point for points in panels for point in points])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, points in zip(every, panels, strict=True):
            front = pareto_front(points)
            labelled = [i for i, point in enumerate(points) if i in front or point.method in LANDMARKS]
            draw_points(figure, axes, points, labelled)
        return figure

    with figures.style():
        figures.save_for_pages(draw, out)


if __name__ == "__main__":
    main()
