"""Bounds that are derived where none are given: one client takes nothing over, no honest one is lost."""

import dataclasses
from functools import cache

import numpy as np
import pytest
from deployed import rows, with_matrix

import covfree
from covfree.data.dataset import load_digits, load_npz
from covfree.protocol.bounds import Limits, Size, sizes_of
from covfree.protocol.checks import Rules

CLASSES = 10


@cache
def digits():
    return load_digits()


def means(features, labels, **parts) -> covfree.Message:
    """A client's class means, and what else of them is asked for."""
    held, place = np.unique(labels, return_inverse=True)
    count = np.bincount(place)
    mean = np.zeros((len(held), features.shape[1]))
    np.add.at(mean, place, features)
    mean = (mean / count[:, None]).astype(np.float32)
    sent = covfree.Message(covfree.Rows(mean, count.astype(np.int32), held.astype(np.int32)))
    if parts.get("matrix"):
        sent = dataclasses.replace(sent, matrix=(features.T @ features).astype(np.float32))
    return sent


def federation(features, labels, clients, **parts) -> dict[int, covfree.Message]:
    known = np.unique(clients).tolist()
    return {k: means(features[clients == k], labels[clients == k], **parts) for k in known}


@cache
def _hundred(**parts) -> dict[int, covfree.Message]:
    data = digits()
    clients = np.random.default_rng(0).integers(0, 100, len(data.train_labels))
    return federation(data.train_features, data.train_labels, clients, **parts)


def hundred(**parts) -> dict[int, covfree.Message]:
    return dict(_hundred(**parts))


def loud(message, times=1e13, count=1) -> covfree.Message:
    """Rows of ±10¹³, or a count that is too large."""
    signs = np.random.default_rng(1).choice([-1, 1], message.rows.mean.shape)
    mean = (times * signs).astype(np.float32) if times else message.rows.mean
    matrix = None if message.matrix is None else (count * (mean.T @ mean)).astype(np.float32)
    changed = dataclasses.replace(message.rows, mean=mean, count=count * message.rows.count)
    return dataclasses.replace(message, rows=changed, matrix=matrix)


def accuracy(method, message) -> float:
    head = covfree.solve_message(method, message, num_classes=CLASSES)
    return float(covfree.evaluate(head, digits().test_features, digits().test_labels))


LOUD = {
    "rows of 1e13": (dict(), "mean: a row of class"),
    "rows of 20 times the norm": (dict(times=10), "mean: a row of class"),
    "a million times as many": (dict(times=0, count=10**6), "count: counts sum to"),
    "a hundred times as many": (dict(times=0, count=100), "count: counts sum to"),
}


@pytest.mark.parametrize("method", [covfree.fedncm(), covfree.fed3r()], ids=lambda m: m.name)
def test_one_of_a_hundred_clients_takes_nothing_over(method):
    """Whether clients send rows alone or a matrix too."""
    sent = hundred(matrix=method.summary.matrices is not None)
    honest = {client: message for client, message in sent.items() if client != 7}
    best = accuracy(method, covfree.collect(honest, num_classes=CLASSES).message)
    assert best > 0.85
    for how, reason in LOUD.values():
        received = covfree.collect({**sent, 7: loud(sent[7], **how)}, num_classes=CLASSES, method=method)
        assert list(received.rejected) == [7]
        assert received.rejected[7].startswith(reason)
        assert "derived from 100 clients (median" in received.rejected[7]
        assert accuracy(method, received.message) == pytest.approx(best)


def test_one_of_four_clients_takes_nothing_over():
    sent = {client: message for client, message in hundred().items() if client < 4}
    received = covfree.collect({**sent, 2: loud(sent[2])}, num_classes=CLASSES)
    assert list(received.rejected) == [2]
    assert covfree.collect(sent, num_classes=CLASSES).rejected == {}


def test_bounds_are_switched_off_by_name_alone():
    sent = hundred()
    sent[7] = loud(sent[7], 1e9, count=10**6)
    one = covfree.collect(sent, num_classes=CLASSES, max_norm=None)
    assert list(one.rejected) == [7]
    assert one.bounds["max_norm"] == "none, switched off"
    assert "derived from 100 clients" in one.bounds["max_count"]
    off = covfree.collect(sent, num_classes=CLASSES, max_norm=None, max_count=None)
    assert off.rejected == {}
    assert accuracy(covfree.fedncm(), off.message) < 0.3


def test_a_folder_has_the_same_bounds(tmp_path):
    sent = hundred()
    sent[7] = loud(sent[7])
    for name, message in sent.items():
        covfree.save_message(message, tmp_path / f"{name}.safetensors")
    inbox = covfree.Inbox(tmp_path)
    head = covfree.solve_rows(covfree.fedncm(), covfree.Stream(inbox), num_classes=CLASSES)
    assert list(inbox.rejected) == ["7"]
    assert float(covfree.evaluate(head, digits().test_features, digits().test_labels)) > 0.85
    covfree.solve_rows(covfree.fedncm(), covfree.Stream(inbox, max_norm=None), num_classes=CLASSES)
    assert inbox.rejected == {}


def test_too_few_clients_judge_nobody_and_are_judged_later():
    sent = hundred()
    first = covfree.collect({7: loud(sent[7]), 8: sent[8]}, num_classes=CLASSES)
    assert first.clients == (7, 8)
    assert first.bounds == dict.fromkeys(
        ("max_count", "max_norm"), "none, as 2 clients are too few to derive one from"
    )
    later = covfree.collect(sent, num_classes=CLASSES, before=first)
    assert later.rejected == {}
    assert list(later.doubted) == [7]
    left = covfree.forget(later, 7)
    assert left.doubted == {}
    assert covfree.collect({7: sent[7]}, num_classes=CLASSES, before=left).doubted == {}


