"""Accuracy against bytes of all methods on four federations, from what ``covfree compare`` kept.

Run ``python experiments/choosing_plot.py --out docs/figures/choosing.png``, which writes PNG, PDF and SVG. Labels
are those of the methods that no other beats at their bytes, and of three that serve as landmarks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from covfree import figures
from covfree.cli.accuracy_plot import FRONT, add_legend, draw_points, set_limits
from covfree.cli.points import Point, pareto_front

HERE = Path(__file__).parent
PANELS = {
    "methods-digits": "Digits, 100 clients, α = 0.1",
    "methods-caltech101": "Caltech-101, 100 clients, α = 0.1",
    "methods-text": "CLINC150 (text), 100 clients, α = 0.1",
    "methods-speech": "Spoken digits, 6 speakers",
}
LANDMARKS = ("fedncm", "fed3r", "fedcof")


def points_of(file: Path) -> list[Point]:
    """The points of a results.json: bytes are those up and down, without the head."""
    return [
        Point(
            record["method"],
            record["title"],
            record["bytes_up"] + record["bytes_down"],
            100 * record["accuracy_mean"],
            100 * record["accuracy_sd"],
        )
        for record in json.loads(file.read_text())["results"]
    ]


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="one of the files to write")
    out: Path = parser.parse_args().out
    with figures.style():
        figure = figures.new_figure(figures.PAGE, 7.6)
        panels = [points_of(HERE / folder / "results.json") for folder in PANELS]
        every = figure.subplots(2, 2)
        for axes, title, points in zip(every.flat, PANELS.values(), panels, strict=True):
            set_limits(axes, points)
            axes.set_title(title, loc="left")
        for axes in every[:, 0]:
            axes.set_ylabel("test accuracy, %")
        for axes in every[1]:
            axes.set_xlabel("bytes up and down, all clients together")
        note = f"bars: one standard deviation over 5 seeds; {FRONT}"
        figure.supxlabel(figures.wrapped(note, 72 * figures.PAGE - 20), fontsize=figures.TYPE)
        add_legend(figure, [point for points in panels for point in points])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, points in zip(every.flat, panels, strict=True):
            front = pareto_front(points)
            labelled = [i for i, point in enumerate(points) if i in front or point.method in LANDMARKS]
            draw_points(figure, axes, points, labelled)
        figures.save_all(figure, out)


if __name__ == "__main__":
    main()
