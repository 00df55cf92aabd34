"""Random feature maps: the kernels they converge to, and what the parties share."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from precision import PRECISIONS, assert_close
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from covfree.core.linalg import Scatter, factorise, solve
from covfree.statistics.feature_maps import FeatureMap, fourier_features, relu_features

FLOAT64 = PRECISIONS["float64"]
DIM, SIGMA = 3, 1.7
POINTS = np.random.default_rng(0).normal(size=(12, DIM))


def arc_cosine(points):
    """Cho and Saul's kernel of order 1, pair by pair."""
    kernel = np.zeros((len(points),) * 2)
    for i, x in enumerate(points):
        for j, y in enumerate(points):
            size = np.linalg.norm(x) * np.linalg.norm(y)
            angle = math.acos(min(max(x @ y / size, -1), 1))
            kernel[i, j] = size / math.pi * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    return kernel


def build(name, num_features, seed=0):
    if name == "fourier":
        return fourier_features(num_features, sigma=SIGMA, seed=seed, unit=False)
    return relu_features(num_features, seed=seed)


def of_kernel(name):
    """The kernel, and a bound on the standard deviation of one feature's term in each entry."""
    if name == "fourier":
        kernel = rbf_kernel(POINTS, gamma=1 / (2 * SIGMA**2))
        return kernel, np.sqrt(1 - kernel**2 + kernel**4 / 2)
    norm = np.linalg.norm(POINTS, axis=1)
    return arc_cosine(POINTS), math.sqrt(5) * np.outer(norm, norm)


@pytest.mark.parametrize("name", ["fourier", "relu"])
def test_products_of_features_are_unbiased_for_the_kernel(name):
    kernel, deviation = of_kernel(name)
    points = jnp.asarray(POINTS, jnp.float32)
    for num_features in (64, 4096):
        mapped = np.asarray(build(name, num_features)(points), np.float64)
        assert mapped.shape == (12, num_features)
        error = np.abs(mapped @ mapped.T - kernel)
        # 78 different entries: 4.5 standard deviations have chance 1e-3 of being passed by any.
        assert (error < 4.5 * deviation / math.sqrt(num_features) + 1e-5).all()


def test_the_deviations_that_are_documented():
    repeats, num_features = 400, 16
    points = jnp.asarray(POINTS[:4], jnp.float32)
    seeds = jnp.arange(repeats)
    for name in ("fourier", "relu"):
        kernel, deviation = (x[:4, :4] for x in of_kernel(name))

        def product_of(seed, name=name):
            mapped = dataclasses.replace(build(name, num_features), seed=seed)(points)
            return mapped @ mapped.T

        products = np.asarray(jax.jit(jax.vmap(product_of))(seeds), np.float64)
        assert (np.abs(products.mean(0) - kernel) < 4 * deviation / math.sqrt(num_features * repeats)).all()
        seen = products.std(0) * math.sqrt(num_features)
        # Standard deviations from 400 draws are good to 3.5 %, more where the terms have heavy tails.
        if name == "fourier":
            np.testing.assert_allclose(seen, deviation, rtol=0.2)
        else:
            assert (seen < 1.25 * deviation).all()
            np.testing.assert_allclose(np.diagonal(seen), np.diagonal(deviation), rtol=0.25)


@pytest.mark.slow
def test_ridge_regression_approaches_kernel_ridge_regression():
    rng = np.random.default_rng(1)
    train, test = rng.normal(size=(40, DIM)), rng.normal(size=(30, DIM))
    targets = np.stack([np.sin(train[:, 0]), np.sign(train[:, 1])], axis=1)
    ridge = 0.1
    machine = KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / (2 * SIGMA**2)).fit(train, targets)
    expected = machine.predict(test)
    errors = []
    with FLOAT64.context():
        for num_features in (64, 512, 4096):
            feature_map = build("fourier", num_features)
            mapped = feature_map(FLOAT64.array(train))
            system = Scatter.from_factor(mapped).shifted(ridge)
            weight = solve(factorise(system), mapped.T @ FLOAT64.array(targets))
            errors.append(np.sqrt(np.mean((feature_map(FLOAT64.array(test)) @ weight - expected) ** 2)))
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2], errors
    assert errors[2] < 0.05, errors


