"""Refinement by two rules for γ: one for the whole exact covariance, one for what is known of it so far.

Run ``python experiments/refinement_shrinkage.py [--features FILE] [--speech FOLDER] [--texts FOLDER]``. With
t the mean variance and ν = N − C, the rules are t·min(1, d/ν), covfree's, and t·√(min(1, r/ν)·min(1, d/ν)),
chosen anew in each round for the r directions that are known by then. NumPy in float64, by the formulas of
docs/refinement.md; the start has t·min(1, d/ν) of FedCOF's estimate. "4 classes" are unions of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from data_sets import Data, datasets, options, shifted
from residual_directions import merged, scatters

from covfree.data.partitions import inner_dirichlet

ROUNDS = 3
SEEDS = {"digits": 3}  # elsewhere one


def federations(data: Data, seed: int) -> Iterator[tuple[str, Data, np.ndarray]]:
    """Titles, examples and clients."""
    if data.clients is not None:
        yield "its own clients", data, data.clients
    for number, alpha, moved in ((10, 0.1, 0), (100, 0.1, 0), (10, 0.5, 1), (100, 0.5, 1), (100, 0.1, 1)):
        clients = inner_dirichlet(data.labels, number, alpha, seed=seed)
        title = f"{number} clients, α = {alpha}{', shift' * moved}"
        yield title, shifted(data, clients, seed) if moved else data, clients
    four = merged(data, 4)
    for number in (30, 100):
        clients = inner_dirichlet(four.labels, number, 0.1, seed=seed)
        yield f"4 classes, {number} clients, α = 0.1", four, clients


def loaded(covariance: np.ndarray, degrees: float) -> float:
    """Compute t·min(1, d/ν)."""
    dim = len(covariance)
    return float(np.trace(covariance)) / dim * min(1.0, dim / max(1.0, degrees))


def accuracies(data: Data, clients: np.ndarray) -> list[list[float]]:
    """Of each rule, from the start on, in %."""
    found, mean, count = scatters(data, clients, 1)
    start, exact, dim = found["means"], found["exact"], data.features.shape[1]
    present = (count > 0).sum()
    pairs = len(np.unique(np.stack([clients, data.labels]), axis=1).T)
    inverse = np.linalg.inv(start + loaded(start, pairs - present) * np.eye(dim))
    degrees = count.sum() - present
    whole = loaded(exact, degrees)
    grand = count @ mean / count.sum()
    right = (mean - grand).T * (count > 0)

    def accuracy(weight: np.ndarray) -> float:
        scores = data.test_features @ weight - 0.5 * ((mean + grand) * weight.T).sum(1)
        scores += np.where(count > 0, np.log(np.maximum(count, 1)), -np.inf)
        return 100 * float((scores.argmax(1) == data.test_labels).mean())

    def known(directions: int) -> float:
        return whole * np.sqrt(min(1, directions / degrees) / min(1, dim / degrees))

    return [
        [accuracy(weight) for weight in refined(exact, inverse, right, rule)]
        for rule in (lambda directions: whole, known)
    ]


def refined(
    exact: np.ndarray, inverse: np.ndarray, right: np.ndarray, rule: Callable[[int], float]
) -> Iterator[np.ndarray]:
    """Weights of each round, with γ chosen anew for the directions that are known."""
    step: Any = inverse @ right
    residual = right
    yield step
    span, most = right[:, :0], right.shape[1] - 1
    for _ in range(ROUNDS):
        turn = np.linalg.svd(step, full_matrices=False)[2][: min(most, len(exact) - span.shape[1])].T
        step, residual = step @ turn, residual @ turn
        span = np.linalg.qr(np.hstack([span, step]))[0]
        images = exact @ span + rule(span.shape[1]) * span
        gram = span.T @ images
        best = span @ np.linalg.solve(gram, span.T @ right)
        length = np.trace(step.T @ residual) / np.trace(step.T @ images @ (span.T @ step))
        step, residual = inverse @ (right - images @ (span.T @ best)), right - images @ (span.T @ best)
        step = step - span @ np.linalg.solve(gram, images.T @ step)
        yield best + max(length, 0) * step


def main() -> None:
    """Print the table, and what the second rule gains in all."""
    arguments = options(__doc__).parse_args()
    print(
        "| rounds 1 / 2 / 3 | FedCOF | $t \\min(1, d/\\nu)$ | $t \\sqrt{\\min(1, r/\\nu) \\min(1, d/\\nu)}$ |"
    )
    print("|---" * 4 + "|")
    gains = []
    for name, load in datasets(arguments).items():
        found: dict[str, list[list[list[float]]]] = {}
        for seed in range(SEEDS.get(name, 1)):
            for title, data, clients in federations(load(seed), seed):
                if arguments.only not in f"{name}, {title}":
                    continue
                found.setdefault(title, []).append(accuracies(data, clients))
        for title, runs in found.items():
            first, second = np.mean(runs, 0)
            gains.append(second[1:] - first[1:])
            cells = (" / ".join(f"{value:.1f}" for value in rule[1:]) for rule in (first, second))
            print(f"| {name}, {title} | {first[0]:.1f} | {' | '.join(cells)} |", flush=True)
    worst, best = np.min(gains, 0), np.max(gains, 0)
    for each, mean in enumerate(np.mean(gains, 0)):
        print(f"round {each + 1}: the second gains {mean:+.2f}, from {worst[each]:+.1f} to {best[each]:+.1f}")


if __name__ == "__main__":
    main()
