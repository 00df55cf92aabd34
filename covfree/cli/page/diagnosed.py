"""The page of ``covfree diagnose``."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from covfree.cli import report
from covfree.cli.page.content import Grid, Page, Place
from covfree.cli.page.partitions import partition_of, partition_picture
from covfree.cli.page.render import command_line
from covfree.cli.source import class_name, law_of
from covfree.cli.tables import Cell
from covfree.data import FeatureSet
from covfree.engine.diagnosis import Diagnosis
from covfree.sweep import Federation

_NOTES = (
    "Errors are what is expected of Gaussian features, relative to the covariance in the Frobenius norm: "
    "√((1 + r)/f) with f degrees of freedom and the effective rank r = (tr Σ)²/tr Σ². A class with K_c means "
    "has K_c − 1 of them; the common covariance is what heads use.",
    "The test of differences asks whether clients’ means of a class differ by more than that covariance "
    "explains; what they add is an estimate, which may be below 0 by chance.",
)


def diagnosed_page(
    found: Diagnosis,
    method: str,
    data: FeatureSet,
    federation: Federation,
    settings: Mapping[str, Any],
    file: str,
) -> Page:
    """Put together what a diagnosis says.

    Args:
        found: the diagnosis.
        method: title of the method whose messages it is of.
        data: the data.
        federation: how its examples are spread.
        settings: by the names of options; ``seed`` among them.
        file: name of the page's file.
    """
    seed, law = int(settings["seed"]), law_of(data, federation)
    partition = partition_of(data, federation, seed)
    clients = f"{partition.num_clients:,} clients"
    spread = f"{clients}, {law}" if data.clients is None else f"{clients} of its own"
    title = f"What the messages of {method} tell: {data.name}, {spread}, seed {seed}"
    place = Place(
        title=title,
        headline=_verdict(found),
        grid=_classes(found, data),
        pictures=[partition_picture(partition, data, federation, seed, "p")],
        facts=_facts(found),
    )
    command = command_line("diagnose", {**settings, "report": file})
    return Page(title, [place], settings, report.environment(), command, _NOTES)


def _verdict(found: Diagnosis) -> list[str]:
    """What the terminal says, with what it comes to first: how good the covariance is."""
    of_classes, of_covariance, *others = str(found).splitlines()
    verdict, stop, advice = of_covariance.partition(". ")
    return [f"{verdict}{stop}", advice, of_classes, *others]


def _facts(found: Diagnosis) -> dict[str, str]:
    """The figures behind the verdict, of all classes together."""
    shift = found.shift
    facts = {
        "degrees of freedom of the common covariance": f"{float(found.degrees):.1f}",
        "its effective rank": f"{float(found.effective_rank):.1f}",
        "its expected relative error": _percent(float(found.error)),
        "its condition number, as estimated": _number(float(found.condition_before)),
    }
    if found.system is not None:
        after = _number(float(found.system.condition))
        facts["condition number of the system that is solved, after shrinkage"] = after
    facts["distance of the features from zero, in spreads within classes"] = _number(float(found.offset))
    if not bool(shift.informative):
        return {**facts, "test whether clients differ": "not possible with these means"}
    z, p = _number(float(shift.statistic)), f"{float(shift.p_value):.2g}"
    return {
        **facts,
        "test whether clients differ": f"z = {z}, p = {p}",
        "what differences of clients add to the variances": _percent(float(shift.relative_shift)),
    }


def _classes(found: Diagnosis, data: FeatureSet) -> Grid:
    """By class, the largest expected error first."""
    columns = ("class", "expected error, %", "means, K_c", "degrees of freedom", "examples, N_c")
    columns_of = (found.class_error, found.num_rows, found.class_degrees, found.count)
    figures = [np.asarray(each, np.float64).tolist() for each in columns_of]
    lines = []
    for label in np.argsort(-np.asarray(found.class_error), kind="stable").tolist():
        error, *counts = (each[label] for each in figures)
        shown = Cell(_percent(error).removesuffix(" %"), error)
        lines.append((Cell(class_name(data, label)), shown, *(Cell(f"{each:,.0f}", each) for each in counts)))
    return Grid(columns, tuple(lines), sorted_by=1)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-", "−") if isfinite(share) else _number(share)


def _number(value: float) -> str:
    """Three digits, or the number as it is if it is none."""
    if not isfinite(value):
        return "unknown" if value != value else "infinite"
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")
