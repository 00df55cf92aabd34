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

from collections.abc import Iterable, Iterator
from unittest.mock import patch

import jax
import numpy as np
from data_sets import Data, datasets, options, shifted

import covfree
from covfree.data.partitions import inner_dirichlet
from covfree.estimators.directed import DirectedMoments, directed_freedom
from covfree.estimators.scatter import Freedom

GAMMAS = np.logspace(-4, 2, 25)  # in units of the mean variance


def merged(data: Data, number: int) -> Data:
    """With the classes put together at random, to so many."""
    names = np.random.default_rng(0).permutation(np.arange(int(data.labels.max()) + 1) % number)
    return data._replace(labels=names[data.labels], test_labels=names[data.test_labels])


def federations(name: str, data: Data) -> Iterator[tuple[str, Data, np.ndarray, int]]:
    """Titles, examples, clients and directions: 16 of a few clients, 5 of a hundred small ones."""
    if data.clients is not None:
        yield f"{name}, its own clients", data, data.clients, 16
    few, many = (inner_dirichlet(data.labels, n, a, seed=0) for n, a in ((10, 0.5), (100, 0.1)))
    yield f"{name}, 10 clients, shift", shifted(data, few, 0), few, 16
    yield f"{name}, 100 clients", data, many, 5
    four = merged(data, 4)
    yield f"{name}, 4 classes, 100 clients", four, inner_dirichlet(four.labels, 100, 0.1, seed=0), 5


def scatters(
    data: Data, clients: np.ndarray, number: int
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Covariances within classes of each kind, given the number of directions; class means and counts."""
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


def accuracies(
    data: Data, covariance: np.ndarray, mean: np.ndarray, count: np.ndarray, gammas: Iterable[float]
) -> list[float]:
    """Accuracy of LDA in % for each γ."""
    values, vectors = np.linalg.eigh(covariance)
    centre = count @ mean / count.sum()
    means, tests = (mean - centre) @ vectors, (data.test_features - centre) @ vectors
    priors, found = np.where(count > 0, np.log(np.maximum(count, 1)), -np.inf), []
    for gamma in gammas:
        weight = means / (np.maximum(values, 0) + gamma)
        scores = tests @ weight.T + priors - 0.5 * (weight * means).sum(1)
        found.append(100 * float((scores.argmax(1) == data.test_labels).mean()))
    return found


def best(data: Data, covariance: np.ndarray, mean: np.ndarray, count: np.ndarray) -> float:
    """Accuracy of LDA in %, at the γ that is best on the test examples."""
    return max(accuracies(data, covariance, mean, count, GAMMAS * np.trace(covariance) / len(covariance)))


def automatic(data: Data, clients: np.ndarray, number: int, degrees: str) -> float:
    """Accuracy of `fedcof_residuals` in %."""

    def of_examples(totals: DirectedMoments) -> Freedom:
        moments = totals.moments
        return directed_freedom(totals.__class__(moments, (moments.count - moments.num_rows).sum() * 1.0))

    freedom = of_examples if degrees == "A" else directed_freedom
    with patch("covfree.methods.within.directed_freedom", freedom):
        jax.clear_caches()
        method = covfree.fedcof_residuals(number)
        head = covfree.fit(method, data.features, data.labels, clients)
    return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))


def main() -> None:
    """Print the table."""
    arguments = options(__doc__).parse_args()
    covfree.limit_lapack_threads()
    titles = "means", "directions", "with the rest's trace", "with its shape", "exact", "automatic, L"
    print(f"| | {' | '.join(titles)} | automatic, A |")
    print("|---" * 8 + "|")
    for name, load in datasets(arguments).items():
        for title, data, clients, number in federations(name, load(0)):
            if arguments.only in title:
                found, mean, count = scatters(data, clients, number)
                cells = [best(data, covariance, mean, count) for covariance in found.values()]
                cells += [automatic(data, clients, number, degrees) for degrees in ("L", "A")]
                print(f"| {title} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
