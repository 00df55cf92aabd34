"""Residual directions against what they leave out: the trace of the rest, and the degrees of freedom.

Run ``python experiments/residual_directions.py [--features FILE.npz] [--speech FOLDER] [--texts FOLDER]``.
Federations are those of few clients and of small ones, on the data of ``data_sets.py``; "4 classes" are
unions of classes. Columns of "best γ" are LDA at the best γ *on the test examples*, of scatters that NumPy
computes in float64 from singular value decompositions: FedCOF's from the means, that of the directions, with
the trace of each client's rest spread over all directions, with the same in the shape of the covariance given
the client's directions, and the exact one. "Automatic" is `fedcof_residuals`, with
its degrees of freedom L and with those of the examples, A.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import jax
import numpy as np
from data_sets import Data, digits, shifted, speech, stored, texts

import covfree
from covfree.data.partitions import inner_dirichlet
from covfree.estimators.directed import DirectedMoments, directed_freedom
from covfree.estimators.scatter import Freedom

GAMMAS = np.logspace(-4, 2, 25)  # in units of the mean variance


@dataclass(frozen=True)
class Federation:
    """Examples, their clients, and the directions that each client sends."""

    name: str
    data: Data
    clients: np.ndarray
    directions: int


def merged(data: Data, number: int) -> Data:
    """With the classes put together at random, to so many."""
    names = np.random.default_rng(0).permutation(np.arange(int(data.labels.max()) + 1) % number)
    return data._replace(labels=names[data.labels], test_labels=names[data.test_labels])


def federations(arguments: argparse.Namespace) -> Iterator[Federation]:
    """Few clients that differ with 16 directions each, and a hundred small ones with 5."""
    sets = {"digits": digits(0)}
    if arguments.features is not None:
        sets[arguments.features.stem] = stored(arguments.features)
    if arguments.texts is not None:
        sets["texts"] = texts(arguments.texts)
    if arguments.speech is not None:
        sets["speech"] = speech(arguments.speech)
    for name, data in sets.items():
        if data.clients is not None:
            yield Federation(f"{name}, its own clients", data, data.clients, 16)
        few, many = (inner_dirichlet(data.labels, n, a, seed=0) for n, a in ((10, 0.5), (100, 0.1)))
        yield Federation(f"{name}, 10 clients, shift", shifted(data, few, 0), few, 16)
        yield Federation(f"{name}, 100 clients", data, many, 5)
        four = merged(data, 4)
        clients = inner_dirichlet(four.labels, 100, 0.1, seed=0)
        yield Federation(f"{name}, 4 classes, 100 clients", four, clients, 5)


def scatters(federation: Federation) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Covariances within classes of each kind; class means and counts. Loops and float64."""
    data, clients, number = federation.data, federation.clients, federation.directions
    features, labels = data.features[clients >= 0].astype(np.float64), data.labels[clients >= 0]
    owners, dim, classes = clients[clients >= 0], features.shape[1], int(data.labels.max()) + 1
    count = np.bincount(labels, minlength=classes)
    total = np.zeros((classes, dim))
    np.add.at(total, labels, features)
    mean = total / np.maximum(count, 1)[:, None]
    held = np.bincount(np.unique(np.stack([owners, labels]), axis=1)[1], minlength=classes)
    weight = np.where(held > 1, (count - 1) / np.maximum(held - 1, 1), 0)
    spread, seen, hidden, sent = np.zeros((4, dim, dim))
    rests = []
    for k in np.unique(owners):
        residuals = []
        for c in np.unique(labels[owners == k]):
            mine = features[(owners == k) & (labels == c)]
            deviation = mine.mean(0) - mean[c]
            square = len(mine) * np.outer(deviation, deviation)
            seen, spread = seen + square, spread + weight[c] * square
            residuals.append(mine - mine.mean(0))
        _, size, vectors = np.linalg.svd(np.concatenate(residuals), full_matrices=False)
        kept = size[:number, None] * vectors[:number]
        sent, hidden = sent + kept.T @ kept, hidden + (size[:, None] * vectors).T @ (size[:, None] * vectors)
        rests.append(((size[number:] ** 2).sum(), vectors[: min(number, np.count_nonzero(size > 1e-9))]))
    left = sum(rest for rest, _ in rests)
    degrees = np.maximum(count - 1, 0).sum()
    found = {
        "means": spread / np.where(held > 1, count - 1, 0).sum(),
        "directions": (seen + sent) / degrees,
        "with the rest's trace": (seen + sent + left / dim * np.eye(dim)) / degrees,
        "with its shape": (seen + sent + shaped(seen, sent, rests, held, degrees)) / degrees,
        "exact": (seen + hidden) / degrees,
    }
    return found, mean, count


