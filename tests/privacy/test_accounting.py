"""What was spent, against the exact Gaussian mechanism and closed forms."""

import math

import pytest

from covfree.privacy import Promise, Release, spent
from covfree.privacy.accounting import rho_for

DELTA = 1e-6


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1.0, 4.22), (2.0, 2.23), (4.0, 1.19), (8.0, 0.65)])
def test_noise_multiplier_of_the_gaussian_is_the_analytic_one(epsilon, multiplier):
    rho = rho_for(epsilon, DELTA, real=True)
    assert 1 / math.sqrt(2 * rho) == pytest.approx(multiplier, abs=0.006)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0, 50.0])
def test_integers_cost_little_more_and_never_less_than_reals(epsilon):
    integers, reals = rho_for(epsilon, DELTA), rho_for(epsilon, DELTA, real=True)
    assert integers < reals < 1.35 * integers
    assert spent([Release("", integers)], DELTA) == pytest.approx(epsilon, rel=1e-6)
    # The conversion that is in every textbook: ε = ρ + 2√(ρ log 1/δ), which is looser.
    assert epsilon < integers + 2 * math.sqrt(integers * math.log(1 / DELTA))


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("delta", [0.5, 0.9, 0.99])
def test_with_a_large_delta_rho_may_exceed_epsilon(delta, real):
    rho = rho_for(1.0, delta, real=real)
    assert rho > 1.0
    assert spent([Release("", rho, real=real)], delta) == pytest.approx(1.0, rel=1e-6)


def test_a_delta_whose_reciprocal_is_no_float():
    integers, reals = (spent([Release("a", 100.0, real=real)], 1e-310) for real in (False, True))
    assert reals <= integers < 1.01 * reals


def test_releases_compose_as_one_of_the_sum_of_their_rho():
    parts = [Release("a", 0.01), Release("b", 0.03)]
    assert spent(parts, DELTA) == pytest.approx(spent([Release("both", 0.04)], DELTA))
    real = [Release("a", 0.01, real=True), Release("b", 0.03, real=True)]
    assert spent(real, DELTA) < spent([real[0], parts[1]], DELTA)
    assert spent([], DELTA) == 0.0


def test_promises_of_one_data_set_compose():
    rho = rho_for(1.0, DELTA)
    one = Promise(1.0, DELTA, "example", "add_remove", "central", None, (Release("sums", rho),))
    assert spent([one], DELTA) == pytest.approx(1.0, rel=1e-6)
    assert 1.4 < spent([one, one], DELTA) < 1.6  # √2 and a little


def test_a_promise_says_from_whom():
    releases = (Release("sums", rho_for(1.0, DELTA)),)
    for honest, words in (
        (1, "at least 1 client adds its noise and does not tell it (from this one nothing is hidden)"),
        (
            2,
            "at least 2 clients add their noise and do not tell it (each of them knows its own: from it ",
        ),
        (2, "with ε = 1.451);"),
        (3, "with ε = 1.243);"),
    ):
        own = Promise(1.0, DELTA, "example", "add_remove", "distributed", honest, releases)
        assert words in str(own)
    simulated = (Release("round 0", 0.1, real=True),)
    for made, only in ((releases, False), (simulated, True)):
        own = Promise(1.0, DELTA, "client", "add_remove", "central", None, made)
        assert ("in a simulation only, as JAX's generator protects nobody, hides" in str(own)) == only
    with pytest.raises(TypeError, match="releases: expected a list of promises or releases, got Promise"):
        spent(own, DELTA)


def test_promises_of_different_things_do_not_compose():
    releases = (Release("sums", 0.1),)
    one, other, replaced = (
        Promise(1.0, DELTA, unit, neighbours, "central", None, releases)
        for unit, neighbours in (
            ("example", "add_remove"),
            ("client", "add_remove"),
            ("example", "replace_one"),
        )
    )
    assert spent([one, one, *releases], DELTA) > 0
    for wrong in (other, replaced):
        found = f"unit='{wrong.unit}', neighbours='{wrong.neighbours}'"
        with pytest.raises(ValueError, match="unit='example', neighbours='add_remove'") as error:
            spent([one, wrong], DELTA)
        assert str(error.value).startswith("releases: expected promises of one kind, got ")
        assert found in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rho_for(1e-7, 1e-12), "epsilon: expected at least 6.8e-06 at delta=1e-12, got 1e-07"),
        (lambda: rho_for(0.0, DELTA), "epsilon: expected"),
        (lambda: rho_for(1.0, 1.0), "delta: expected a number below 1"),
        (lambda: rho_for(float("nan"), DELTA), "epsilon: expected"),
        (lambda: spent([], 0.0), "delta: expected"),
        (lambda: Release("a", -1.0), "rho: expected"),
        (
            lambda: spent([Release("a", 1e6)], DELTA),
            "releases: expected a sum of ρ whose ε is finite",
        ),
    ],
)
def test_bad_numbers_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("unit", "neighbours", "noise", "words"),
    [
        ("example", "add_remove", "central", ["one example was there at all", "not the server"]),
        ("client", "replace_one", "local", ["all examples of one client were others", "also the server"]),
        ("example", "add_remove", "distributed", ["at least 7 clients", "secure sums (covfree.secure)"]),
    ],
)
def test_promise_says_what_is_hidden_from_whom(unit, neighbours, noise, words):
    promise = Promise(1.0, DELTA, unit, neighbours, noise, 7, (Release("sums", 0.02),))
    assert all(word in str(promise) for word in words)
