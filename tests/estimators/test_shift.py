"""Client shift: the bias of FedCOF's estimate, and the level and power of the test for it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32

import covfree
from covfree.estimators.shift import shift_bias, shift_test
from covfree.testing import shifted_clients

BOUND = 4.5


# The bias

COUNTS = np.array([30, 0, 8, 1, 3])


@pytest.mark.parametrize("num_subsets", [1, 3, None])
def test_the_bias_is_the_oracles(precision, num_subsets):
    means = np.random.default_rng(0).normal(size=(5, 3)) + 50.0
    middle = (COUNTS[:, None] * means).sum(0) / COUNTS.sum()
    expected, rows = np.zeros((3, 3)), 0
    for m, n in zip(means, COUNTS, strict=True):
        expected += n * np.outer(m - middle, m - middle)
        rows += 0 if n == 0 else max(1, min(num_subsets or n, n // 2))
    means[1] = np.nan
    actual = shift_bias(precision.array(means), precision.array(COUNTS), num_subsets=num_subsets)
    precision.assert_close(actual, expected / (rows - 1))


def test_the_bias_is_what_the_estimate_is_off_by():
    """Means and covariances are the clients' own, and so are both terms of the bias."""
    clients = shifted_clients(COUNTS[:, None], 2, mean_shift=0.5, covariance_shift=2.0)
    owners, share = np.repeat(np.arange(5), COUNTS), COUNTS / COUNTS.sum()
    means, covariances = (jnp.asarray(each[:, 0], jnp.float32) for each in clients[:2])
    roots = jnp.asarray(np.linalg.cholesky(clients.covariances[:, 0]), jnp.float32)

    def one(key):
        noise, deal = jax.random.split(key)
        z = jax.random.normal(noise, (len(owners), 2))
        features = jnp.einsum("nij,nj->ni", roots[owners], z) + means[owners]
        rows = covfree.client_rows(features, 0 * owners, owners, num_rows=16, num_subsets=3, key=deal)
        return covfree.estimate_covariance(rows.mean, rows.count)

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000)), np.float64)
    found = draws.mean(0) - np.einsum("k,kij->ij", share, clients.covariances[:, 0])
    bias = shift_bias(means, jnp.asarray(COUNTS), covariances, num_subsets=3)
    of_means = shift_bias(means, jnp.asarray(COUNTS), num_subsets=3)
    error = draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(found - bias) / error).max() < BOUND
    for part in (of_means, bias - of_means):
        assert (np.abs(found - part) / error).max() > 2 * BOUND


def test_covariances_add_their_own_term_of_equation_22(precision):
    clients = shifted_clients(COUNTS[:, None], 3)
    means, covariances = clients.means[:, 0], clients.covariances[:, 0].copy()
    average = np.einsum("k,kij->ij", COUNTS / COUNTS.sum(), covariances)
    expected = sum(each - average for each, n in zip(covariances, COUNTS, strict=True) if n) / 3
    covariances[1] = np.nan
    of_means = shift_bias(precision.array(means), precision.array(COUNTS))
    whole = shift_bias(*map(precision.array, (means, COUNTS, covariances)))
    precision.assert_close(whole - of_means, expected)
    shared = precision.array(np.broadcast_to(average, covariances.shape))
    precision.assert_close(shift_bias(precision.array(means), precision.array(COUNTS), shared), of_means)
    with pytest.raises(ValueError, match=r"covariances: expected \[5, 3, 3\], .* got \[5, 3\]"):
        shift_bias(means, COUNTS, means)


def test_generated_examples_have_the_clients_moments():
    clients = shifted_clients(np.array([[3000, 0], [0, 5000]]), 2, covariance_shift=1.0)
    features, labels, owners = clients.draw(0)
    for k in range(2):
        own = features[(owners == k) & (labels == k)]
        assert len(own) == clients.counts[k, k] == (owners == k).sum()
        np.testing.assert_allclose(own.mean(0), clients.means[k, k], atol=0.1)
        np.testing.assert_allclose(np.cov(own.T), clients.covariances[k, k], rtol=0.15, atol=0.1)
    still = shifted_clients(np.ones((3, 2), int), 2, mean_shift=0.0, covariance_shift=0.0)
    np.testing.assert_allclose(still.means, still.means[:1].repeat(3, 0))
    np.testing.assert_allclose(still.covariances, still.covariances[:1].repeat(3, 0))


def test_one_row_has_no_bias():
    np.testing.assert_array_equal(shift_bias(jnp.ones((1, 2)), jnp.array([4])), 0)


# The test

CLIENTS, CLASSES, DIM, DRAWS = 12, 3, 8, 500
# Classes of other scales, and features of unequal spread.
SCALES = np.array([0.5, 1.0, 2.0])[:, None] * np.array([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5])
UNEQUAL = np.exp(np.random.default_rng(0).uniform(np.log(2), np.log(200), (CLIENTS, CLASSES))).astype(int)
EQUAL = np.full((CLIENTS, CLASSES), 20)


@partial(jax.jit, static_argnames="num_subsets")
def table(key, counts, num_subsets, shift):
    """Class means of Gaussian features; clients' means differ by ``shift`` standard deviations."""
    noise, move = jax.random.split(key)
    shape = (CLIENTS, CLASSES, num_subsets, DIM)
    mean = jax.random.normal(noise, shape) / jnp.sqrt(jnp.asarray(counts, jnp.float32))[:, :, None, None]
    mean = mean + shift * jax.random.normal(move, (CLIENTS, CLASSES, 1, DIM))
    mean = 5.0 + mean * jnp.asarray(SCALES, jnp.float32)[None, :, None, :]
    client, label, _ = np.indices(shape[:3])
    count = jnp.broadcast_to(jnp.asarray(counts)[:, :, None], shape[:3])
    return covfree.Rows(mean.reshape(-1, DIM), *(jnp.asarray(x.reshape(-1)) for x in (count, label, client)))