def test_a_map_of_features_has_a_public_bound():
    features, labels = np.eye(6, 4, dtype=np.float32), np.arange(6) % 2
    method = covfree.fed3r().with_feature_map(covfree.fourier_features(8))
    sent = covfree.client_message(method, features, labels, num_classes=2)
    # Within what clients tell, and beyond what the map can give.
    larger = dataclasses.replace(
        sent, rows=dataclasses.replace(sent.rows, mean=2 * sent.rows.mean), matrix=4 * sent.matrix
    )
    received = covfree.collect({"a": sent, "b": larger}, num_classes=2, method=method)
    assert list(received.rejected) == ["b"]
    assert received.bounds["max_norm"] == "1.414, that of the method's map of features"


def test_residual_directions_and_solutions_are_bounded():
    data = digits()
    clients = np.random.default_rng(0).integers(0, 12, len(data.train_labels))
    for method, part in ((covfree.fedcof_residuals(1), "directions"), (covfree.afl(), "trace")):
        sent = {
            k: covfree.client_message(
                method,
                data.train_features[clients == k],
                data.train_labels[clients == k],
                num_classes=CLASSES,
            )
            for k in range(12)
        }
        assert covfree.collect(sent, num_classes=CLASSES, method=method).rejected == {}
        if part == "trace":
            sent[3] = dataclasses.replace(sent[3], matrix=1e6 * sent[3].matrix)
        else:
            own = np.asarray(sent[3].rows.sketch)[:, None]
            mean = np.where(own, np.float32(1e4), 1) * sent[3].rows.mean
            sent[3] = dataclasses.replace(sent[3], rows=dataclasses.replace(sent[3].rows, mean=mean))
        assert list(covfree.collect(sent, num_classes=CLASSES, method=method).rejected) == [3]


# Honest federations


def dirichlet(labels, clients, alpha, rng):
    """Labels spread unevenly."""
    owner = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        owner[own] = rng.choice(clients, len(own), p=rng.dirichlet(np.full(clients, alpha)))
    return owner


def shifted(features, clients, rng):
    """Each client's features scaled by 0.6 to 1.6, and moved."""
    scale = rng.uniform(0.6, 1.6, clients.max() + 1)[clients, None]
    move = rng.normal(size=(clients.max() + 1, features.shape[1]))[clients] * features.std() / 2
    return (features * scale + move).astype(np.float32)


def assert_nobody_is_lost(features, labels, num_classes, clients, matrices):
    for matrix in matrices:
        sent = federation(features, labels, clients, matrix=matrix)
        received = covfree.collect(sent, num_classes=num_classes)
        assert received.rejected == {}, received.bounds


def federations_of(features, labels, seed):
    rng = np.random.default_rng(seed)
    deviation = features.std(0) + 1e-3
    for seen in (features, ((features - features.mean(0)) / deviation).astype(np.float32)):
        for clients in (
            dirichlet(labels, 50, 0.05, rng),
            dirichlet(labels, 100, 0.5, rng),
            np.arange(len(labels)) % 4,
        ):
            yield seen, clients
            yield shifted(seen, clients, rng), clients


def test_no_honest_client_of_digits_is_lost():
    data = digits()
    for features, clients in federations_of(data.train_features, data.train_labels, 0):
        assert_nobody_is_lost(features, data.train_labels, CLASSES, clients, (False, True))


def test_no_honest_client_of_photographs_is_lost(shared):
    data = load_npz(shared / "data" / "features" / "caltech101-efficientnet_lite0.npz")
    features = np.asarray(data.train_features)[:, :64].astype(np.float32)
    for seen, clients in federations_of(features, data.train_labels, 0):
        assert_nobody_is_lost(seen, data.train_labels, data.num_classes, clients, (True,))


def test_no_client_of_a_real_federation_is_too_large(shared):
    """Of nine thousand users one has 1,255 times as many photographs as the middle one."""
    rng = np.random.default_rng(0)
    for file in sorted((shared / "data" / "client_sizes").glob("*.txt")):
        sizes = np.loadtxt(file).astype(int)
        # Means of n examples about 0, whose squares are as 1/n.
        found = {
            k: Size(float(n), np.zeros(1, int), np.array([n]), np.array([rng.chisquare(8) / n]), 0.0, 0.0)
            for k, n in enumerate(sizes)
        }
        limits = Limits(list(found.values()), Rules(1, max_count="derived", max_norm="derived"))
        assert limits.exceeded(found) == {}, (file.name, limits.report())


def test_the_size_of_a_client_is_that_of_its_rows():
    """Also once the rows of many are in one table."""
    sent = {"a": with_matrix(rows()), "b": with_matrix(rows(count=(1, 2)))}
    together = covfree.collect(sent, num_classes=3).message
    found = list(sizes_of(together, together.rows.client, 2))
    alone = [next(sizes_of(message)) for message in sent.values()]
    for ours, theirs in zip(found, alone, strict=True):
        assert ours.count == theirs.count
        np.testing.assert_allclose(ours.square, theirs.square)
        np.testing.assert_allclose(ours.square, [5, 25])
        assert ours.trace == pytest.approx(np.mean([size.trace for size in alone]))
