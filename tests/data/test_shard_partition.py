"""Shards and a number of classes for each client."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covfree.data.partitions import dominant_classes, pathological, shards

LABELS = np.repeat(np.arange(10), 60)


def classes_of(labels, clients, client):
    return sorted(set(labels[clients == client].tolist()))


def test_two_shards_of_pure_classes():
    clients = shards(LABELS, 10, 2, seed=0)  # 20 shards of 30: two a class
    assert (np.bincount(clients) == 60).all()
    for client in range(10):
        assert set(np.bincount(LABELS[clients == client], minlength=10)) <= {0, 30, 60}


def test_shard_size_with_a_number_leaves_the_rest():
    with pytest.warns(UserWarning, match="on no client: 530 of 600 examples"):
        clients = shards(LABELS, 5, 2, shard_size=7, seed=0)
    assert np.bincount(clients[clients >= 0]).tolist() == [14] * 5
    assert (clients == -1).sum() == 600 - 70


def test_shard_size_alone_deals_all_whole_shards():
    with pytest.warns(UserWarning, match="on no client: 60 of 600 examples"):
        clients = shards(LABELS, 4, shard_size=90, seed=0)  # 6 shards and 60 over
    assert np.bincount(clients[clients >= 0]).tolist() == [180, 180, 90, 90]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "num_shards_per_partition: expected a number, or a shard_size"),
        ({"num_shards_per_partition": 0}, "num_shards_per_partition: expected an integer of at least 1"),
        ({"shard_size": 0}, "shard_size: expected an integer of at least 1, got 0"),
        ({"num_shards_per_partition": 201}, r"at most the number of examples, 600, got 3 × 201 × 1"),
        ({"num_shards_per_partition": 2, "shard_size": 101}, r"examples, 600, got 3 × 2 × 101"),
        ({"shard_size": 300}, "shard_size: expected at least one shard for each of the 3 partitions"),
    ],
)
def test_shard_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        shards(LABELS, 3, **arguments, seed=0)


# Few clients may leave classes out.
@pytest.mark.filterwarnings("ignore:on no client")
@pytest.mark.parametrize("mode", ["random", "deterministic", "first-deterministic"])
@settings(derandomize=True, deadline=None, max_examples=30)
@given(k=st.integers(1, 30), per_client=st.integers(1, 10), seed=st.integers(0, 99))
def test_exactly_so_many_classes(mode, k, per_client, seed):
    clients = pathological(LABELS, k, per_client, class_assignment_mode=mode, seed=seed)
    held = [classes_of(LABELS, clients, client) for client in range(k)]
    assert {len(classes) for classes in held} == {per_client}
    for c in range(10):
        of_class = clients[c == LABELS]
        shares = np.bincount(of_class[of_class >= 0])
        if shares.size:
            assert np.ptp(shares[shares > 0]) <= 1
        assert (of_class >= 0).all() or (of_class == -1).all()  # unassigned only if nobody has the class
    for client, classes in enumerate(held):
        if mode != "random":
            assert client % 10 in classes
        if mode == "deterministic":
            assert classes == sorted((client + i) % 10 for i in range(per_client))


@pytest.mark.parametrize(("mode", "num_partitions"), [("deterministic", 8), ("first-deterministic", 10)])
def test_when_all_classes_are_used(mode, num_partitions):
    clients = pathological(LABELS, num_partitions, 3, class_assignment_mode=mode, seed=0)
    assert clients.min() == 0
    with pytest.warns(UserWarning, match=r"on no client: 60 of 600 examples, with all examples of 1 class$"):
        fewer = pathological(LABELS, 7, 3, class_assignment_mode="deterministic", seed=0)
    assert set(LABELS[fewer == -1]) == {9}


def test_one_class_a_client():
    """Fed3R's split of CIFAR-100, and what the random choice of classes leaves out of it."""
    labels = np.repeat(np.arange(100), 50)
    whole = pathological(labels, 100, 1, class_assignment_mode="deterministic", seed=0)
    np.testing.assert_array_equal(whole, labels)
    with pytest.warns(UserWarning, match="on no client") as caught:
        drawn = pathological(labels, 100, 1, seed=0)
    lost = 100 - np.unique(labels[drawn >= 0]).size
    assert 20 < lost < 50  # 100 (1 - 1/100)¹⁰⁰ = 36.6 on average
    assert f"{50 * lost:,} of 5,000 examples, with all examples of {lost} classes" in str(caught[0].message)


@pytest.mark.parametrize("mode", ["random", "first-deterministic"])
def test_choices_are_uniform(mode):
    labels = np.repeat(np.arange(5), 6000)
    clients = pathological(labels, 5000, 2, class_assignment_mode=mode, seed=0)
    holders = np.array([np.unique(clients[labels == c]).size for c in range(5)])
    z = (holders - 2000) / np.sqrt(5000 * 0.4 * 0.6)
    assert np.abs(z).max() < 4


@pytest.mark.parametrize(
    ("labels", "k", "per_client", "mode", "message"),
    [
        (
            LABELS,
            2,
            11,
            "random",
            "num_classes_per_partition: expected at most the number of classes in labels, 10, got 11",
        ),
        (LABELS, 2, 0, "random", "num_classes_per_partition: expected an integer of at least 1, got 0"),
        (LABELS, 2, 2, "rnd", "class_assignment_mode"),
        (np.array([0, 0, 0, 7]), 3, 2, "deterministic", "class 7 falls to 3 clients but has 1 examples"),
    ],
)
def test_pathological_errors(labels, k, per_client, mode, message):
    # A mode that does not exist is a ValueError here; a run-time type checker may be first with a TypeError.
    with pytest.raises((ValueError, TypeError), match=message):
        pathological(labels, k, per_client, class_assignment_mode=mode, seed=0)


def test_dominant_classes_are_a_share_of_all_and_shards_of_the_rest():
    labels = np.repeat(np.arange(10), 300)
    clients = dominant_classes(labels, 20, 0.2, num_shards_per_partition=2, seed=0)
    counts = np.stack([np.bincount(labels[clients == k], minlength=10) for k in range(20)])
    assert (counts.sum(1) == 150).all()
    # 30 from all classes, 3 of each; 120 from two shards, which lie in at most two classes each.
    top = -np.sort(-counts, axis=1)
    assert (top[:, 4:].sum(1) <= 30).all()
    assert top[:, 4:].sum() > 0.4 * 20 * 30
    np.testing.assert_allclose(counts[counts <= 12].mean(), 3, atol=0.5)
    # Without a uniform share shards alone, with nothing else the whole is uniform.
    only = dominant_classes(labels, 20, 0.0, num_shards_per_partition=1, seed=0)
    assert max(len(np.unique(labels[only == k])) for k in range(20)) <= 2
    uniform = dominant_classes(labels, 20, 1.0, seed=0)
    assert min(len(np.unique(labels[uniform == k])) for k in range(20)) == 10
    with pytest.raises(ValueError, match=r"uniform_share: expected a number in \[0, 1\], got 1\.5"):
        dominant_classes(labels, 20, 1.5, seed=0)
