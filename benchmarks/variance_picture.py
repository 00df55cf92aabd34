"""The picture of ``estimator_variance.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from variance_theory import CLASSES, Estimator, Kind, Setting

from covfree.studies.plots import style as figures


@figures.style()
def picture(
    panels: dict[str, list[dict[str, Any]]],
    estimators: Sequence[Estimator],
    numbers: dict[str, Any],
    of_numbers: Sequence[Estimator],
    width: float,
) -> Any:
    """Six panels: marks are measured, dashed lines are theory, dotted ones theory's squared bias.

    Args:
        panels: points of a variable, by its name.
        estimators: the curves.
        numbers: the point of which the last panel is made.
        of_numbers: the estimators that it has.
        width: in inches; a narrow picture has two panels in a line.
    """
    titles = {
        "clients": "clients K",
        "examples": "examples a client n",
        "dim": "dimension d",
        "alpha": "Dirichlet α of the classes",
        "shift": "client shift τ (std. dev.)",
    }
    colours = {
        "eq. 5": (figures.BLUE, figures.SKY),
        "pooled": (figures.PURPLE,),
        "components": (figures.VERMILLION, figures.ORANGE),
        "exact": (figures.BLACK,),
    }
    marks = {"eq. 5": "o", "pooled": "D", "components": "s", "exact": "*"}
    lines, columns = (2, 3) if width == figures.PAGE else (3, 2)
    figure = figures.new_figure(width, 2.8 * lines)
    axes = figure.subplots(lines, columns).ravel()
    used: dict[Kind, int] = {}
    for estimator in estimators:
        kind, name = estimator.kind, estimator.name
        colour = colours[kind][used.setdefault(kind, 0)]
        used[kind] += 1
        for axis, (variable, points) in zip(axes, panels.items(), strict=False):
            x = [point[variable] for point in points]
            of = [point["results"][name] for point in points]
            # Pooled lies on eq. 5 where classes are alike: a ring about its mark.
            style = {"ms": 7, "fillstyle": "none"} if kind == "pooled" else {"ms": 3.5}
            axis.plot(x, [r["measured"]["error"] for r in of], marks[kind], color=colour, label=name, **style)
            axis.plot(x, [r["theory"]["error"] for r in of], "--", color=colour, lw=1)
            if variable == "shift" and kind in ("eq. 5", "pooled"):
                axis.plot(x[1:], [r["theory"]["squared_bias"] for r in of[1:]], ":", color=colour, lw=1.4)
    for kind in ("eq. 5", "components", "exact"):
        own = [e for e in of_numbers if e.kind == kind]
        of = [numbers["results"][e.name] for e in own]
        x = [e.number for e in own] if kind != "exact" else [1, 8]
        of = of * 2 if kind == "exact" else of
        colour = colours[kind][0]
        axes[5].plot(x, [r["measured"]["error"] for r in of], marks[kind], color=colour, ms=3.5)
        axes[5].plot(x, [r["theory"]["error"] for r in of], "--", color=colour, lw=1)
    ticks = [*([point[name] for point in points] for name, points in panels.items()), [1, 2, 4, 8]]
    for axis, name, at in zip(axes, (*titles.values(), "subsets J"), ticks, strict=True):
        axis.set(xlabel=name, yscale="log")
        if at[0] > 0:
            axis.set_xscale("log")
        else:
            axis.set_xscale("symlog", linthresh=at[1], linscale=0.5)
            axis.set(xlim=(-at[1] / 4, at[-1] * 1.2), ylim=(1e-3, None))
        axis.set_xticks(at, [f"{x:g}" for x in at])
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.minorticks_off()
        axis.grid()
    for axis in axes[::columns]:
        axis.set_ylabel("mean squared error, over ‖T‖²")
    figures.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    default = Setting()
    figures.set_title(
        figure,
        "Covariance from class means: measured (marks), theory (dashed), its squared bias (dotted). "
        f"{CLASSES} classes; where not varied K = {default.clients}, n = {default.examples}, "
        f"d = {default.dim}, α = {default.alpha:g}, τ = {default.shift:g}",
    )
    return figure