def test_the_same_seed_is_the_same_map_in_any_precision():
    for name in ("fourier", "relu"):
        single = build(name, 32)
        assert single(jnp.asarray(POINTS, jnp.bfloat16)).dtype == np.float32
        expected = single(POINTS.astype(np.float32))
        np.testing.assert_array_equal(build(name, 32)(POINTS.astype(np.float32)), expected)
        with FLOAT64.context():
            double = build(name, 32)(FLOAT64.array(POINTS))
            assert_close(double, expected, 1e-5)
            assert double.dtype == np.float64
        other = build(name, 32, seed=1)(POINTS.astype(np.float32))
        assert (np.asarray(other) != np.asarray(expected)).any()


def test_features_of_norm_one_forget_their_scale():
    points = jnp.asarray(POINTS, jnp.float32)
    unit = points / jnp.linalg.norm(points, axis=1, keepdims=True)
    feature_map = fourier_features(32, sigma=0.8)
    expected = fourier_features(32, sigma=0.8, unit=False)(unit)
    np.testing.assert_allclose(feature_map(points), expected, atol=1e-5)
    for scale in (100, 1e-21, 1e20):
        np.testing.assert_allclose(feature_map(scale * points), expected, atol=1e-5)
    assert np.isfinite(feature_map(jnp.zeros((1, 3)))).all()
    assert np.isfinite(jax.grad(lambda x: feature_map(x).sum())(jnp.zeros((1, 3)))).all()


def test_maps_are_pytrees_of_functions():
    batch = jnp.asarray(POINTS, jnp.float32).reshape(3, 4, DIM)
    for name in ("fourier", "relu"):
        feature_map = build(name, 32)
        assert isinstance(feature_map, FeatureMap)
        assert all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(feature_map))
        assert feature_map.num_features == 32
        compiled = jax.jit(lambda m, x: m(x))(feature_map, batch)
        assert compiled.shape == (3, 4, 32)
        np.testing.assert_allclose(compiled, feature_map(batch), atol=1e-6)
        np.testing.assert_allclose(jax.vmap(feature_map)(batch), feature_map(batch), atol=1e-6)
        np.testing.assert_allclose(feature_map(batch[1, 2]), feature_map(batch)[1, 2], atol=1e-6)


def test_sigma_may_be_swept_and_differentiated():
    points = jnp.asarray(POINTS, jnp.float32)
    sigmas = jnp.array([0.5, 2.0])
    swept = jax.vmap(lambda s: fourier_features(16, sigma=s)(points))(sigmas)
    for k, sigma in enumerate(sigmas):
        np.testing.assert_allclose(swept[k], fourier_features(16, sigma=sigma)(points), atol=1e-6)
    with FLOAT64.context():
        where = FLOAT64.array(POINTS)
        check_grads(
            lambda s: fourier_features(16, sigma=jnp.asarray(s))(where).sum(),
            (jnp.array(1.3),),
            1,
            ("fwd", "rev"),
        )


def test_relu_features_scale_with_the_features():
    feature_map = build("relu", 32)
    points = jnp.asarray(POINTS, jnp.float32)
    np.testing.assert_allclose(feature_map(4 * points), 4 * feature_map(points), rtol=1e-6)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("sigma", [0.0, -1.0, np.inf])
def test_a_sigma_that_is_not_above_zero(sigma):
    with pytest.raises(ValueError, match="sigma: expected a finite number"):
        fourier_features(4, sigma=sigma)


@pytest.mark.usefixtures("untyped")
def test_bad_sizes():
    with pytest.raises(ValueError, match="num_features: expected an integer of at least 1, got 0"):
        relu_features(0)
