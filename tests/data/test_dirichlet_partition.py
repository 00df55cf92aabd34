"""The two Dirichlet laws, against theory and against a slow version that follows the papers word by word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covfree.data.partitions import dirichlet, inner_dirichlet


def pair_counts(labels, clients, num_clients, num_classes):
    """[K, C] examples of each client and class."""
    table = np.bincount(clients * num_classes + labels, minlength=num_clients * num_classes)
    return table.reshape(num_clients, num_classes)


def num_pairs(labels, clients):
    return np.unique(clients.astype(np.int64) * (labels.max() + 1) + labels).size


def slow_inner_dirichlet(labels, sizes, alpha, filling, rng):
    """One draw after the other from explicit proportions, as the official implementations do."""
    num_classes = labels.max() + 1
    proportions = rng.dirichlet(np.full(num_classes, alpha), size=len(sizes))
    left, room = np.bincount(labels), np.array(sizes)
    table = np.zeros((len(sizes), num_classes), int)
    while room.any():
        client = np.flatnonzero(room)[0] if filling == "sequential" else rng.choice(np.flatnonzero(room))
        p = proportions[client] * (left > 0)
        drawn = rng.choice(num_classes, p=p / p.sum())
        table[client, drawn] += 1
        left[drawn] -= 1
        room[client] -= 1
    return table


@pytest.mark.parametrize(
    ("filling", "low", "high"), [("sequential", 2800, 3000), ("interleaved", 3300, 3450)]
)
def test_the_pairs_of_fedcof_on_cifar_100(filling, low, high):
    labels = np.repeat(np.arange(100), 500)
    pairs = [num_pairs(labels, inner_dirichlet(labels, 100, 0.1, filling=filling, seed=s)) for s in range(2)]
    # The paper: 2,870 for one partition. A partition's standard deviation is about 50.
    assert low < np.mean(pairs) < high


@pytest.mark.parametrize("filling", ["sequential", "interleaved"])
def test_the_urn_has_the_law_of_explicit_proportions(filling):
    # Imbalanced classes and unequal sizes, so that most classes run out on the way.
    labels = np.repeat(np.arange(6), [5, 10, 20, 40, 60, 65])
    sizes = [40, 10, 30, 70, 50]
    draws = 150
    rng = np.random.default_rng(0)
    slow = np.stack([slow_inner_dirichlet(labels, sizes, 0.4, filling, rng) for _ in range(draws)])
    fast = np.stack(
        [
            pair_counts(
                labels,
                inner_dirichlet(labels, 5, 0.4, partition_sizes=sizes, filling=filling, seed=seed),
                5,
                6,
            )
            for seed in range(draws)
        ]
    )
    assert (fast.sum(2) == sizes).all()
    assert (fast.sum(1) == np.bincount(labels)).all()
    for of in (lambda t: t, lambda t: t > 0, lambda t: t**2):
        a, b = of(slow).astype(float), of(fast).astype(float)
        z = (a.mean(0) - b.mean(0)) / np.sqrt((a.var(0) + b.var(0)) / draws + 1e-9)
        assert np.abs(z).max() < 4  # of 30 cells
        assert np.sqrt(np.mean(z**2)) < 1.5


def test_counts_are_dirichlet_multinomial_while_no_class_runs_out():
    num_classes, size, alpha, num_clients = 10, 20, 0.2, 400
    labels = np.repeat(np.arange(num_classes), num_clients * size)
    with pytest.warns(UserWarning, match="on no client: 72,000 of 80,000 examples"):
        clients = inner_dirichlet(labels, num_clients, alpha, partition_sizes=[size] * num_clients, seed=0)
    held = clients >= 0
    assert held.sum() == num_clients * size
    counts = pair_counts(labels[held], clients[held], num_clients, num_classes)

    mean, total = size / num_classes, alpha * num_classes
    variance = mean * (1 - 1 / num_classes) * (size + total) / (1 + total)
    z = (counts.mean(0) - mean) / np.sqrt(variance / num_clients)
    assert np.abs(z).max() < 4
    assert counts.var(0).mean() == pytest.approx(variance, rel=0.1)

    # P(a client lacks a class) = Π_i (α(C-1) + i) / (αC + i), i < size.
    i = np.arange(size)
    present = 1 - np.prod((total - alpha + i) / (total + i))
    classes = (counts > 0).sum(1)
    z = (classes.mean() - num_classes * present) / np.sqrt(classes.var() / num_clients)
    assert abs(z) < 4


def test_alpha_from_one_class_to_all_alike():
    labels = np.repeat(np.arange(20), 500)
    few, many = (inner_dirichlet(labels, 20, alpha, seed=0) for alpha in (1e-9, 1e6))
    # A client draws one class until that runs out, here 500 examples in each of both.
    assert num_pairs(labels, few) < 20 + 20 + 5
    # At large α, 500 draws from 20 equal classes until one runs out: here the first half of the clients.
    counts = pair_counts(labels, many, 20, 20)[:10]
    chi2, freedom = ((counts - 25) ** 2 / 25).sum(), 10 * 19
    assert abs(chi2 - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e300, 1.7e308])
def test_alpha_at_the_ends_of_float(alpha):
    labels = np.repeat(np.arange(5), 20)
    for function in (inner_dirichlet, dirichlet):
        clients = function(labels, 5, alpha, seed=0)
        assert np.bincount(clients, minlength=5).sum() == 100
    if alpha > 1:
        assert np.ptp(pair_counts(labels, dirichlet(labels, 5, alpha, seed=0), 5, 5)) <= 2


def test_more_classes_and_clients_than_most_data():
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 1204)
    labels = rng.choice(1203, 120_000, p=weights / weights.sum())
    clients = inner_dirichlet(labels, 9275, 0.1, seed=0)
    assert np.ptp(np.bincount(clients, minlength=9275)) <= 1


def test_partition_sizes():
    labels = np.repeat(np.arange(3), 10)
    with pytest.warns(UserWarning, match="on no client: 5 of 30 examples, with all examples of 0 classes"):
        clients = inner_dirichlet(labels, 4, 1.0, partition_sizes=[0, 5, 20, 0], seed=0)
    assert np.bincount(clients[clients >= 0], minlength=4).tolist() == [0, 5, 20, 0]
    assert (clients == -1).sum() == 5
    with pytest.warns(UserWarning, match="30 of 30 examples, with all examples of 3 classes"):
        none = inner_dirichlet(labels, 2, 1.0, partition_sizes=[0, 0], filling="interleaved", seed=0)
    assert (none == -1).all()
    for sizes, error, message in [
        ([10, 10], ValueError, r"partition_sizes: expected shape \[num_partitions\] = \[4\], got \[2\]"),
        (
            [10, 10, 10, 1],
            ValueError,
            "partition_sizes: expected at most the 30 examples in all, got 31",
        ),
        ([2**62] * 4, ValueError, f"got {2**64}"),
        ([1, 1, 1, -1], ValueError, "partition_sizes: expected integers of at least 0, got -1 at row 3"),
        ([1.0, 1.0, 1.0, 1.0], TypeError, "partition_sizes: expected integers"),
    ]:
        with pytest.raises(error, match=message):
            inner_dirichlet(labels, 4, 1.0, partition_sizes=sizes, seed=0)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    alpha=st.floats(1e-6, 1e6),
    num_partitions=st.integers(1, 30),
    self_balancing=st.booleans(),
    filling=st.sampled_from(["sequential", "interleaved"]),
)
def test_all_settings_assign_all(counts, alpha, num_partitions, self_balancing, filling):
    labels = np.repeat(np.arange(len(counts)), counts)
    num_partitions = min(num_partitions, labels.size)
    inner = inner_dirichlet(labels, num_partitions, alpha, filling=filling, seed=0)
    outer = dirichlet(labels, num_partitions, alpha, self_balancing=self_balancing, seed=0)
    assert np.ptp(np.bincount(inner, minlength=num_partitions)) <= 1
    assert outer.min() >= 0
    assert outer.max() < num_partitions


def test_dirichlet_has_beta_marginals():
    num_clients, size, alpha, num_classes = 8, 300, 0.5, 400
    labels = np.repeat(np.arange(num_classes), size)
    shares = (
        pair_counts(labels, dirichlet(labels, num_clients, alpha, seed=0), num_clients, num_classes) / size
    )
    np.testing.assert_allclose(shares.sum(0), 1)
    # Beta(α, α(K-1)); the classes are independent draws. Rounding adds at most 1/(4·300²) to the variance.
    mean = 1 / num_clients
    variance = mean * (1 - mean) / (1 + alpha * num_clients)
    z = (shares.mean(1) - mean) / np.sqrt(variance / num_classes)
    assert np.abs(z).max() < 4  # the last client too, to whom plain floors give more
    assert shares.var(1).mean() == pytest.approx(variance, rel=0.1)


def test_rounding_favours_no_client():
    # 3 examples of each class on 10 equal clients: plain floors would give the last one 1 of each class.
    labels = np.repeat(np.arange(2000), 3)
    sizes = np.bincount(dirichlet(labels, 10, 1e9, seed=0), minlength=10)
    z = (sizes - 600) / np.sqrt(2000 * 0.3 * 0.7)
    assert np.abs(z).max() < 4


def test_self_balancing_evens_sizes_out():
    labels = np.repeat(np.arange(50), 100)
    plain, balanced = (
        np.bincount(dirichlet(labels, 20, 0.1, self_balancing=balance, seed=0), minlength=20)
        for balance in (False, True)
    )
    assert balanced.std() < plain.std() / 2
    # Nobody above n/K = 250 gets more: at most one class beyond.
    assert balanced.max() <= 250 + 100


def test_min_partition_size():
    labels = np.repeat(np.arange(10), 50)
    clients = dirichlet(labels, 10, 1.0, min_partition_size=20, max_attempts=100, seed=0)
    assert np.bincount(clients, minlength=10).min() >= 20
    with pytest.raises(ValueError, match=r"min_partition_size = 45 was not met in max_attempts = 3 draws"):
        dirichlet(labels, 10, 0.1, min_partition_size=45, max_attempts=3, seed=0)
    with pytest.raises(
        ValueError, match=r"min_partition_size: expected at most n / num_partitions = 50, got 51"
    ):
        dirichlet(labels, 10, 1.0, min_partition_size=51, seed=0)
    with pytest.raises(ValueError, match="max_attempts: expected an integer of at least 1, got 0"):
        dirichlet(labels, 10, 1.0, max_attempts=0, seed=0)


def test_a_concentration_for_each_client():
    """Client k has α_k/Σα of each class on average; equal α are the one number, draw for draw."""
    labels = np.repeat(np.arange(300), 40)
    clients = dirichlet(labels, 3, [4.0, 1.0, 3.0], seed=0)
    np.testing.assert_allclose(np.bincount(clients) / labels.size, [0.5, 0.125, 0.375], atol=0.03)
    same = dirichlet(labels, 3, 0.5, self_balancing=True, seed=1)
    np.testing.assert_array_equal(same, dirichlet(labels, 3, np.full(3, 0.5), self_balancing=True, seed=1))
    with pytest.raises(ValueError, match=r"alpha: expected a number, or \[num_partitions\] = \[3\] of them"):
        dirichlet(labels, 3, [1.0, 2.0], seed=0)
    with pytest.raises(ValueError, match="alpha: expected a finite number above 0"):
        dirichlet(labels, 2, [1.0, 0.0], seed=0)
