"""Measured cells that are no test accuracy: of statistics, of partitions and of the data itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

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
    return float(MEASURES[name](settings, data, owners, seed))


def _head(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> Any:
    """The head of the settings' method."""
    return covfree.fit(
        method_of(settings),
        data.train_features,
        data.train_labels,
        owners,
        num_classes=data.num_classes,
        key=jax.random.key(seed),
    )


def _train_accuracy(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """Accuracy on the training examples, in percent."""
    head = _head(settings, data, owners, seed)
    return 100 * float(covfree.evaluate(head, data.train_features, data.train_labels))


def _temperature(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """The temperature at which the head's cross-entropy on the training examples is the lowest."""
    head = _head(settings, data, owners, seed)
    labels = np.where(owners >= 0, data.train_labels, -1)
    return float(covfree.calibrate_temperature(head, np.asarray(data.train_features), labels))


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


def _condition_between(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """Condition number of the scatter between classes, zero eigenvalues left out."""
    return _condition(_between(data)[0])


def _condition_within(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """Condition number of the scatter within classes, likewise."""
    return _condition(_between(data)[1])


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


def _distances(data: FeatureSet, owners: np.ndarray) -> tuple[float, float]:
    """L2 distances of the clients' means and covariance from those of one client that has all examples."""
    apart, whole = _statistics(data, owners), _statistics(data, np.where(owners < 0, -1, 0))
    first, second = (float(np.linalg.norm(ours - all_)) for ours, all_ in zip(apart, whole, strict=True))
    return first, second


def _mean_distance(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    return _distances(data, owners)[0]


def _covariance_distance(
    settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int
) -> float:
    return _distances(data, owners)[1]


def _pairs(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """Client-class pairs."""
    return count_rows(data.train_labels, owners)


def _clients_per_class(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    """Mean K_c, the clients that hold a class."""
    return count_rows(data.train_labels, owners) / data.num_classes


def _examples_per_client(
    settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int
) -> float:
    return float((owners >= 0).sum()) / len(np.unique(owners[owners >= 0]))


def _clients(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    return len(np.unique(owners[owners >= 0]))


def _classes(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    return data.num_classes


def _train_examples(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    return len(data.train_labels)


def _test_examples(settings: Mapping[str, Any], data: FeatureSet, owners: np.ndarray, seed: int) -> float:
    return len(data.test_labels)


MEASURES: Mapping[str, Callable[[Mapping[str, Any], FeatureSet, np.ndarray, int], float]] = {
    "train_accuracy": _train_accuracy,
    "temperature": _temperature,
    "condition_between": _condition_between,
    "condition_within": _condition_within,
    "mean_distance": _mean_distance,
    "covariance_distance": _covariance_distance,
    "pairs": _pairs,
    "clients_per_class": _clients_per_class,
    "examples_per_client": _examples_per_client,
    "clients": _clients,
    "classes": _classes,
    "train_examples": _train_examples,
    "test_examples": _test_examples,
}
