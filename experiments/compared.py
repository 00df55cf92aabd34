"""Methods beside each other on federations that are given: accuracies by seed, kept in a file, in a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from data_sets import Data

import covfree

METHODS = {
    "FedNCM": covfree.fedncm(),
    "Fed3R": covfree.fed3r(),
    "FedCOF": covfree.fedcof(),
    "components": covfree.fedcof_components(),
    "8 directions": covfree.fedcof_residuals(8),
    "+1 round": covfree.refined(covfree.fedcof(), 1),
    "+3 rounds": covfree.refined(covfree.fedcof(), 3),
    "exact": covfree.fedcof_oracle(),
    "ensemble": covfree.ensemble(),
}
# By federation, of each seed the accuracy in % of each method.
Results: TypeAlias = dict[str, list[dict[str, float]]]


def accuracies(
    data: Data, clients: np.ndarray, seed: int, known: dict[str, float] | None = None
) -> dict[str, float]:
    """Test accuracy of each method in %; of those that are known already, what is known."""
    found = dict(known or {})
    for name, method in METHODS.items():
        if name in found:
            continue
        head: Any = covfree.fit(method, data.features, data.labels, clients, key=jax.random.key(seed))
        found[name] = 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))
    return found


def compared(
    federations: Iterable[tuple[str, Callable[[int], tuple[Data, np.ndarray]]]], seeds: int, file: Path
) -> Results:
    """Accuracies on federations by name, each made from a seed; goes on where it was stopped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    for name, make in federations:
        runs = results.setdefault(name, [])
        for seed in range(seeds):
            known = runs[seed] if seed < len(runs) else {}
            if known.keys() >= METHODS.keys():
                continue
            runs[seed : seed + 1] = [accuracies(*make(seed), seed, known)]
            print(f"{name}, seed {seed}: {runs[seed]}", file=sys.stderr, flush=True)
            file.write_text(json.dumps(results) + "\n")
    return results


def row(name: str, runs: list[dict[str, float]]) -> str:
    """Means and standard deviations over runs, in Markdown."""
    cells = [[run[method] for run in runs] for method in METHODS]
    return f"| {name} | {' | '.join(f'{np.mean(cell):.1f} ± {np.std(cell):.1f}' for cell in cells)} |"


def head_of_table(first: str) -> str:
    """The lines above the rows."""
    return f"| {first} | {' | '.join(METHODS)} |\n{'|---' * (len(METHODS) + 1)}|"