@partial(jax.jit, static_argnames="num_subsets")
def simulate(counts, num_subsets, shift):
    """The test's fields over DRAWS federations."""
    keys = jax.random.split(jax.random.key(7), DRAWS)
    return jax.vmap(lambda key: tuple(shift_test(table(key, counts, num_subsets, shift), CLASSES)))(keys)


SHIFTED = 0.3
CASES = {"slope": (UNEQUAL, 1), "ratio": (UNEQUAL, 2), "ratio of equal counts": (EQUAL, 2)}


@pytest.mark.parametrize("case", list(CASES))
def test_the_level_and_the_power(case):
    counts, num_subsets = CASES[case]
    z, p, relative, informative = (np.asarray(x, np.float64) for x in simulate(counts, num_subsets, 0.0))
    assert informative.all()
    # A level of 0.05 in 500 draws has a standard error of 0.0097.
    assert 0.02 < (p < 0.05).mean() < 0.08
    assert abs(z.mean()) < 0.15
    assert 0.9 < z.std() < 1.1
    assert abs(np.median(relative)) < 0.05
    z, p, relative, _ = (np.asarray(x, np.float64) for x in simulate(counts, num_subsets, SHIFTED))
    assert (p < 0.05).mean() > 0.95
    # What client shift adds to eq. 5, over what it should be: Σ_c n_k ‖m_k − m‖² is shift² tr Σ (N − Σ n²/N).
    weight = (SCALES**2).sum(1)
    spread = counts.sum(0) - (counts**2).sum(0) / counts.sum(0)
    expected = (
        SHIFTED**2 * num_subsets * (weight * spread).sum() / (weight.sum() * (num_subsets * CLIENTS - 1))
    )
    # With one mean a client it hangs on where a line cuts the axis, and only its order of size can be told.
    factor = 1.1 if num_subsets > 1 else 2.0
    assert expected / factor < np.median(relative) < expected * factor


def test_equal_counts_of_one_mean_tell_nothing():
    z, p, relative, informative = simulate(EQUAL, 1, SHIFTED)
    assert not informative.any()
    for value in (z, p, relative):
        assert np.isnan(value).all()


compiled = jax.jit(shift_test, static_argnames="num_classes")


def padded(precision=FLOAT32, fill=np.nan):
    """Two means of each client and class, and padding of every kind."""
    rows = table(jax.random.key(0), UNEQUAL, 2, 0.2)
    parts = [np.asarray(x) for x in (rows.mean, rows.count, rows.label, rows.client)]
    extra = [np.full((3, DIM), fill), [0, 3, 3], [0, -1, CLASSES], [0, 1, 1]]
    return covfree.Rows(*(precision.array(np.concatenate(x)) for x in zip(parts, extra, strict=True)))


def test_padding_and_the_order_of_rows_change_nothing(precision):
    rows = padded(precision)
    expected = compiled(padded(precision, 0.0), CLASSES)
    order = np.random.default_rng(0).permutation(len(rows.count))
    actual = compiled(jax.tree.map(lambda x: x[order], rows), CLASSES)
    assert bool(actual.informative)
    for one, other in zip(actual[:3], expected[:3], strict=True):
        precision.assert_close(one, other, 10)
    # The ratio of variances, with plain loops: what it says of eq. 5 on these rows.
    mean, count, label, client = (
        np.asarray(x, np.float64) for x in (rows.mean, rows.count, rows.label, rows.client)
    )
    excess = observed = 0.0
    for c in range(CLASSES):
        between = within = 0.0
        mine = label == c
        centre = (count[mine, None] * mean[mine]).sum(0) / count[mine].sum()
        for k in range(CLIENTS):
            own = mine & (client == k)
            middle = (count[own, None] * mean[own]).sum(0) / count[own].sum()
            between += count[own].sum() * ((middle - centre) ** 2).sum()
            within += sum(n * ((x - middle) ** 2).sum() for x, n in zip(mean[own], count[own], strict=True))
        level = within / CLIENTS
        excess += between - (CLIENTS - 1) * level
        observed += (2 * CLIENTS - 1) * level
    precision.assert_close(expected.relative_shift, excess / observed, 10)


def test_rows_without_clients_are_tested_by_their_slope():
    rows = padded()
    slope = compiled(replace(rows, client=jnp.arange(len(rows.count))), CLASSES)
    assert bool(slope.informative)
    for one, other in zip(compiled(replace(rows, client=None), CLASSES), slope, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_too_little_to_tell():
    rows = padded()
    place = jnp.arange(len(rows.count))
    one_client = replace(rows, count=jnp.where(rows.client == 0, rows.count, 0))
    # Two clients of one mean each.
    two_means = replace(rows, client=place, count=jnp.where(place % 72 < 2, rows.count, 0))
    for few in (one_client, two_means):
        test = compiled(few, CLASSES)
        assert not test.informative
        assert np.isnan(np.asarray(test[:3])).all()


def test_a_scale_changes_nothing():
    rows = padded()
    expected = compiled(rows, CLASSES)
    for scale in (1e-3, 2.0**34, 2.0**-34):
        found = compiled(replace(rows, mean=scale * rows.mean), CLASSES)
        FLOAT32.assert_close(found.statistic, expected.statistic)
        FLOAT32.assert_close(found.relative_shift, expected.relative_shift)
    assert expected.p_value < 0.05
