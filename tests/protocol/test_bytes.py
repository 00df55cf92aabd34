"""Bytes up: the arrays that clients really send, and the papers' formulas."""

import deployed
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import ONE_SHOT
from deployed import ragged
from federations import CLASSES, DIM

import covfree
from covfree.methods import registry


def measured(messages) -> covfree.SentBytes:
    """The sum of `message_bytes` over clients."""
    sent = [covfree.message_bytes(message) for message in messages.values()]
    return covfree.SentBytes(sum(s.statistics for s in sent), sum(s.counts for s in sent))


def pairs_and_senders(labels, clients) -> tuple[int, int]:
    pairs = {(int(k), int(y)) for k, y in zip(clients, labels, strict=True) if k >= 0 and y >= 0}
    return len(pairs), len({k for k, _ in pairs})


@pytest.mark.parametrize("name", ONE_SHOT)
def test_upload_is_the_sum_of_the_messages(name):
    _, labels, clients = ragged(name)
    sent = covfree.sent_bytes(deployed.make(name), labels, clients, dim=DIM)
    assert sent == measured(deployed.messages(name))
    assert sent.total == sent.statistics + sent.counts


@pytest.mark.parametrize("num_subsets", [1, 2, 9, None])
def test_upload_is_the_sum_of_the_messages_with_subsets(num_subsets):
    method, (_, labels, clients) = covfree.fedcof(num_subsets=num_subsets), ragged()
    sent = covfree.sent_bytes(method, labels, clients, dim=DIM)
    assert sent == measured(deployed.send(method))
    if num_subsets != 1:
        assert sent.statistics > covfree.sent_bytes(covfree.fedcof(), labels, clients, dim=DIM).statistics


@pytest.mark.parametrize(
    "name", ["fedncm", "fed3r", "fed3r-within", "afl", "fedcgs", "fedcof", "fedcof-oracle", "qda", "ccvr"]
)
def test_upload_is_the_formula(name):
    """M and K counted by a loop; the integers beside the statistics are a count and a label a pair."""
    method, (_, labels, clients) = registry()[name].make(), ragged()
    rows, senders = pairs_and_senders(labels, clients)
    matrices = {"fedncm": 0, "fedcof": 0, "fedcof-oracle": rows, "qda": rows, "ccvr": rows}.get(name, senders)
    statistics = 4 * (rows * DIM + matrices * DIM**2)
    assert covfree.sent_bytes(method, labels, clients, dim=DIM) == covfree.SentBytes(statistics, 8 * rows)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("fedcof-spherical", DIM + 1), ("fedcof-diagonal", 2 * DIM), ("naive-bayes", 2 * DIM)],
)
def test_upload_with_variances(name, numbers):
    """A mean and its variances: 4·M·(d + 1) bytes, or 8·M·d."""
    _, labels, clients = ragged()
    rows, _ = pairs_and_senders(labels, clients)
    sent = covfree.sent_bytes(registry()[name].make(), labels, clients, dim=DIM)
    assert sent == covfree.SentBytes(4 * rows * numbers, 8 * rows)


@pytest.mark.parametrize("make", [covfree.fedcof, covfree.fed3r])
def test_upload_of_mapped_features_is_that_of_what_the_map_gives(make):
    """Whatever the features' own dimension."""
    _, labels, clients = ragged()
    expected = covfree.sent_bytes(make(), labels, clients, dim=7)
    mapped = make().with_feature_map(covfree.relu_features(7))
    for dim in (DIM, 1000):
        assert covfree.sent_bytes(mapped, labels, clients, dim=dim) == expected


@pytest.mark.parametrize("name", registry())
def test_clients_without_examples_send_nothing(name):
    """Nor are they counted among those who send."""
    method = registry()[name].make()
    labels, clients = np.array([0, 1, -1, -1], np.int32), np.array([4, 4, 9, 9], np.int32)
    expected = covfree.sent_bytes(method, labels[:2], clients[:2], dim=DIM)
    assert expected.total > 0
    assert covfree.sent_bytes(method, labels, clients, dim=DIM) == expected


def test_nobody_sends_nothing():
    nobody = np.full(3, -1, np.int32)
    for entry in registry().values():
        assert covfree.sent_bytes(entry.make(), nobody, nobody, dim=DIM) == covfree.SentBytes(0, 0)


def test_a_head_that_holds_all_rows_is_received_as_such():
    """Whether clients sent rows alone, or a matrix with each."""
    _, labels, clients = ragged()
    received = [
        covfree.received_bytes(covfree.corrected(make(0.1, head="student")), labels, clients, dim=DIM)
        for make in (covfree.fedcof, covfree.fedcof_oracle)
    ]
    assert received[0] == received[1]


def test_a_swept_method_sends_what_one_sends():
    _, labels, clients = ragged()
    swept = jax.vmap(covfree.afl)(jnp.array([0.1, 1.0, 10.0]))
    one = covfree.sent_bytes(covfree.afl(), labels, clients, dim=DIM)
    assert covfree.sent_bytes(swept, labels, clients, dim=DIM) == one


def test_padding_rows_are_not_sent():
    """A row is padding if its count is 0 or its label below 0."""
    rows = covfree.Rows(np.ones((3, 10), np.float32), np.array([2, 0, 5]), np.array([0, 1, -1]))
    assert covfree.message_bytes(covfree.Message(rows)) == covfree.SentBytes(statistics=40, counts=8)


def test_half_precision_features_are_sent_in_float32():
    x, y = deployed.examples(23)
    half = covfree.client_message(covfree.fedcof(), x.astype(np.float16), y, num_classes=CLASSES)
    assert covfree.message_bytes(half) == covfree.message_bytes(deployed.messages("fedcof")[23])
