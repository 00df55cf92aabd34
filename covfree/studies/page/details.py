"""The page's details on a method: accuracy by class and by client, and the classes that it confuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from covfree.data.partitions import PartitionStatistics
from covfree.studies.predictions import (
    Predictions,
    class_accuracy,
    confusion_counts,
    expected_client_accuracy,
    measured_client_accuracy,
)
from covfree.studies.table import Table, TableCell

# Number of classes that are shown one by one; if there are more, the worst are shown.
_SHOWN = 30
_PAIRS = 20
# Widths of a histogram's bars in percent, and the largest number of bars.
_WIDTHS, _BARS = (1, 2, 5, 10), 20
_NOBODY = "none"


def detail(
    title: str,
    predictions: Mapping[int, Predictions],
    partitions: Mapping[int, PartitionStatistics],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return a method's section of the page: accuracy by class and by client, and which classes it confuses.

    ``predictions`` and ``partitions`` are given by seed; ``names`` are the names of the classes.
    """
    counts = confusion_counts(predictions.values(), len(names))
    accuracy = class_accuracy(counts)
    confused = _confused(counts, names)
    worst = [int(c) for c in np.argsort(accuracy, kind="stable") if np.isfinite(accuracy[c])]
    measured = any(each.clients for each in predictions.values())
    by_client = (
        measured_client_accuracy(predictions.values()) if measured else _expected(predictions, partitions)
    )
    together = "" if measured or len(predictions) == 1 else f", {len(predictions)} seeds together"
    words = []
    if len(worst):
        words.append(f"worst class {names[worst[0]]}: {100 * accuracy[worst[0]]:.1f} %")
    if confused:
        words.append(f"most often {confused[0]['label']} is taken for {confused[0]['predicted']}")
    few = len(names) <= _SHOWN
    absent = len(names) - len(worst)
    left_out = [] if len(worst) <= _SHOWN else [f"the worst {_SHOWN} of {len(worst):,} classes"]
    left_out += [f"{absent:,} without test examples"] if absent else []
    return {
        "title": title,
        "text": "; ".join(words),
        "classes": [
            _bar(names[c], float(accuracy[c]), f"{100 * accuracy[c]:.1f} % of {counts[c].sum():,}")
            for c in worst[:_SHOWN]
        ],
        "classes_text": "; ".join(left_out),
        "spread": histogram(accuracy, "classes") if len(worst) > _SHOWN else None,
        "clients": histogram(by_client, f"clients{together}"),
        "clients_title": (
            "on each client's own test examples"
            if measured
            else "expected: each client's mean of the classes' accuracies, by its share of training examples"
        ),
        "matrix": _matrix(counts, names) if few else None,
        "confused": [] if few else confused[:_PAIRS],
    }


def class_by_class(
    titles: Sequence[str], predictions: Sequence[Mapping[int, Predictions]], names: Sequence[str]
) -> Table | None:
    """Return a table of the accuracy by class and method; classes on which methods differ most come first.

    The table has 30 classes at most. For fewer than two methods, return None.

    Args:
        titles: the methods' titles.
        predictions: for each method, its `Predictions` by seed, which are added up.
        names: the classes' names.
    """
    if len(titles) < 2:
        return None
    counts = [confusion_counts(each.values(), len(names)) for each in predictions]
    accuracy = 100 * np.stack([class_accuracy(each) for each in counts])
    apart = np.ptp(accuracy, axis=0)
    shown = [int(c) for c in np.argsort(-apart, kind="stable") if np.isfinite(apart[c])][:_SHOWN]
    lines = []
    for c in shown:
        shares = [TableCell(f"{share:.1f}", float(share)) for share in accuracy[:, c]]
        lines.append((TableCell(names[c]), *shares, TableCell(f"{apart[c]:.1f}", float(apart[c]))))
    top = accuracy[:, shown].round(1)
    best = frozenset((int(row), int(i) + 1) for i, row in np.argwhere(top == top.max(0)))
    return Table(("class", *titles, "range"), tuple(lines), best, sorted_by=len(titles) + 1)


