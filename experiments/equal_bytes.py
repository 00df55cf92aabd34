"""Subset means and variance components at equal bytes, with and without client shift.

Run ``python experiments/equal_bytes.py [--features FILE.npz ...] [--seeds 5] [--out FILE.json]``.
"error" is that of the within-class scatter, in the Frobenius norm, relative to the exact one
of all examples. With client shift, each client's features are moved by a vector of its own, of the given size
in units of the average standard deviation within classes; test examples are moved by those of clients drawn
at random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import covfree
from covfree.data import FeatureSet, load_digits, load_npz
from covfree.data.partitions import inner_dirichlet
from covfree.engine.diagnosis import estimating
from covfree.methods import Method
from covfree.studies.report import environment

CLIENTS, ALPHA = 30, 0.5
SUBSETS = (1, 2, 4, 8)
SHIFTS = (0.0, 0.5)


def shifted(data: FeatureSet, clients: np.ndarray, size: float, seed: int) -> FeatureSet:
    """The data with every client's features moved."""
    if size == 0:
        return data
    features = np.asarray(data.train_features, np.float32)
    rng = np.random.default_rng(seed)
    labels = data.train_labels
    spread = np.sqrt(np.mean([features[labels == c].var(0).mean() for c in range(data.num_classes)]))
    moves = size * spread * rng.normal(size=(CLIENTS, features.shape[1])).astype(np.float32)
    visitors = rng.integers(0, CLIENTS, len(data.test_labels))
    test = np.asarray(data.test_features, np.float32) + moves[visitors]
    return data._replace(train_features=features + moves[clients], test_features=test)


def one(
    method: Method, data: FeatureSet, clients: np.ndarray, exact: np.ndarray, seed: int
) -> dict[str, float]:
    """Vectors sent, relative error of the scatter, and accuracy in percent."""
    key = jax.random.key(seed)
    rows = covfree.summarise(method, data.train_features, data.train_labels, clients, key=key)
    _, within = estimating(method)
    factor = np.asarray(within.factor(rows, within.first(rows, data.num_classes)), np.float64)
    head = covfree.solve_rows(method, rows, num_classes=data.num_classes)
    return {
        "vectors": int((np.asarray(rows.count) > 0).sum()),
        "error": float(np.linalg.norm(factor.T @ factor - exact) / np.linalg.norm(exact)),
        "accuracy": 100 * float(covfree.evaluate(head, data.test_features, data.test_labels)),
    }


def compared(data: FeatureSet, shift: float, seed: int) -> dict[str, dict[str, float]]:
    """All methods on one federation."""
    clients = inner_dirichlet(data.train_labels, CLIENTS, ALPHA, seed=seed)
    data = shifted(data, clients, shift, seed)
    examples = covfree.Rows.from_examples(np.asarray(data.train_features, np.float32), data.train_labels)
    moments = covfree.first_moments(examples, data.num_classes)
    exact = np.asarray(covfree.within_scatter(examples, moments), np.float64)
    found = {}
    for subsets in SUBSETS:
        found[f"means, J = {subsets}"] = covfree.fedcof(num_subsets=subsets)
        if subsets > 1:
            found[f"components, J = {subsets}"] = covfree.fedcof_components(num_subsets=subsets)
    found["oracle"] = covfree.fedcof_oracle()
    return {name: one(method, data, clients, exact, seed) for name, method in found.items()}


def main() -> None:
    """Print a table a data set, and write all figures as JSON."""
    covfree.limit_lapack_threads()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, nargs="*", default=[], help=".npz files as covfree compare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    sets: list[tuple[str, Callable[[int], FeatureSet]]] = [("digits", lambda seed: load_digits(seed=seed))]
    for file in arguments.features:
        data = load_npz(file)
        sets.append((file.stem, lambda seed, data=data: data))
    records = []
    for name, data_for in sets:
        for shift in SHIFTS:
            runs = [compared(data_for(seed), shift, seed) for seed in range(arguments.seeds)]
            print(f"\n{name}, {CLIENTS} clients, α = {ALPHA}, client shift {shift}\n")
            print("| what clients send | vectors | error of the scatter | accuracy, % |\n|---|---|---|---|")
            for method in runs[0]:
                values = {figure: [run[method][figure] for run in runs] for figure in runs[0][method]}
                mean = {figure: float(np.mean(value)) for figure, value in values.items()}
                deviation = float(np.std(values["accuracy"], ddof=1)) if len(runs) > 1 else 0.0
                record = {"set": name, "shift": shift, "method": method, **mean}
                records.append({**record, "accuracy_sd": deviation})
                print(
                    f"| {method} | {mean['vectors']:.0f} | {mean['error']:.2f} "
                    f"| {mean['accuracy']:.2f} ± {deviation:.2f} |",
                    flush=True,
                )
    if arguments.out is not None:
        content = {"seeds": arguments.seeds, "environment": environment(), "results": records}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
