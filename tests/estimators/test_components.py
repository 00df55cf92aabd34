"""Variance components: the oracle's values, and no bias where clients' means differ."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32

import covfree
from covfree.estimators.components import component_factor, component_freedom, component_moments

DRAWS, DIM, CLASSES, BOUND = 4000, 3, 4, 4.5
# Class 0 at three clients, class 1 at two, class 2 at one client with one row, class 3 at nobody.
CLIENT = np.array([5, 5, 5, 2, 2, 9, 5, 2, 2, 9])
LABEL = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
COUNT = np.array([4, 5, 4, 7, 6, 3, 9, 2, 3, 6])
# Another order of rows, padding of every kind, and two rows of unknown clients.
MIXED = np.random.default_rng(1).permutation(len(LABEL))
WEIGHTINGS = ["per_class", "pooled"]


def table(precision, seed=0, order=MIXED, padding=True):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(len(LABEL), DIM)) + 3.0 * LABEL[:, None] + rng.normal(size=(10, DIM))[CLIENT]
    parts = [mean[order], COUNT[order], LABEL[order], CLIENT[order]]
    extra = [np.full((3, DIM), np.nan), [0, 4, 4], [1, -1, CLASSES], [5, 5, 5]]
    parts = [np.concatenate([x, y]) if padding else x for x, y in zip(parts, extra, strict=True)]
    return covfree.Rows(*(precision.array(x) for x in parts))


def oracle(rows, weighting):
    """Ŵ and the degrees Σ_k (m_kc − 1), with plain loops; a client below 0 owns one row."""
    items = [
        (np.float64(x), int(n), int(c), int(k) if k >= 0 else f"row {r}")
        for r, (x, n, c, k) in enumerate(
            zip(*map(np.asarray, (rows.mean, rows.count, rows.label, rows.client)), strict=True)
        )
        if n > 0 and 0 <= c < CLASSES
    ]
    seen, inner, hidden, degrees = (
        np.zeros((DIM, DIM)),
        np.zeros((CLASSES, DIM, DIM)),
        np.zeros(CLASSES),
        np.zeros(CLASSES, int),
    )
    for c in range(CLASSES):
        mine = [item for item in items if item[2] == c]
        total = sum(n for _, n, _, _ in mine)
        centre = sum(n * x for x, n, _, _ in mine) / max(total, 1)
        for x, n, _, _ in mine:
            seen += n * np.outer(x - centre, x - centre)
        hidden[c] = total - len(mine)
        for client in {k for _, _, _, k in mine}:
            own = [(x, n) for x, n, _, k in mine if k == client]
            middle = sum(n * x for x, n in own) / sum(n for _, n in own)
            degrees[c] += len(own) - 1
            for x, n in own:
                inner[c] += n * np.outer(x - middle, x - middle)
    result = seen
    for c in range(CLASSES):
        if weighting == "pooled":
            result = result + hidden.sum() / degrees.sum() * inner[c]
        elif degrees[c] > 0:
            result = result + hidden[c] / degrees[c] * inner[c]
    return result, degrees


@jax.jit
def both(rows):
    totals = component_moments(rows, CLASSES)
    return {
        weighting: component_factor(rows, totals, weighting=weighting) for weighting in WEIGHTINGS
    }, totals


def run(rows, weighting="per_class"):
    factors, totals = both(rows)
    return factors[weighting], totals


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_scatter_is_the_oracles(precision, weighting):
    rows = table(precision)
    factor, totals = run(rows, weighting)
    expected, degrees = oracle(rows, weighting)
    assert factor.shape == rows.mean.shape
    precision.assert_close(factor.T @ factor, expected)
    np.testing.assert_array_equal(totals.degrees, degrees)
    np.testing.assert_array_equal(totals.clients, [3, 2, 1, 0])
    np.testing.assert_array_equal(np.asarray(factor)[len(LABEL) :], 0)


def test_unknown_clients_are_groups_of_their_own():
    rows = table(FLOAT32)
    client = jnp.where(jnp.arange(len(rows.count)) < 3, -1, rows.client)
    rows = covfree.Rows(rows.mean, rows.count, rows.label, client)
    factor, totals = run(rows)
    expected, degrees = oracle(rows, "per_class")
    np.testing.assert_array_equal(totals.degrees, degrees)
    FLOAT32.assert_close(factor.T @ factor, expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_parts_that_keep_clients_together_add_up(weighting):
    whole = table(FLOAT32)
    parts = [replace(whole, count=jnp.where(whole.client == k, whole.count, 0)) for k in (2, 5, 9)]
    factor, totals = run(whole, weighting)
    summed = jax.tree.map(lambda *x: sum(x), *(run(part, weighting)[1] for part in parts))
    np.testing.assert_array_equal(summed.degrees, totals.degrees)
    second = jax.jit(component_factor, static_argnames="weighting")
    factors = [second(part, summed, weighting=weighting) for part in parts]
    FLOAT32.assert_close(sum(y.T @ y for y in factors), factor.T @ factor)


def test_one_row_a_client_shows_nothing_hidden():
    rows = table(FLOAT32)
    rows = replace(rows, client=jnp.arange(len(rows.count)))
    for weighting in WEIGHTINGS:
        factor, totals = run(rows, weighting)
        np.testing.assert_array_equal(totals.degrees, 0)
        FLOAT32.assert_close(factor.T @ factor, oracle(rows, "per_class")[0])


def test_single_examples_hide_nothing():
    # The exact scatter, whoever holds them.
    rows = table(FLOAT32)
    rows = replace(rows, count=jnp.where(rows.count > 0, 1, 0))
    factor, totals = run(rows)
    FLOAT32.assert_close(factor.T @ factor, jax.jit(covfree.within_scatter)(rows, totals.moments))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_degrees_of_freedom_add_up(weighting):
    _, totals = run(table(FLOAT32), weighting)
    freedom = component_freedom(totals, weighting)
    # Every class adds its part of N − C = 46; class 2 shows nothing of its 6 − 1.
    np.testing.assert_allclose(freedom.expected, 46 - 5 * (weighting == "per_class"), rtol=1e-6)
    np.testing.assert_array_equal(freedom.degrees, [3, 1, 0, 0, 2, 1, 0, 0])


def test_padding_has_no_derivative():
    rows = table(FLOAT32)

    @jax.jit
    @jax.grad
    def slope(mean):
        changed = replace(rows, mean=mean)
        return jnp.square(component_factor(changed, component_moments(changed, CLASSES))).sum()

    derivative = np.asarray(slope(rows.mean))
    assert np.isfinite(derivative).all()
    np.testing.assert_array_equal(derivative[len(LABEL) :], 0)
    assert np.abs(derivative[: len(LABEL)]).max() > 1


def test_rows_must_say_whose_they_are():
    rows = covfree.Rows(jnp.ones((2, 1)), jnp.ones(2, int), jnp.zeros(2, int))
    with pytest.raises(ValueError, match="rows: expected rows with a client each"):
        component_moments(rows, 1)


def test_an_unknown_weighting_is_an_error(untyped):
    rows = table(FLOAT32)
    with pytest.raises(ValueError, match="weighting: expected one of"):
        component_factor(rows, run(rows)[1], weighting="equal")


# Expectation and variance, on Gaussian examples with client shift and fixed keys

OWNERS = np.repeat([0, 1, 2, 3], [12, 9, 14, 5])
OF_CLASS = np.arange(len(OWNERS)) % 2
ROOT = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 1.0, 2.0]])


@pytest.fixture(scope="module")
def draws():
    """Error of Ŵ about the very scatter of the examples: both weightings, eq. 5; N_c − M_c and ν_c."""
    shift = np.random.default_rng(0).normal(size=(4, 2, DIM))[OWNERS, OF_CLASS]

    def one(key):
        noise, deal = jax.random.split(key)
        features = jax.random.normal(noise, (len(OWNERS), DIM)) @ jnp.asarray(ROOT.T, jnp.float32)
        features = features + jnp.asarray(shift, jnp.float32)
        examples = covfree.Rows.from_examples(features, jnp.asarray(OF_CLASS))
        exact = covfree.within_scatter(examples, covfree.first_moments(examples, 2))
        rows = covfree.client_rows(features, OF_CLASS, OWNERS, num_rows=24, num_subsets=3, key=deal)
        totals = component_moments(rows, 2)
        factors = [component_factor(rows, totals, weighting=weighting) for weighting in WEIGHTINGS]
        eq5 = covfree.within_scatter(rows, totals.moments)
        degrees = totals.moments.count - totals.moments.num_rows, totals.degrees
        return [factor.T @ factor - exact for factor in factors], eq5 - exact, degrees

    (per_class, pooled), eq5, degrees = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), DRAWS))
    hidden, degrees = (np.asarray(x[0], np.float64) for x in degrees)
    return *(np.asarray(x, np.float64) for x in (per_class, pooled, eq5)), (hidden, degrees)


def worst_z(values, expected):
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.abs((values.mean(0) - expected) / error).max()


@pytest.mark.slow
def test_client_shift_gives_no_bias(draws):
    per_class, pooled, eq5, _ = draws
    assert worst_z(per_class, 0) < BOUND
    assert worst_z(pooled, 0) < BOUND
    assert worst_z(eq5, 0) > 10 * BOUND


def test_the_variance_is_as_the_theory_says(draws):
    # Of Ŵ about the examples' scatter, under any shift: (N_c − M_c)²/ν_c + (N_c − M_c) for each class.
    per_class, pooled, _, (hidden, degrees) = draws
    sigma = ROOT @ ROOT.T
    unit = np.outer(np.diag(sigma), np.diag(sigma)) + sigma**2
    assert worst_z(per_class**2, unit * (hidden**2 / degrees + hidden).sum()) < BOUND
    assert worst_z(pooled**2, unit * (hidden.sum() ** 2 / degrees.sum() + hidden.sum())) < BOUND
