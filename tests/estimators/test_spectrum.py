"""The spectra of the scatter within classes and between them."""

import federations
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import CLASSES, DIM
from precision import FLOAT32

import covfree

FEDERATION = federations.make(0)


def rank_and_condition(values):
    kept = values[values > 1e-5 * values[0]]
    return len(kept), kept[0] / kept[-1]


@pytest.mark.parametrize("weighting", ["per_class", "pooled"])
def test_spectra_equal_those_of_the_oracle(precision, weighting):
    table = oracle.client_rows(*FEDERATION)
    rows = federations.rows(FEDERATION, precision, table, padding=48 - len(table))
    spectra = covfree.scatter_spectra(rows, CLASSES, weighting=weighting)
    within = oracle.within_scatter(table, CLASSES, weighting)
    between = oracle.between_scatter(table, CLASSES)
    for spectrum, matrix in zip(spectra, (within, between, within + between), strict=True):
        expected = np.linalg.eigvalsh(matrix)[::-1]
        precision.assert_close(spectrum.values, np.where(expected > 1e-5 * expected[0], expected, 0))
        rank, condition = rank_and_condition(expected)
        assert spectrum.rank == rank
        assert float(spectrum.condition) == pytest.approx(condition, rel=100 * precision.tolerance)


def test_few_classes_span_few_directions():
    # Two classes: one direction between them. It is that of the largest spread in all, and the condition
    # number of the sum shows it.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    features = rng.normal(size=(60, DIM)) + 20 * labels[:, None] * np.eye(DIM)[0]
    rows = covfree.Rows.from_examples(FLOAT32.array(features), FLOAT32.array(labels))
    within, between, both = covfree.scatter_spectra(rows, 2)
    assert between.rank == 1
    assert between.condition == 1
    np.testing.assert_array_equal(between.values[1:], 0)
    assert within.rank == both.rank == DIM
    assert both.condition > 20 * within.condition
    # By Weyl's inequality, adding what is positive lowers no eigenvalue.
    assert (np.asarray(both.values) >= 0.999 * np.asarray(within.values)).all()


def test_fewer_rows_than_dimensions():
    rng = np.random.default_rng(1)
    rows = covfree.Rows.from_examples(FLOAT32.array(rng.normal(size=(6, 20))), jnp.array([0, 0, 0, 1, 1, 1]))
    within, between, both = covfree.scatter_spectra(rows, 2)
    # A degree of freedom goes with each class mean.
    assert (within.rank, between.rank, both.rank) == (4, 1, 5)
    assert (np.asarray(both.values)[5:] == 0).all()


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_see(count):
    # No row at all, or equal ones: no eigenvalue, and nothing that is NaN.
    rows = covfree.Rows(jnp.full((4, 3), 2.0), jnp.full(4, count), jnp.array([0, 0, 1, 1]))
    for spectrum in covfree.scatter_spectra(rows, 2):
        np.testing.assert_array_equal(spectrum.values, 0)
        assert spectrum.rank == 0
        assert spectrum.condition == 1
