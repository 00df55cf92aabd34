"""The table and the picture of ``inversion.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from covfree.studies.plots import style as figures

# By number of images behind a feature: what came of each seed.
Kinds: TypeAlias = dict[int, list[dict[str, Any]]]


def picture(folder: Path, kinds: Kinds) -> None:
    """Each number of images in a row: an image, the images' mean, and what was made of their mean feature."""
    with figures.style():
        columns = min(3, min(len(found) for found in kinds.values()))
        figure = figures.new_figure(figures.PAGE, 0.2 + 0.95 * len(kinds))
        axes = figure.subplots(len(kinds), 3 * columns, squeeze=False)
        for row, (number, found) in enumerate(kinds.items()):
            for column, run in enumerate(found[:columns]):
                with np.load(folder / f"{number}-{run['seed']}.npz") as file:
                    parts = [file[name] for name in ("nearest", "mean", "made")]
                titles = ("nearest", "mean", "made")
                for place, (part, title) in enumerate(zip(parts, titles, strict=True)):
                    here = axes[row, 3 * column + place]
                    here.imshow(np.clip(part, 0, 1))
                    here.set_axis_off()
                    if row == 0:
                        here.set_title(title)
                axes[row, 3 * column + 2].text(
                    0.5, -0.04, f"{run['nearest']:.1f} dB", transform=axes[row, 3 * column + 2].transAxes,
                    ha="center", va="top",
                )  # fmt: skip
            title = "1 image" if number == 1 else f"mean of {number}"
            axes[row, 0].text(
                -0.06, 0.5, title, transform=axes[row, 0].transAxes, rotation=90, ha="right", va="center"
            )
        figures.save(figure, folder / "pictures.png")


def table(kinds: Kinds) -> str:
    """In Markdown, means over the seeds."""
    names = ("error", "nearest", "control", "mean")
    lines = [
        "| feature of | error of the feature | PSNR: nearest image | control | mean image | recognised |",
        "|---|---|---|---|---|---|",
    ]
    for number, found in kinds.items():
        mean = {name: np.mean([run[name] for run in found]) for name in names}
        title = "1 image" if number == 1 else f"mean of {number}"
        lines.append(
            f"| {title} | {mean['error']:.3f} | {mean['nearest']:.1f} | {mean['control']:.1f} | "
            f"{mean['mean']:.1f} | {sum(run['recognised'] for run in found)} of {len(found)} |"
        )
    return "\n".join(lines)
