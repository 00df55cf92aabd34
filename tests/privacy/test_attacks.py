"""Attacks succeed as often as the closed form says; audits find what is broken and nothing else."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import covfree
from covfree.privacy import Private, private
from covfree.privacy.attacks import auc, found_at, membership_scores, membership_signal
from covfree.privacy.lower_bound import audit_epsilon, epsilon_lower_bound
from covfree.privacy.uploads import Grid

DIM, RUNS, HELD = 12, 3000, 4
EIGENVALUES = np.geomspace(0.2, 5.0, DIM)


score = jax.jit(jax.vmap(membership_scores, in_axes=(0, 0, None, None, None, None)))


@functools.cache
def scores(count, deviation):
    """Scores of examples in sums of ``count``, and of as many that are not."""
    rng = np.random.default_rng(count)
    rotation = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    root = rotation * np.sqrt(EIGENVALUES)
    centre = rng.normal(size=DIM) + 3
    x = centre + rng.normal(size=(RUNS, count, DIM)) @ root.T
    total = x.sum(1) + deviation * rng.normal(size=(RUNS, DIM))
    others = centre + rng.normal(size=(RUNS, HELD, DIM)) @ root.T
    candidates = np.concatenate([x[:, :HELD], others], 1)
    found = score(*map(jnp.float32, (candidates, total)), count, centre, root @ root.T, deviation)
    return np.asarray(found[:, :HELD]).ravel(), np.asarray(found[:, HELD:]).ravel()


@pytest.mark.parametrize(("count", "deviation"), [(40, 0.0), (100, 0.0), (40, 10.0)])
def test_membership_succeeds_as_often_as_the_closed_form_says(count, deviation):
    signal = float(membership_signal(EIGENVALUES, count, deviation))
    if not deviation:
        assert signal == pytest.approx(np.sqrt(DIM / count), rel=1e-5)
    members, others = scores(count, deviation)
    # Between candidates d′ varies, which the closed form leaves out: it is of the second order.
    assert float(auc(members, others)) == pytest.approx(norm.cdf(signal / np.sqrt(2)), abs=0.012)
    assert float(found_at(members, others)) == pytest.approx(norm.cdf(signal - norm.ppf(0.99)), abs=0.015)


def test_noise_hides_members():
    assert float(auc(*scores(40, 10.0))) < float(auc(*scores(40, 0.0))) - 0.03
    assert float(membership_signal(EIGENVALUES, 40, 1e9)) == pytest.approx(0, abs=1e-6)
    assert float(membership_signal(np.zeros(3), 5)) == 0


def test_auc_and_rate_against_their_definitions():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 9, 70).astype(float), rng.integers(-2, 7, 130).astype(float)
    above = (members[:, None] > others).mean() + (members[:, None] == others).mean() / 2
    assert float(auc(members, others)) == pytest.approx(above, rel=1e-5)
    for rate in (0.0, 0.01, 0.1):
        cut = min(t for t in np.unique(others) if (others > t).mean() <= rate)
        assert float(found_at(members, others, rate)) == pytest.approx((members > cut).mean(), rel=1e-5)


def audited(epsilon, **changes):
    made = private(covfree.fedncm(), epsilon=epsilon, delta=1e-3, clip=1.0, **changes)
    return audit_epsilon(made, runs=100_000, confidence=0.99, random_bytes=np.random.default_rng(0).bytes)


# At δ = 10⁻³ the exact ε of this noise is 0.87 and 3.56; the claim is that of integers.
@pytest.mark.parametrize(
    ("epsilon", "least", "noise"), [(1.0, 0.55, "central"), (4.0, 2.4, "central"), (1.0, 0.55, "local")]
)
def test_the_mechanism_keeps_its_promise_and_wastes_little(epsilon, least, noise):
    found = audited(epsilon, noise=noise)
    assert least < found.lower <= found.claimed <= epsilon
    assert not found.broken


def half_the_noise(sound, grid, upload, noises, draws):
    return sound(replace(grid, log_deviation=grid.log_deviation - 1), upload, noises, draws)


def zeros_without_noise(sound, grid, upload, noises, draws):
    noisy = sound(grid, upload, noises, draws)
    present = (upload.values[:, -2:-1] != 0).astype(np.int64)  # a class that nobody has is left out
    return replace(noisy, values=noisy.values * present)


def twice_the_sensitivity(sound, grid, features, labels, num_classes):
    moved = sound(grid, features, labels, num_classes)
    return replace(moved, values=2 * moved.values)  # the clip is at 2B


def totals_without_noise(sound, made, step, uploads, random_bytes):
    return uploads[0]


@pytest.mark.parametrize(
    ("mutant", "owner", "name"),
    [
        (half_the_noise, Grid, "noised"),
        (zeros_without_noise, Grid, "noised"),
        (twice_the_sensitivity, Grid, "upload"),
        (totals_without_noise, Private, "total"),
    ],
)
def test_an_audit_catches_a_broken_mechanism(mutant, owner, name, monkeypatch):
    sound = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: mutant(sound, *given, **named))
    found = audited(1.0)
    assert found.broken
    if mutant is zeros_without_noise:
        assert found.lower > 5


def test_the_bound_is_that_of_randomised_response():
    rng, epsilon = np.random.default_rng(1), 1.5
    truth = np.exp(epsilon) / (1 + np.exp(epsilon))
    yes, no = (rng.random(200_000) < truth) * 1.0, (rng.random(200_000) < 1 - truth) * 1.0
    assert 1.4 < epsilon_lower_bound(yes, no, 1e-9) <= epsilon
    assert epsilon_lower_bound(yes, yes, 1e-9) < 0.05


@pytest.mark.usefixtures("untyped")
def test_runs_that_tell_nothing_are_refused():
    runs = np.arange(9.0)
    for present, absent, confidence, message in (
        (np.full(9, np.nan), runs, 0.9, "present: expected numbers of two runs or more, got 9 NaN in shape"),
        (runs, runs[:1], 0.9, r"absent: expected numbers of two runs or more, got 0 NaN in shape \[1\]"),
        (runs, runs, 1.0, "confidence: expected a number below 1, got 1.0"),
        (runs, runs, -0.1, "confidence: expected a finite number above 0, got -0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            epsilon_lower_bound(present, absent, 1e-3, confidence)
    with pytest.raises(ValueError, match="runs: expected an integer of at least 2, got 1"):
        audit_epsilon(private(covfree.fedncm(), epsilon=1.0, delta=1e-3, clip=1.0), runs=1)


def test_audits_of_other_units_are_refused():
    made = private(covfree.fedncm(), epsilon=1.0, delta=1e-3, clip=1.0, unit="client", weight=3.0)
    with pytest.raises(ValueError, match=r"made: expected unit='example' .*, got unit='client'"):
        audit_epsilon(made)
