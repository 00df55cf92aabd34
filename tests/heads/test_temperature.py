"""Temperature calibration against scalar minimisation in float64, at its limits, and in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from precision import PRECISIONS, assert_close
from scipy.optimize import minimize_scalar

import covfree
from covfree.heads import MappedHead
from covfree.heads.temperature import (
    calibrate_temperature,
    with_temperature,
)

FLOAT64 = PRECISIONS["float64"]
EXAMPLES, DIM, CLASSES, ABSENT = 60, 4, 5, 3


def problem(seed=0, scale=1.0, noise=1.0):
    """A head with a class that cannot be, features, and labels that follow its scores with some noise."""
    rng = np.random.default_rng(seed)
    weight, bias = scale * rng.normal(size=(DIM, CLASSES)), scale * rng.normal(size=CLASSES)
    weight[:, ABSENT], bias[ABSENT] = 0, -np.inf
    features = rng.normal(size=(EXAMPLES, DIM))
    scores = features @ weight + bias
    labels = np.argmax(scores / scale + noise * rng.gumbel(size=scores.shape), axis=1)
    return weight, bias, features, labels


def padded(features, labels):
    """Every fourth example becomes padding, of all kinds."""
    features, labels = features.copy(), labels.copy()
    labels[::4] = np.resize([-1, CLASSES, -9, CLASSES + 3], len(labels[::4]))
    features[::4] = np.nan
    # Labelled with the class that cannot be: an infinite loss at any temperature.
    labels[1] = ABSENT
    return features, labels


def loss_sum(weight, bias, features, labels, beta):
    """Example by example, class by class; no class that cannot be."""
    total = 0.0
    for x, y in zip(features, labels, strict=True):
        if 0 <= y < CLASSES and np.isfinite(bias[y]):
            scores = np.array([beta * (x @ weight[:, c] + bias[c]) for c in range(CLASSES) if c != ABSENT])
            own = beta * (x @ weight[:, y] + bias[y])
            total += np.log(np.sum(np.exp(scores - scores.max()))) + scores.max() - own
    return total


def best_temperature(*arguments):
    best = minimize_scalar(
        lambda log_beta: loss_sum(*arguments, np.exp(log_beta)),
        bounds=(-9, 9),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return np.exp(-best.x)


# Compiled once, where each operation by itself would be.


@jax.jit
def calibrate(weight, bias, features, labels):
    return calibrate_temperature(covfree.LinearHead(weight, bias), features, labels)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("noise", [0.2, 1.0, 4.0])
def test_the_minimum_against_scipy(precision, scale, noise):
    weight, bias, features, labels = problem(0, scale, noise)
    features, labels = padded(features, labels)
    found = calibrate(*(precision.array(x) for x in (weight, bias, features, labels)))
    assert found.dtype == precision.dtype
    expected = best_temperature(weight / scale, bias / scale, features, labels) * scale
    # Values of the loss tell its minimum to √eps at best.
    np.testing.assert_allclose(found, expected, rtol=1e-3 if precision.name == "float32" else 1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_a_minimum_that_plain_newton_misses(precision, seed):
    # Scores of very different size: steps from a point where most curvature has gone lead far astray.
    weight, bias, features, labels = problem(seed, noise=2.0 if seed == 2 else 8.0)
    features = features * np.exp(1.5 * np.random.default_rng(seed).normal(size=(EXAMPLES, 1)))
    found = calibrate(*(precision.array(x) for x in (weight, bias, features, labels)))
    expected = best_temperature(weight, bias, features, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if precision.name == "float32" else 1e-5)


def test_with_temperature_divides_scores(precision):
    weight, bias, features, _ = problem(0)
    head = covfree.LinearHead(precision.array(weight), precision.array(bias))
    scores, soft = head(precision.array(features)), with_temperature(head, 2.5)(precision.array(features))
    assert_close(soft, np.asarray(scores) / 2.5, precision.tolerance)
    np.testing.assert_array_equal(soft.argmax(-1), scores.argmax(-1))
    np.testing.assert_array_equal(jax.nn.softmax(soft)[:, ABSENT], 0)
    # A head at its own temperature wants no other.
    labels = precision.array(problem(0)[3])
    best = calibrate(head.weight, head.bias, precision.array(features), labels)
    soft = with_temperature(head, best)
    again = calibrate(soft.weight, soft.bias, precision.array(features), labels)
    np.testing.assert_allclose(again, 1, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_separable_examples_stop_at_the_bound(precision, scale):
    weight, bias, features, labels = problem(4, scale, noise=0.0)
    found = calibrate(*(precision.array(x) for x in (weight, bias, features, labels)))
    scores = np.delete(features @ weight + bias, ABSENT, axis=1)
    spread = np.sqrt(np.mean(np.var(scores, axis=1)))
    np.testing.assert_allclose(found, spread / 1000, rtol=1e-5)
    # Scores that know nothing, or the opposite: as soft as it gets.
    worst = np.argmin(np.where(np.arange(CLASSES) == ABSENT, np.inf, features @ weight + bias), axis=1)
    found = calibrate(*(precision.array(x) for x in (weight, bias, features, worst)))
    np.testing.assert_allclose(found, spread * 1000, rtol=1e-5)


def test_a_slope_that_underflows(precision):
    # One-hot scores: long before the bound, slope and curvature are 0 in floats.
    eye = np.eye(CLASSES)
    arrays = (eye, np.zeros(CLASSES), eye, np.arange(CLASSES))
    found = calibrate(*(precision.array(x) for x in arrays))
    np.testing.assert_allclose(found, np.std(eye[0]) / 1000, rtol=1e-6)


def test_nothing_to_learn_from(precision):
    weight, bias, features, labels = (precision.array(x) for x in problem(0))
    assert calibrate(weight, bias, features, jnp.full_like(labels, -1)) == 1
    assert calibrate(jnp.zeros_like(weight), jnp.zeros_like(bias), features, labels) == 1
    only = jnp.where(jnp.arange(CLASSES) == 0, 0, -jnp.inf).astype(precision.dtype)
    assert calibrate(weight, only, features, jnp.zeros_like(labels)) == 1
    # A NaN that counts is not hidden.
    assert np.isnan(calibrate(weight.at[0, 0].set(jnp.nan), bias, features, labels))


def test_any_function_is_a_head():
    rng = np.random.default_rng(0)
    inner = jnp.asarray(rng.normal(size=(DIM, 8)), jnp.float32)
    outer = jnp.asarray(rng.normal(size=(8, CLASSES)), jnp.float32)
    _, _, features, labels = problem(0)
    features, labels = jnp.asarray(features, jnp.float32), jnp.asarray(labels)
    found = calibrate_temperature(lambda x: jnp.tanh(x @ inner) @ outer, features, labels)
    hidden = covfree.LinearHead(outer, jnp.zeros(CLASSES))
    np.testing.assert_allclose(
        found, calibrate_temperature(hidden, jnp.tanh(features @ inner), labels), rtol=1e-5
    )


def test_derivatives_by_the_implicit_function_theorem():
    weight, bias, features, labels = problem(5)
    features, labels = padded(features, labels)
    with FLOAT64.context():
        fixed = FLOAT64.array(bias), FLOAT64.array(features), FLOAT64.array(labels)
        of_weight = jax.jit(lambda w: calibrate(w, *fixed))
        check_grads(of_weight, (FLOAT64.array(weight),), 1, ("fwd", "rev"), atol=1e-5, rtol=1e-5)
        # Padding, NaN as it is, has no part in the derivative by the features.
        slope = jax.jit(jax.grad(lambda x: calibrate(FLOAT64.array(weight), fixed[0], x, fixed[2])))(fixed[1])
        assert np.isfinite(slope).all()
        np.testing.assert_array_equal(slope[::4], 0)


def test_under_vmap():
    problems = [problem(seed)[:3] for seed in range(3)]
    labels = jnp.asarray(problem(0)[3])
    stacked = [jnp.asarray(np.stack(x), jnp.float32) for x in zip(*problems, strict=True)]
    found = jax.jit(jax.vmap(lambda w, b, x: calibrate(w, b, x, labels)))(*stacked)
    for k in range(3):
        np.testing.assert_allclose(found[k], calibrate(*(x[k] for x in stacked), labels), rtol=1e-5)


@pytest.mark.usefixtures("untyped")
def test_bad_arguments():
    head = covfree.LinearHead(jnp.ones((2, 3)), jnp.zeros(3))
    with pytest.raises(TypeError, match="labels: expected integers, got float32"):
        calibrate_temperature(head, jnp.ones((4, 2)), jnp.zeros(4))
    with pytest.raises(ValueError, match=r"labels: expected shape \[4\]"):
        calibrate_temperature(head, jnp.ones((4, 2)), jnp.zeros(5, jnp.int32))
    with pytest.raises(ValueError, match="temperature: expected a finite number above 0, got 0"):
        with_temperature(head, 0.0)
    # A traced one has no value to look at.
    assert jax.jit(lambda t: with_temperature(head, t).weight)(2.0)[0, 0] == 0.5


def test_a_head_behind_a_map_is_divided_too():
    features = covfree.statistics.feature_maps.relu_features(6)
    inner = covfree.LinearHead(jnp.ones((6, 2)), jnp.ones(2))
    half = covfree.with_temperature(MappedHead(features, inner), 2.0)
    assert half.feature_map is features
    np.testing.assert_allclose(half.head.weight, 0.5)
    np.testing.assert_allclose(half.head.bias, 0.5)
    both = covfree.CorrectedHead(half, inner, jnp.float32(3.0))
    x = np.ones((1, 6), np.float32)
    np.testing.assert_allclose(covfree.with_temperature(both, 4.0)(x), both(x) / 4, rtol=1e-6)
