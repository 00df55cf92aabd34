"""The scatter of each class by itself, and of what clients sent of it."""

from dataclasses import replace

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, ALONE, CLASSES, DIM
from precision import FLOAT32, PRECISIONS, assert_close, x64

import covfree
from covfree.estimators.class_scatter import class_squares, row_scatter
from covfree.estimators.moments import example_moments

FLOAT64 = PRECISIONS["float64"]
FEDERATION = federations.make(0)
CLEAN = FEDERATION.clean


@jax.jit
def scatters_of(rows, moments):
    return covfree.estimators.class_scatters(rows, moments)


squares_of = jax.jit(class_squares)
first_moments = jax.jit(covfree.first_moments, static_argnums=1)
within_scatter = jax.jit(covfree.within_scatter)
estimate_covariances = jax.jit(covfree.estimate_covariances, static_argnums=1)
example_moments_of = jax.jit(example_moments, static_argnums=1)
row_scatter_of = jax.jit(row_scatter, static_argnums=1)


def examples(precision, federation=FEDERATION):
    labels = np.where(federation.kept, federation.labels, -1)
    return covfree.Rows.from_examples(precision.array(federation.features), precision.array(labels))


def sent(precision, structure):
    """Class means of each client with what is sent of their covariances, padded with NaN."""
    parts = oracle.client_covariances(*CLEAN, CLASSES)
    table = [(x, n, c, s) for c in range(CLASSES) for x, n, s in parts[c]]
    table += [(np.full(DIM, np.nan), n, y, np.full((DIM, DIM), np.nan)) for n, y in [(0, 1), (4, -1)]]
    mean, count, label, covariance = (np.stack([np.asarray(r[i]) for r in table]) for i in range(4))
    covariance[count == 1] = np.nan  # undefined: it must not be looked at
    if structure != "full":
        covariance = np.diagonal(covariance, axis1=1, axis2=2)
    if structure == "spherical":
        covariance = covariance.mean(1)
    return covfree.Rows(*map(precision.array, (mean, count, label)), covariance=precision.array(covariance))


def exact():
    return np.stack(
        [
            oracle.exact_within_scatter(CLEAN.features, np.where(CLEAN.labels == c, c, -1), CLASSES)
            for c in range(CLASSES)
        ]
    )


def test_scatters_of_examples_are_those_of_the_classes(precision):
    rows = examples(precision)
    moments = first_moments(rows, CLASSES)
    scatters = scatters_of(rows, moments)
    precision.assert_close(scatters, exact())
    np.testing.assert_array_equal(scatters[ABSENT], 0)
    precision.assert_close(squares_of(rows, moments), np.diagonal(exact(), axis1=1, axis2=2))
    precision.assert_close(scatters.sum(0), within_scatter(rows, moments))


def test_scatters_of_means_with_covariances_are_those_of_the_examples(precision):
    rows = sent(precision, "full")
    precision.assert_close(scatters_of(rows, example_moments_of(rows, CLASSES)), exact())
    rows = sent(precision, "diagonal")
    moments = example_moments_of(rows, CLASSES)
    np.testing.assert_array_equal(moments.num_rows, moments.count)
    precision.assert_close(squares_of(rows, moments), np.diagonal(exact(), axis1=1, axis2=2))


def test_scatters_of_means_alone_are_fedcofs():
    precision = FLOAT32
    rows = replace(sent(precision, "full"), covariance=None)
    moments = first_moments(rows, CLASSES)
    scatters = scatters_of(rows, moments)
    expected = estimate_covariances(rows, CLASSES)
    degrees = np.maximum(np.asarray(moments.num_rows) - 1, 1)[:, None, None]
    precision.assert_close(scatters / degrees, expected)
    np.testing.assert_array_equal(scatters[ALONE], 0)  # one mean shows no spread


@pytest.mark.parametrize("structure", ["full", "diagonal", "spherical"])
def test_what_was_sent_is_summed_in_its_structure(structure):
    with x64():
        rows = sent(FLOAT64, structure)
        actual = row_scatter_of(rows, CLASSES)
    total = 0.0
    for parts in oracle.client_covariances(*CLEAN, CLASSES):
        for _, n, s in parts:
            total = total + (n - 1) * s
    expected = {"full": total, "diagonal": np.diag(total), "spherical": np.trace(total) / DIM}[structure]
    assert actual.shape == rows.covariance.shape[1:]
    FLOAT64.assert_close(actual, expected)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_classes_of_many_rows(offset):
    # More than one block of rows each, of sizes at and beside the block's; far from zero too.
    sizes = [63, 64, 65, 0, 200, 1]
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(6), sizes))
    features = (rng.normal(size=(len(labels), 3)) + offset).astype(np.float32)
    rows = covfree.Rows.from_examples(jnp.asarray(features), jnp.asarray(labels))
    scatters = scatters_of(rows, first_moments(rows, 6))
    for c, size in enumerate(sizes):
        mine = features[labels == c].astype(np.float64)
        expected = (size - 1) * np.cov(mine, rowvar=False) if size > 1 else np.zeros((3, 3))
        assert_close(scatters[c], expected, 2e-3 if offset else 1e-4)


def test_terms_of_a_split_add_up_and_padding_changes_nothing():
    rows = sent(FLOAT32, "full")
    moments = example_moments_of(rows, CLASSES)
    whole = scatters_of(rows, moments)
    half = np.arange(len(rows.count)) % 3 == 0
    parts = [replace(rows, count=jnp.where(half == side, rows.count, 0)) for side in (True, False)]
    assert_close(sum(scatters_of(part, moments) for part in parts), whole, 1e-5)
    valid = np.asarray((rows.count > 0) & (rows.label >= 0))
    other = replace(
        rows,
        mean=jnp.where(valid[:, None], rows.mean, jnp.inf),
        label=jnp.where(valid, rows.label, CLASSES),
        covariance=jnp.where(valid[:, None, None], rows.covariance, -jnp.inf),
    )
    np.testing.assert_array_equal(scatters_of(other, moments), whole)


def test_gradients():
    with x64():
        rows = sent(FLOAT64, "full")
        valid = np.asarray((rows.count > 0) & (rows.label >= 0))
        weights = jnp.cos(jnp.arange(float(CLASSES * DIM * DIM))).reshape(CLASSES, DIM, DIM)

        @jax.jit
        @jax.value_and_grad
        def loss(given):
            some = replace(rows, mean=given[0], covariance=given[1])
            moments = first_moments(some, CLASSES)
            return jnp.sum(covfree.estimators.class_scatters(some, moments) * weights)

        given = (rows.mean, rows.covariance)
        _, slopes = loss(given)
        rng = np.random.default_rng(0)
        steps = [1e-5 * rng.normal(size=x.shape) for x in given]
        up, down = (loss(tuple(x + s * d for x, d in zip(given, steps, strict=True)))[0] for s in (1, -1))
        expected = sum(float((s * d).sum()) for s, d in zip(slopes, steps, strict=True))
        assert float(up - down) / 2 == pytest.approx(expected, rel=1e-6)
        # Padding, and a covariance of one example, may be NaN: they have no derivative.
        assert all(np.isfinite(s).all() for s in slopes)
        np.testing.assert_array_equal(slopes[0][~valid], 0)
        np.testing.assert_array_equal(slopes[1][~(valid & (rows.count > 1))], 0)
