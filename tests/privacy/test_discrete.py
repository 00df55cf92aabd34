"""The discrete Gaussian against its definition."""

import numpy as np
import pytest

from covfree.privacy import discrete
from covfree.privacy.discrete import discrete_gaussian, summed_discrete_gaussians


def seeded(seed=0):
    return np.random.default_rng(seed).bytes


def test_small_deviation_has_the_probabilities_of_the_definition():
    drawn = discrete_gaussian(1, 400_000, seeded())
    values = np.arange(-9, 10)
    law = np.exp(-(values**2) / 8.0)
    law /= np.exp(-(np.arange(-60, 61) ** 2) / 8.0).sum()
    observed = np.array([(drawn == value).mean() for value in values])
    z = (observed - law) / np.sqrt(law * (1 - law) / drawn.size)
    assert np.abs(z).max() < 4.5
    # A Laplace of the same variance, or half the variance, would be far outside.
    assert np.abs((observed - np.roll(law, 1)) / np.sqrt(law / drawn.size)).max() > 50


@pytest.mark.parametrize("log", [4, 16, 22, 24])
def test_large_deviations_have_the_moments_of_a_gaussian(log):
    scaled = discrete_gaussian(log, 100_000, seeded(log)) / 2.0**log
    root = np.sqrt(scaled.size)
    assert abs(scaled.mean()) * root < 4.5
    assert abs((scaled**2).mean() - 1) / np.sqrt(2) * root < 4.5
    assert abs((scaled**4).mean() - 3) / np.sqrt(96) * root < 4.5


def test_sum_of_many_is_drawn_as_few_with_the_same_law():
    terms = 27
    near, single = (
        summed_discrete_gaussians(1, terms, 40_000, seeded()),
        sum(discrete_gaussian(1, 40_000, seeded(1 + k)) for k in range(terms)),
    )
    for total in (near, single):
        scaled = total / np.sqrt(4.0 * terms)
        assert abs((scaled**2).mean() - 1) / np.sqrt(2) * 200 < 4.5
        assert abs((scaled**4).mean() - 3) / np.sqrt(96) * 200 < 4.5
    assert set(near[:1000] % 2) == {0, 1}


def test_sum_past_the_largest_deviation_is_drawn_one_by_one():
    scaled = summed_discrete_gaussians(24, 9, 20_000, seeded()) / (3 * 2.0**24)
    assert abs((scaled**2).mean() - 1) / np.sqrt(2) * np.sqrt(20_000) < 4.5


def test_uniform_integers_below_a_bound_are_uniform():
    bound = np.full(300_000, 3, np.int64)
    shares = np.bincount(discrete._below(bound, seeded())) / bound.size
    assert np.abs(shares - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / bound.size)
    # More than half of the words are past the last multiple of such a bound.
    large = np.full(2000, 2**62 + 1, np.int64)
    drawn = discrete._below(large, seeded())
    assert (drawn < large).all()
    assert abs(drawn.mean() / 2.0**62 - 0.5) < 0.03


def test_noise_is_of_the_operating_system_unless_told():
    assert not np.array_equal(discrete_gaussian(20, 10), discrete_gaussian(20, 10))
    assert np.array_equal(discrete_gaussian(20, 10, seeded()), discrete_gaussian(20, 10, seeded()))


@pytest.mark.parametrize("log", [0, 25])
def test_deviations_out_of_range_are_refused(log):
    with pytest.raises(ValueError, match="log_deviation: expected 1 to 24"):
        discrete_gaussian(log, 3)
