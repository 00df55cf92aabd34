"""Student heads beside LDA at the same bytes: accuracy and calibration by the prior's weight.

Run ``python experiments/student.py [--features FILE] [--speech FOLDER] [--texts FOLDER] --out FILE.json``.
Federations are the digits, and the files given, over 100 and 30 clients (Dirichlet 0.1), with and without a
shift of each client's features; of speech also the speakers. It writes the file as it goes, goes on where it
was stopped, and prints a table: LDA's accuracy, then what each head gains, with the least gain of a seed.
``--ranks`` in place of ``--out`` prints what few directions of each class lose, over 100 clients;
``--refined`` what one and three rounds of refinement gain, over 30 clients.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from data_sets import Data, Federation, datasets, kept_runs, markdown, options

import covfree
from covfree.heads import metrics

METHODS = {
    "LDA": covfree.fedcof(),
    "qda-means": covfree.qda(covariance="means"),
    "ρ = 0.3": covfree.fedcof(head=covfree.student(0.3)),
    "ρ = 0.5": covfree.fedcof(head=covfree.student(0.5)),
    "ρ = 1": covfree.fedcof(head="student"),
    "ρ = 0.5, 16 directions a class": covfree.fedcof(head=covfree.student(0.5, rank=16)),
}
RANKS = 4, 8, 16, 32
FEDERATIONS = [Federation(number, 0.1, moved) for number in (100, 30) for moved in (False, True)]
# Accuracy in %, negative log-likelihood, expected calibration error.
Figures: TypeAlias = tuple[float, float, float]


def measured(data: Data, clients: np.ndarray, seed: int) -> dict[str, Figures]:
    """Of each method."""
    found = {}
    for name, method in METHODS.items():
        head: Any = covfree.fit(method, data.features, data.labels, clients, key=jax.random.key(0))
        scores, labels = head(data.test_features), data.test_labels
        values = metrics.accuracy(scores, labels), metrics.nll(scores, labels)
        found[name] = (
            100 * float(values[0]),
            float(values[1]),
            float(metrics.calibration_error(scores, labels)),
        )
    return found


def print_ranks(arguments: argparse.Namespace) -> None:
    """Accuracy in % with all rows of a class and with r directions of it, a row for each data set."""
    print(f"| | all rows | {' | '.join(f'r = {rank}' for rank in RANKS)} |")
    print("|---" * (2 + len(RANKS)) + "|")
    for name, make in datasets(arguments).items():
        runs = []
        for seed in range(arguments.seeds):
            data, clients = FEDERATIONS[0].spread(make(seed), seed)
            heads = [
                covfree.fit(
                    covfree.fedcof(head=covfree.student(rank=rank)), data.features, data.labels, clients
                )
                for rank in (None, *RANKS)
            ]
            runs.append([covfree.evaluate(head, data.test_features, data.test_labels) for head in heads])
        print(f"| {name} | {' | '.join(f'{100 * mean:.1f}' for mean in np.mean(runs, 0))} |", flush=True)


def print_refined(arguments: argparse.Namespace) -> None:
    """Accuracy in % of the linear head and of the Student head of each covariance, a row a federation."""
    start = covfree.fedcof(head="student")
    methods = {"FedCOF": start} | {f"{n} round{'s' * (n > 1)}": covfree.refined(start, n) for n in (1, 3)}
    print(f"| LDA, Student head | {' | '.join(methods)} |")
    print("|---" * (1 + len(methods)) + "|")
    federation = Federation(30)
    for name, make in datasets(arguments).items():
        runs = []
        for seed in range(arguments.seeds):
            data, clients = federation.spread(make(seed), seed)
            heads = [covfree.fit(method, data.features, data.labels, clients) for method in methods.values()]
            pairs: list[Any] = [own for head in heads for own in (head.linear, head)]
            runs.append([covfree.evaluate(own, data.test_features, data.test_labels) for own in pairs])
        means = 100 * np.mean(runs, 0).reshape(-1, 2)
        cells = (f"{linear:.1f}, {student:.1f}" for linear, student in means)
        print(f"| {name}, {federation.title} | {' | '.join(cells)} |", flush=True)


def table(results: dict[str, list[dict[str, Figures]]]) -> str:
    """In Markdown."""
    rows = {}
    for name, runs in results.items():
        figures = {method: np.array([run[method] for run in runs]) for method in METHODS}
        cells = []
        for method, each in figures.items():
            gain = each[:, 0] - figures["LDA"][:, 0]
            first = (
                f"{each[:, 0].mean():.1f}" if method == "LDA" else f"{gain.mean():+.1f} ({gain.min():+.1f})"
            )
            cells.append(f"{first}, {each[:, 1].mean():.2f}, {each[:, 2].mean():.3f}")
        rows[name] = cells
    return markdown(list(METHODS), rows)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = options(__doc__, seeds=5)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, help="JSON file")
    target.add_argument("--ranks", action="store_true", help="print what few directions of each class lose")
    target.add_argument("--refined", action="store_true", help="print what refinement gains")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    if arguments.ranks or arguments.refined:
        (print_ranks if arguments.ranks else print_refined)(arguments)
        return
    print(table(kept_runs(arguments, FEDERATIONS, measured, arguments.out)))


if __name__ == "__main__":
    main()
