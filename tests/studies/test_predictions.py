"""Counts of predictions: by class and client, in the file of runs, and what is made of them."""

import json

import numpy as np
import pytest

import covfree
from covfree import studies
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet, partition_statistics
from covfree.studies.predictions import (
    Predictions,
    class_accuracy,
    confusion_counts,
    count_predictions,
    expected_client_accuracy,
    measured_client_accuracy,
)


def test_counts_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 5)).astype(np.float32)
    labels, clients = rng.integers(-1, 5, 60), rng.integers(-1, 4, 60)
    scores[3], scores[4, 2] = -np.inf, np.nan  # no prediction
    labels[[3, 4]], clients[[3, 4]] = 1, 2
    pairs, right, every = dict[tuple[int, int], int](), dict[int, int](), dict[int, int]()
    for row, label, client in zip(scores, labels.tolist(), clients.tolist(), strict=True):
        if label < 0:
            continue
        known = not np.isnan(row).any() and np.isfinite(row).any()
        predicted = int(np.argmax(row)) if known else -1
        pairs[label, predicted] = pairs.get((label, predicted), 0) + 1
        if client >= 0:
            every[client] = every.get(client, 0) + 1
            right[client] = right.get(client, 0) + (predicted == label)
    found = count_predictions(scores, labels, clients)
    assert found.pairs == tuple((*pair, count) for pair, count in sorted(pairs.items()))
    assert found.clients == tuple((client, right[client], every[client]) for client in sorted(every))
    assert pairs[1, -1] >= 2
    counts = confusion_counts([found, found], 5)
    assert counts.sum() == 2 * (labels >= 0).sum()
    assert counts[1, 5] == 2 * pairs[1, -1]
    assert class_accuracy(counts)[1] == pairs[1, 1] / (labels == 1).sum()
    shares = [right[client] / every[client] for client in sorted(every)]
    assert measured_client_accuracy([found, found]).tolist() == shares
    with pytest.raises(ValueError, match="labels: expected labels below 5"):
        count_predictions(scores, labels + 1)


def test_clients_expect_the_accuracy_of_their_classes():
    """As much as the mean over examples drawn anew with each client's classes; class 2 is not tested."""
    labels, clients = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 0, 1, 1, 3])
    accuracy = np.array([0.9, 0.5, np.nan])
    found = expected_client_accuracy(accuracy, partition_statistics(labels, clients, 3))
    np.testing.assert_allclose(found, [(0.9 + 0.9 + 0.5) / 3, (0.9 + 0.5) / 2, np.nan, np.nan])


def test_runs_are_counted_only_if_asked_and_made_again_if_they_lack_counts(tmp_path):
    data = {"digits": lambda seed: load_digits(seed=seed)}
    jobs = data, studies.federations([6], ["inner_dirichlet"], [2.0]), {"FedNCM": covfree.fedncm()}, [0]
    file = tmp_path / "runs.jsonl"
    (plain,) = studies.Study(*jobs, folder=tmp_path).runs()
    assert plain.predictions is None
    assert "predictions" not in json.loads(file.read_text())
    (counted,) = studies.Study(*jobs, predictions=True, folder=tmp_path).runs()
    assert (counted.accuracy, counted.sent) == (plain.accuracy, plain.sent)
    assert counted.predictions is not None
    counts = confusion_counts([counted.predictions], 10)
    loaded = load_digits(seed=0)
    assert counts.sum(1).tolist() == np.bincount(loaded.test_labels).tolist()
    assert counts.trace() / counts.sum() == pytest.approx(plain.accuracy)
    # What the file holds now is the run with counts, whoever asks, and nothing is run.
    for asked in (True, False):
        (again,) = studies.Study(
            {"digits": lambda seed: pytest.fail("nothing is left to do")},
            *jobs[1:],
            predictions=asked,
            folder=tmp_path,
        ).runs()
        assert again == counted
    owners = inner_dirichlet(loaded.train_labels, 6, 2.0, seed=0)
    partition = partition_statistics(loaded.train_labels, owners, 10)
    by_client = expected_client_accuracy(class_accuracy(counts), partition)
    assert (by_client > 0.8).all()
    assert isinstance(again.predictions, Predictions)
