"""Counts of any size that float32 holds: what they are multiplied by cancels, or is known."""

import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.core.sums import sum_integers

RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(6, 3)).astype(np.float32)
COUNTS = np.array([3, 1, 2, 2, 5, 1])
# Beyond int32: their sum, each of them, and their product with the means.
UNITS = {"sums": 10**9 // 3, "each": 3 * 10**9, "far": 10**17}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_unit_of_all_counts_scales_the_estimates(unit):
    """Σ̂ is linear in the counts; shares of means do not change."""
    small, large = COUNTS.astype(np.int32), COUNTS * unit
    np.testing.assert_allclose(
        covfree.estimate_covariance(MEANS, large) / np.float32(unit),
        covfree.estimate_covariance(MEANS, small),
        rtol=1e-5,
        atol=1e-7,
    )
    label = np.array([0, 0, 0, 1, 1, 1])
    few, many = (covfree.first_moments(covfree.Rows(MEANS, count, label), 2) for count in (small, large))
    np.testing.assert_allclose(many.count, few.count * np.float32(unit), rtol=1e-6)
    np.testing.assert_allclose(many.mean, few.mean, rtol=1e-5, atol=1e-7)
    covariances = np.broadcast_to(np.eye(3, dtype=np.float32), (6, 3, 3))
    pooled = covfree.aggregate_covariances(MEANS, large, covariances)
    centred = MEANS - COUNTS @ MEANS / COUNTS.sum()
    between = (centred.T * COUNTS) @ centred / COUNTS.sum()
    np.testing.assert_allclose(pooled, np.eye(3) + between, rtol=1e-5, atol=1e-6)


def test_many_rows_whose_sum_leaves_int32():
    means, counts = RNG.normal(size=(5000, 2)).astype(np.float32), np.full(5000, 10**6, np.int32)
    rows = covfree.Rows(means, counts, np.zeros(5000, np.int32))
    assert covfree.first_moments(rows, 1).count[0] == np.float32(5e9)
    np.testing.assert_allclose(
        covfree.estimate_covariance(means, counts), 1e6 * np.cov(means, rowvar=False), rtol=1e-4, atol=1
    )


@pytest.mark.slow
def test_sums_of_integers_are_rounded_once():
    """Where a running sum of floats stands still, or one of integers has wrapped."""
    ones = jnp.ones(2**25 + 3, jnp.int32)
    assert sum_integers(ones, jnp.zeros_like(ones), 1)[0] == 2**25 + 4
    values = RNG.integers(0, 2**31 - 1, 3000)
    group = RNG.integers(0, 3, 3000)
    found = sum_integers(jnp.asarray(values, jnp.int32), jnp.asarray(group, jnp.int32), 3)
    expected = [values[group == g].sum() for g in range(3)]
    np.testing.assert_allclose(found, expected, rtol=2.0**-22)
