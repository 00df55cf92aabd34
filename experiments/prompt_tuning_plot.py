"""The table and the picture of ``prompt_tuning.py``: accuracy by bytes, and how large PFPT's pool is."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from covfree.studies.plots import style as figures

# By method: by seed: a record for each round, of which some have an accuracy.
Runs: TypeAlias = dict[str, dict[str, list[dict[str, Any]]]]

COLOURS = {
    "FedCOF": figures.VERMILLION,
    "FedAvg, head alone": figures.GREY,
    "FedAvg-PT": figures.BLUE,
    "FedProx-PT": figures.SKY,
    "PFPT": figures.GREEN,
    "FedAvg-PT from FedCOF": figures.ORANGE,
}


def means(seeds: dict[str, list[dict[str, Any]]], name: str) -> np.ndarray:
    """Of the seeds, where there is such a number."""
    return np.mean([[r[name] for r in records if name in r] for records in seeds.values()], axis=0)


def table(runs: Runs) -> str:
    """In Markdown: accuracy at the end and bytes both ways (FedCOF: up), mean ± deviation over the seeds."""
    lines = ["| | seeds | accuracy, % | MB | prompts |", "|---|---|---|---|---|"]
    for name, seeds in runs.items():
        if not seeds:
            continue
        last = np.array([[records[-1]["accuracy"], records[-1]["bytes"] / 1e6] for records in seeds.values()])
        spread = f" ± {last[:, 0].std(ddof=1):.1f}" if len(seeds) > 1 else ""
        pool = [r["prompts"] for records in seeds.values() for r in records if "prompts" in r]
        told = f"{min(pool)} to {max(pool)}" if pool else "–"
        lines.append(
            f"| {name} | {len(seeds)} | {last[:, 0].mean():.1f}{spread} | {last[:, 1].mean():.3g} | {told} |"
        )
    return "\n".join(lines)


def plot(runs: Runs, width: float) -> Any:
    """Draw means over the seeds."""
    from matplotlib.lines import Line2D

    with figures.style():
        figure = figures.new_figure(width, 2.9 if width == figures.PAGE else 3.3)
        accuracy, pool = figure.subplots(1, 2, width_ratios=(3, 2))
        handles = []
        for name, colour in COLOURS.items():
            if not runs.get(name):
                continue
            mark = {"FedCOF": "*", "PFPT": "o"}.get(name, "")
            first = next(iter(runs[name].values()))
            measured = [place for place, record in enumerate(first) if "accuracy" in record]
            x, y = means(runs[name], "bytes")[measured], means(runs[name], "accuracy")
            # FedProx-PT's line lies on that of FedAvg-PT, which shows in its gaps.
            dashes = "" if len(x) == 1 else {"FedProx-PT": (0, (3, 3))}.get(name, "-")
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": mark or None}
            style["markersize"] = 9 if mark == "*" else 3
            accuracy.plot(x, y, zorder=3 if mark else 2, **style)
            handles.append(Line2D([], [], label=name, **style))
        accuracy.set_xscale("log")
        figures.byte_axis(accuracy.xaxis)
        accuracy.set_xlabel("bytes both ways, FedCOF's up")
        accuracy.set_ylabel("test accuracy, %")
        for records in runs.get("PFPT", {}).values():
            sizes = [record["prompts"] for record in records]
            pool.plot(np.arange(1, 1 + len(sizes)), sizes, color=COLOURS["PFPT"], linewidth=0.9)
        pool.margins(y=0.08)
        pool.set_ylim(bottom=0)
        pool.set_xlabel("round")
        pool.set_ylabel("prompts in PFPT's pool, each seed")
        for axes in (accuracy, pool):
            axes.grid()
        figures.legend_below(figure, handles)
        return figure
