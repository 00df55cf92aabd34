"""Counts of a head's test predictions by class and by client, and their sums over runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from covfree.core.compiling import jit
from covfree.data.partitions import PartitionStatistics
from covfree.heads.metrics.outcome import check_scores, outcome_of

# Examples are scored in batches of this size, as some heads need much memory.
_PART = 4096
_scores = jit(lambda head, features: head(features))
_outcome = jit(lambda scores, labels: outcome_of(scores, labels)[:2])


class Predictions(NamedTuple):
    """Counts of test examples by class and predicted class, and by client.

    Attributes:
        pairs: (label, predicted class, examples) of the pairs that occur, sorted. The predicted class is −1
            where the head gives none.
        clients: (client, correct predictions, examples) of the clients that have test examples, sorted;
            empty if the data does not say which client each test example belongs to.
    """

    pairs: tuple[tuple[int, int, int], ...]
    clients: tuple[tuple[int, int, int], ...] = ()


def scores_of(head: Any, features: Any) -> Float[np.ndarray, "examples classes"]:
    """Compute a head's scores batch by batch, and return them in host memory."""
    starts = range(0, len(features), _PART)
    return np.concatenate([np.asarray(_scores(head, features[start : start + _PART])) for start in starts])


def count_predictions(
    scores: Float[np.ndarray, "examples classes"],
    labels: Integer[np.ndarray, " examples"],
    clients: Integer[np.ndarray, " examples"] | None = None,
) -> Predictions:
    """Count the predictions by class, and the correct ones by client.

    >>> scores = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]], np.float32)
    >>> count_predictions(scores, np.array([0, 1, 1]), np.array([7, 7, 9]))
    Predictions(pairs=((0, 0, 1), (1, 0, 1), (1, 1, 1)), clients=((7, 2, 2), (9, 0, 1)))
    """
    check_scores(scores, labels, clients)
    classes = scores.shape[1]
    label, predicted = (np.asarray(array) for array in _outcome(scores, labels))
    kept = label < classes
    found, counts = np.unique(np.stack([label, predicted])[:, kept], axis=1, return_counts=True)
    found[1][found[1] == classes] = -1
    pairs = sorted(zip(*found.tolist(), counts.tolist(), strict=True))
    if clients is None:
        return Predictions(tuple(pairs))
    owned = kept & (np.asarray(clients) >= 0)
    names, place = np.unique(np.asarray(clients)[owned], return_inverse=True)
    right = np.bincount(place, label[owned] == predicted[owned], len(names)).astype(int)
    every = np.bincount(place, minlength=len(names))
    return Predictions(tuple(pairs), tuple(zip(names.tolist(), right.tolist(), every.tolist(), strict=True)))


def confusion_counts(
    predictions: Iterable[Predictions], num_classes: int
) -> Integer[np.ndarray, "classes predicted"]:
    """Return all runs' counts by label and prediction, [C, C + 1]; the last column is for no prediction."""
    counts = np.zeros((num_classes, num_classes + 1), np.int64)
    for each in predictions:
        for label, predicted, number in each.pairs:
            counts[label, predicted] += number
    return counts


def class_accuracy(counts: Integer[np.ndarray, "classes predicted"]) -> Float[np.ndarray, " classes"]:
    """Return each class's share of correct predictions; NaN for a class without test examples.

    >>> class_accuracy(confusion_counts([Predictions(((0, 0, 3), (0, 1, 1)))], 2))
    array([0.75,  nan])
    """
    every = counts.sum(1)
    return np.divide(counts.diagonal(), every, out=np.full(len(counts), np.nan), where=every > 0)


def expected_client_accuracy(
    accuracy: Float[np.ndarray, " classes"], partition: PartitionStatistics
) -> Float[np.ndarray, " clients"]:
    """Average the classes' accuracies for each client, weighted by its training examples of each class.

        a_k = Σ_c n_kc a_c / Σ_c n_kc,  over the classes c that have test examples,
        n_kc: client k's training examples of class c;  a_c: the test accuracy of class c.

    This is a client's expected accuracy if its future examples have its training class distribution and,
    within a class, are distributed like everyone's. NaN for a client without examples of such classes.
    """
    known = np.isfinite(accuracy[partition.pair_labels])
    owners, labels = partition.pair_clients[known], partition.pair_labels[known]
    weights, number = partition.pair_counts[known].astype(float), partition.num_clients
    every = np.bincount(owners, weights, number)
    right = np.bincount(owners, weights * accuracy[labels], number)
    return np.divide(right, every, out=np.full(number, np.nan), where=every > 0)


def measured_client_accuracy(predictions: Iterable[Predictions]) -> Float[np.ndarray, " clients"]:
    """Return the share of correct predictions over all runs, for each client that has test examples."""
    right: dict[int, int] = {}
    every: dict[int, int] = {}
    for each in predictions:
        for client, hits, number in each.clients:
            right[client] = right.get(client, 0) + hits
            every[client] = every.get(client, 0) + number
    return np.array([right[client] / every[client] for client in sorted(every)])
