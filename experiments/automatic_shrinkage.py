"""The automatic shrinkage beside the best fixed γ in hindsight, on several federations.

Run ``python experiments/automatic_shrinkage.py [--features FILE.npz ...] [--seeds 5] [--out FILE.json]``.
Accuracies are of the LDA head, in percent, means over the seeds; "loss" is what the default gives away to the
fixed γ of {0.001, 0.003, …, 3} that is best on the test set, which nobody could have known.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine

import covfree
from covfree.cli.compare import environment
from covfree.data import FeatureSet, load_digits, load_npz
from covfree.federation import iid, inner_dirichlet

FIXED = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
RULES = {
    "auto": "auto",
    "0.2 tr/d": covfree.relative(0.2),
    "OAS": covfree.oas(),
    "Ledoit-Wolf": covfree.ledoit_wolf(),
}


def small_set(name: str, loader: Callable, seed: int) -> FeatureSet:
    """A data set of scikit-learn, standardised by the training part; a third of it is the test part."""
    features, labels = loader(return_X_y=True)
    is_test = np.random.default_rng(seed).permutation(len(labels)) < len(labels) // 3
    mean, scale = features[~is_test].mean(0), features[~is_test].std(0)
    features = ((features - mean) / scale).astype(np.float32)
    parts = (features[~is_test], labels[~is_test], features[is_test], labels[is_test])
    return FeatureSet(name, *parts, num_classes=int(labels.max()) + 1)


def federations(files: list[Path]) -> Iterator[tuple[str, Callable[[int], FeatureSet], int, float | None]]:
    """Name, data for a seed, clients, and α (None: iid)."""
    for clients, alpha in ((100, 0.1), (30, 0.5), (10, None)):
        yield "digits", lambda seed: load_digits(seed=seed), clients, alpha
    for clients, alpha in ((30, 0.1), (10, None)):
        yield "breast cancer", lambda seed: small_set("bc", load_breast_cancer, seed), clients, alpha
        yield "wine", lambda seed: small_set("wine", load_wine, seed), clients, alpha
    for file in files:
        data = load_npz(file)
        for clients, alpha in ((100, 0.1), (100, None), (30, 0.5), (300, 0.1)):
            yield file.stem, lambda seed, data=data: data, clients, alpha


def accuracies(data: FeatureSet, clients: np.ndarray) -> dict[str, float]:
    """Accuracy in percent by rule, and by fixed γ."""
    rows = covfree.summarise(covfree.fedcof(), data.train_features, data.train_labels, clients)
    found = {}
    for name, shrinkage in (RULES | {str(gamma): gamma for gamma in FIXED}).items():
        head = covfree.solve_rows(covfree.fedcof(shrinkage=shrinkage), rows, num_classes=data.num_classes)
        found[name] = 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))
    return found


def main() -> None:
    """Print a line a federation, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, nargs="*", default=[], help=".npz files as covfree compare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    losses = " | ".join(f"loss, {rule}" for rule in RULES)
    print(f"| federation | clients | α | best fixed γ | auto | {losses} |")
    print("|---" * (5 + len(RULES)) + "|")
    records = []
    for name, data_for, clients, alpha in federations(arguments.features):
        runs = []
        for seed in range(arguments.seeds):
            data = data_for(seed)
            labels = data.train_labels
            owners = (
                iid(labels, clients, seed=seed)
                if alpha is None
                else inner_dirichlet(labels, clients, alpha, seed=seed)
            )
            runs.append(accuracies(data, owners))
        mean = {rule: float(np.mean([run[rule] for run in runs])) for rule in runs[0]}
        best = max(FIXED, key=lambda gamma: mean[str(gamma)])
        loss = {rule: mean[str(best)] - mean[rule] for rule in RULES}
        records.append(
            {"federation": name, "clients": clients, "alpha": alpha, "best": best, "accuracy": mean}
        )
        print(
            f"| {name} | {clients} | {'iid' if alpha is None else alpha} | {mean[str(best)]:.2f} at {best:g} "
            f"| {mean['auto']:.2f} |",
            *(f"{loss[rule]:.2f} |" for rule in RULES),
            flush=True,
        )
    if arguments.out is not None:
        content = {"seeds": arguments.seeds, "environment": environment(), "results": records}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