def shaped(
    seen: np.ndarray, sent: np.ndarray, rests: list[tuple[float, np.ndarray]], held: np.ndarray, degrees: int
) -> np.ndarray:
    """Spread what the clients' directions V leave out, as Σ − ΣV(VᵀΣV)⁻¹VᵀΣ has it, twice.

    Where clients differ, which the means' spread tells, a share of it is spread over all directions alike.
    """
    dim = len(seen)
    plain = sum(rest for rest, _ in rests) / dim * np.eye(dim)
    between = np.maximum(held - 1, 0).sum()
    inside = degrees - between
    excess = max(1.0, (np.trace(seen) / between) / (np.trace(sent + plain) / inside))
    rest = plain
    for _ in range(2):
        covariance = (seen / excess + sent + rest) / (between / excess + inside)
        rest = np.zeros((dim, dim))
        for trace, directions in rests:
            image = covariance @ directions.T
            within = image @ np.linalg.solve(directions @ image, image.T)
            weight = trace / max(np.trace(covariance) - np.trace(within), 1e-30)
            rest += weight * (covariance - within)
    return rest / excess + (1 - 1 / excess) * plain


def best(data: Data, covariance: np.ndarray, mean: np.ndarray, count: np.ndarray) -> float:
    """Accuracy of LDA in %, at the γ that is best on the test examples."""
    values, vectors = np.linalg.eigh(covariance)
    centre = count @ mean / count.sum()
    means, tests = (mean - centre) @ vectors, (data.test_features - centre) @ vectors
    accuracies = []
    for gamma in GAMMAS * np.trace(covariance) / len(covariance):
        weight = means / (np.maximum(values, 0) + gamma)
        scores = tests @ weight.T + np.log(np.maximum(count, 1e-9)) - 0.5 * (weight * means).sum(1)
        scores[:, count == 0] = -np.inf
        accuracies.append((scores.argmax(1) == data.test_labels).mean())
    return 100 * max(accuracies)


def automatic(federation: Federation, degrees: str) -> float:
    """Accuracy of `fedcof_residuals` in %."""

    def of_examples(totals: DirectedMoments) -> Freedom:
        moments = totals.moments
        return directed_freedom(totals.__class__(moments, (moments.count - moments.num_rows).sum() * 1.0))

    data = federation.data
    freedom = of_examples if degrees == "A" else directed_freedom
    with patch("covfree.methods.within.directed_freedom", freedom):
        jax.clear_caches()
        method = covfree.fedcof_residuals(federation.directions)
        head = covfree.fit(method, data.features, data.labels, federation.clients)
    return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help=".npz file with features, labels and is_test")
    parser.add_argument("--speech", type=Path, help="folder of recordings digit_speaker_index.wav")
    parser.add_argument("--texts", type=Path, help="folder with data_full.json of CLINC150")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    titles = "means", "directions", "with the rest's trace", "with its shape", "exact", "automatic, L"
    print(f"| | {' | '.join(titles)} | automatic, A |")
    print("|---" * 8 + "|")
    for federation in federations(arguments):
        found, mean, count = scatters(federation)
        cells = [best(federation.data, covariance, mean, count) for covariance in found.values()]
        cells += [automatic(federation, degrees) for degrees in ("L", "A")]
        print(f"| {federation.name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
