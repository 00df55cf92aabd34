"""Measured cells that are no test accuracy: of statistics, of partitions and of the data itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import covfree
from covfree.core.types import Message
from covfree.data import FeatureSet
from covfree.statistics import count_rows
from experiments.tables.data import Data
from experiments.tables.settings import federation_of, method_of


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Measure once; there is nothing to go on from."""
    return {"value": measure(own, data.load(seed), seed)}


def measure(settings: Mapping[str, Any], data: FeatureSet, seed: int) -> float:
    """The value of a measured cell for one seed.

    Raises:
        ValueError: if the measure is unknown.
    """
    name = settings["measure"]
    if name not in MEASURES:
        raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {name!r}")
    owners = federation_of(settings).assign(data, seed).astype(np.int32)
    return float(MEASURES[name](_Measured(settings, data, owners, seed)))


class _Measured(NamedTuple):
    """What is measured: a cell's settings, its data, and the client of each training example."""

    settings: Mapping[str, Any]
    data: FeatureSet
    owners: np.ndarray
    seed: int

    @property
    def clients(self) -> int:
        """Clients with examples."""
        return len(np.unique(self.owners[self.owners >= 0]))

    @property
    def pairs(self) -> int:
        """Client-class pairs."""
        return count_rows(self.data.train_labels, self.owners)


def _head(of: _Measured) -> Any:
    """The head of the settings' method."""
    return covfree.fit(
        method_of(of.settings),
        of.data.train_features,
        of.data.train_labels,
        of.owners,
        num_classes=of.data.num_classes,
        key=jax.random.key(of.seed),
    )


def _train_accuracy(of: _Measured) -> float:
    """Accuracy on the training examples, in percent."""
    return 100 * float(covfree.evaluate(_head(of), of.data.train_features, of.data.train_labels))


def _temperature(of: _Measured) -> float:
    """The temperature at which the head's cross-entropy on the training examples is the lowest."""
    labels = np.where(of.owners >= 0, of.data.train_labels, -1)
    return float(covfree.calibrate_temperature(_head(of), np.asarray(of.data.train_features), labels))


def _between(data: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    """Class means about the mean of all, times √N_c; and the features about their class means."""
    features, labels = np.asarray(data.train_features, np.float64), data.train_labels
    counts = np.bincount(labels, minlength=data.num_classes)
    means = np.zeros((data.num_classes, features.shape[1]))
    np.add.at(means, labels, features)
    means /= np.maximum(counts, 1)[:, None]
    return np.sqrt(counts)[:, None] * (means - features.mean(0)), features - means[labels]


def _condition(factor: np.ndarray) -> float:
    """Largest by smallest eigenvalue of YᵀY that is not zero: above eps·d times the largest."""
    values = np.linalg.eigvalsh(factor.T @ factor)[::-1]
    kept = values[values > np.finfo(np.float64).eps * len(values) * values[0]]
    return kept[0] / kept[-1]


def _statistics(data: FeatureSet, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class means and total covariance from what FedCGS's clients send."""
    method = covfree.fedcgs()
    messages: dict[Hashable, Message] = {
        int(client): covfree.client_message(
            method,
            data.train_features[owners == client],
            data.train_labels[owners == client],
            num_classes=data.num_classes,
        )
        for client in np.unique(owners[owners >= 0])
    }
    message = covfree.collect(messages, num_classes=data.num_classes).message
    rows = message.rows
    counts = np.bincount(np.asarray(rows.label), np.asarray(rows.count), minlength=data.num_classes)
    sums = np.zeros((data.num_classes, data.train_features.shape[1]))
    np.add.at(sums, np.asarray(rows.label), np.asarray(rows.count)[:, None] * np.asarray(rows.mean, float))
    total, size = sums.sum(0), counts.sum()
    covariance = (np.asarray(message.matrix) - np.outer(total, total) / size) / (size - 1)
    return sums / np.maximum(counts, 1)[:, None], covariance


def _distances(of: _Measured) -> tuple[float, float]:
    """L2 distances of the clients' means and covariance from those of one client that has all examples."""
    apart, whole = _statistics(of.data, of.owners), _statistics(of.data, np.where(of.owners < 0, -1, 0))
    first, second = (float(np.linalg.norm(ours - all_)) for ours, all_ in zip(apart, whole, strict=True))
    return first, second


MEASURES: Mapping[str, Callable[[_Measured], float]] = {
    "train_accuracy": _train_accuracy,
    "temperature": _temperature,
    # Of the scatters between and within classes.
    "condition_between": lambda of: _condition(_between(of.data)[0]),
    "condition_within": lambda of: _condition(_between(of.data)[1]),
    "mean_distance": lambda of: _distances(of)[0],
    "covariance_distance": lambda of: _distances(of)[1],
    "pairs": lambda of: of.pairs,
    # Mean K_c, the clients that hold a class.
    "clients_per_class": lambda of: of.pairs / of.data.num_classes,
    "examples_per_client": lambda of: float((of.owners >= 0).sum()) / of.clients,
    "clients": lambda of: of.clients,
    "classes": lambda of: of.data.num_classes,
    "train_examples": lambda of: len(of.data.train_labels),
    "test_examples": lambda of: len(of.data.test_labels),
}
