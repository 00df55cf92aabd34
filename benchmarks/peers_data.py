"""Random federations for ``peers.py``, and what the peers must agree with, computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

GAMMA = 1.0
RIDGE = 1.0
LDA_SHRINKAGE = 0.1
TEST = 2000
_CHUNK = 8192


class Size(NamedTuple):
    """Client-class pairs, classes, features, clients and examples of a federation."""

    rows: int
    classes: int
    dim: int
    clients: int
    examples: int


SIZES = {
    "CIFAR-100": Size(2_870, 100, 512, 100, 50_000),
    "Cars": Size(2_634, 196, 1280, 100, 8_144),
    "iNaturalist-120K": Size(54_590, 1_203, 1280, 9_275, 120_293),
}


def loader(folder: Path) -> Callable[[str], np.ndarray]:
    """Read an array that `make` wrote."""
    return lambda name: np.load(folder / f"{name}.npy")


def make(size: Size, folder: Path, seed: int = 0) -> None:
    """Write the examples, the rows, test examples and the heads to agree with.

    Every client holds a class and every class is held; pairs get at least one example each. Features have a
    common mean, class centres, and noise of falling variance.
    """
    rng = np.random.default_rng(seed)
    pairs = _pairs(size, rng)
    counts = 1 + np.bincount(rng.integers(size.rows, size=size.examples - size.rows), minlength=size.rows)
    owner = rng.permutation(np.repeat(np.arange(size.rows), counts))
    row_clients, row_labels = (x.astype(np.int32) for x in np.divmod(pairs, size.classes))
    labels = row_labels[owner]
    scale = np.linspace(1, 0.1, size.dim, dtype=np.float32)
    centres = 0.3 + rng.standard_normal((size.classes, size.dim), np.float32) * scale
    features = _features(centres, scale, labels, rng)
    test = _features(centres, scale, rng.integers(size.classes, size=TEST), rng)
    order = np.argsort(owner, kind="stable")
    starts = np.cumsum(counts) - counts
    means = np.empty((size.rows, size.dim), np.float32)
    for first in range(0, size.rows, _CHUNK):
        last = min(first + _CHUNK, size.rows)
        some = features[order[starts[first] : starts[last - 1] + counts[last - 1]]]
        sums = np.add.reduceat(some, starts[first:last] - starts[first], dtype=np.float64)
        means[first:last] = sums / counts[first:last, None]
    arrays = {
        "features": features,
        "labels": labels,
        "clients": row_clients[owner],
        "row_means": means,
        "row_counts": counts.astype(np.int32),
        "row_labels": row_labels,
        "row_clients": row_clients,
        "test": test,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    references = {
        "fedcof": _fedcof(means, counts, row_labels, size.classes),
        **_pooled(features, labels, size.classes),
    }
    for name, (weight, bias) in references.items():
        np.save(folder / f"{name}_weight.npy", weight)
        np.save(folder / f"{name}_bias.npy", bias)


def _pairs(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Different pairs client·C + class, sorted; with every client and every class."""
    each_client = np.arange(size.clients) * size.classes + rng.integers(size.classes, size=size.clients)
    each_class = rng.integers(size.clients, size=size.classes) * size.classes + np.arange(size.classes)
    needed = np.union1d(each_client, each_class)
    others = np.setdiff1d(np.arange(size.clients * size.classes), needed, assume_unique=True)
    more = rng.choice(others, size.rows - len(needed), replace=False)
    return np.sort(np.concatenate([needed, more]))


def _features(
    centres: np.ndarray, scale: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    features = rng.standard_normal((len(labels), len(scale)), np.float32)
    for first in range(0, len(labels), _CHUNK):
        part = slice(first, first + _CHUNK)
        features[part] = features[part] * scale + centres[labels[part]]
    return features


def _class_sums(
    values: np.ndarray, counts: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """N_c and class means."""
    sums = np.zeros((classes, values.shape[1]))
    np.add.at(sums, labels, counts[:, None] * values.astype(np.float64))
    total = np.bincount(labels, counts, classes)
    return total, sums / total[:, None]


def _scatter(values: np.ndarray, weight: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Σ w (x − centre)(x − centre)ᵀ; some rows at a time, in float64."""
    scatter = np.zeros((values.shape[1],) * 2)
    for first in range(0, len(values), _CHUNK):
        part = slice(first, first + _CHUNK)
        away = (values[part] - centres[part]) * np.sqrt(weight[part])[:, None]
        scatter += away.T @ away
    return scatter


def _unit(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return weight / np.linalg.norm(weight, axis=0), np.zeros(weight.shape[1])


def _fedcof(
    means: np.ndarray, counts: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """FedCOF's Alg. 1."""
    total, centres = _class_sums(means, counts, labels, classes)
    weight = counts * ((total - 1) / np.maximum(np.bincount(labels, minlength=classes) - 1, 1))[labels]
    gram = _scatter(means, weight, centres[labels]) + GAMMA * (total - 1).sum() * np.eye(means.shape[1])
    grand = total @ centres / total.sum()
    return _unit(np.linalg.solve(gram + total.sum() * np.outer(grand, grand), (total[:, None] * centres).T))


def _pooled(
    features: np.ndarray, labels: np.ndarray, classes: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ridge regression without intercept, unit columns; and LDA as scikit-learn's ``lsqr`` has it."""
    ones = np.ones(len(labels))
    total, centres = _class_sums(features, ones, labels, classes)
    within = _scatter(features, ones, centres[labels])
    gram = within + (total[:, None] * centres).T @ centres + RIDGE * np.eye(len(within))
    covariance, priors = within / len(labels), total / len(labels)
    spherical = np.trace(covariance) / len(within) * np.eye(len(within))
    weight = np.linalg.solve((1 - LDA_SHRINKAGE) * covariance + LDA_SHRINKAGE * spherical, centres.T)
    return {
        "ridge": _unit(np.linalg.solve(gram, (total[:, None] * centres).T)),
        "lda": (weight, -0.5 * np.sum(centres.T * weight, axis=0) + np.log(priors)),
    }