def histogram(shares: Float[np.ndarray, " values"], what: str) -> dict[str, Any] | None:
    """Return bars that count the finite shares in bins of 1, 2, 5 or 10 %, and a text that sums them up.

    ``what`` names whose shares they are. Without a finite share, return None.

    >>> found = histogram(np.array([0.905, 0.925, 0.93, 1.0, np.nan]), "clients")
    >>> [(bar['name'], bar['text']) for bar in found['bars'] if bar['text']]
    [('90–91 %', '1'), ('92–93 %', '1'), ('93–94 %', '1'), ('99–100 %', '1')]
    >>> found['text']
    '4 clients: median 92.8 %, 10th percentile 91.1 %, worst 90.5 %'
    """
    values = 100 * shares[np.isfinite(shares)]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    width = next((w for w in _WIDTHS if (high - w * (low // w)) / w <= _BARS), _WIDTHS[-1])
    first = min(width * int(low // width), 100 - width)
    last = max(width * int(np.ceil(high / width)), first + width)
    edges = np.arange(first, last + 1, width)
    # Round, as 100 · 0.93 may come out just below the edge at 93.
    heights, _ = np.histogram(values.round(9), edges)
    bars = [
        _bar(f"{left}–{left + width} %", height / heights.max(), str(height) if height else "")
        for left, height in zip(edges.tolist(), heights.tolist(), strict=False)
    ]
    middle, tenth = np.median(values), np.percentile(values, 10)
    plain = f"{len(values):,} {what}: median {middle:.1f} %, 10th percentile {tenth:.1f} %, worst {low:.1f} %"
    return {"bars": bars, "text": plain}


def _bar(name: str, length: float, text: str) -> dict[str, Any]:
    """Make a bar with its name, its length in [0, 1] and the text beside it."""
    return {"name": name, "length": length, "text": text}


def _expected(
    by_seed: Mapping[int, Predictions], partitions: Mapping[int, PartitionStatistics]
) -> np.ndarray:
    """Return `expected_client_accuracy` of each seed's run, in one array [runs · clients]."""
    found = []
    for seed, predictions in by_seed.items():
        accuracy = class_accuracy(confusion_counts([predictions], partitions[seed].num_classes))
        found.append(expected_client_accuracy(accuracy, partitions[seed]))
    return np.concatenate(found)


def _confused(counts: Integer[np.ndarray, "classes predicted"], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return up to `_PAIRS` dicts, each on a class and a wrong prediction for it, the most frequent first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    labels, predicted = wrong.nonzero()
    order = np.argsort(-wrong[labels, predicted], kind="stable")[:_PAIRS]
    columns, every = [*names, _NOBODY], counts.sum(1)
    pairs: list[tuple[int, int]] = list(zip(labels[order].tolist(), predicted[order].tolist(), strict=True))
    return [
        {
            "label": names[a],
            "predicted": columns[b],
            "number": int(wrong[a, b]),
            "share": f"{100 * wrong[a, b] / every[a]:.1f} %",
        }
        for a, b in pairs
    ]


def _matrix(counts: Integer[np.ndarray, "classes predicted"], names: Sequence[str]) -> dict[str, Any]:
    """Return the confusion matrix as a dict for the page's template: names, cells by line, and layout.

    ``counts`` are by class (lines) and prediction (columns). Its last column counts examples without a
    prediction; it is left out if all are 0.
    """
    some = counts[:, -1].any()
    shown = counts if some else counts[:, :-1]
    every = np.maximum(counts.sum(1, keepdims=True), 1)
    columns = [*names, *([_NOBODY] if some else [])]
    lines = [
        [{"text": f"{count:,}" if count else "", "share": share} for count, share in zip(*both, strict=True)]
        for both in zip(shown.tolist(), (shown / every).tolist(), strict=True)
    ]
    # Many columns need more than half the page's width; long column names run upwards.
    broad, long = len(columns) > 11, any(len(name) > 4 for name in columns)
    return {"names": names, "columns": columns, "lines": lines, "broad": broad, "has_long_names": long}
