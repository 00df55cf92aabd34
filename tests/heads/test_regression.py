"""Ridge regression to any targets, beside the normal equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree


def solved(x, y, w, ridge, bias):
    """The normal equations with a constant 1 appended, in float64; the minimum norm if they are singular."""
    x = np.column_stack([x, np.ones(len(x))]) if bias else x
    matrix = sum(w[i] * np.outer(x[i], x[i]) for i in range(len(x))) + ridge * np.eye(x.shape[1])
    found = np.linalg.lstsq(matrix, sum(w[i] * np.outer(x[i], y[i]) for i in range(len(x))), rcond=1e-6)[0]
    return (found[:-1], found[-1]) if bias else (found, np.zeros(y.shape[1]))


def targets_of(kind, rng, x):
    if kind == "soft":
        return rng.dirichlet(np.ones(4), len(x))
    if kind == "several labels":
        return (x[:, :3] + 0.3 * rng.normal(size=(len(x), 3)) > 0).astype(np.int32)
    return 1e3 + x @ rng.normal(size=(6, 2))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["soft", "several labels", "measurements"])
def test_clients_sums_give_the_pooled_regression(untyped, kind, bias):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 12, 6)) + 0.5
    y = np.stack([targets_of(kind, np.random.default_rng(1), each) for each in x])
    w = rng.integers(0, 3, (5, 12)).astype(float)
    w[3] = 0  # a client without examples
    spoilt = np.where(w[..., None] > 0, x, np.nan).astype(np.float32)
    each = jax.vmap(covfree.target_sums)(
        spoilt, jnp.asarray(y, y.dtype if y.dtype.kind == "i" else np.float32), w.astype(np.float32)
    )
    total = jax.tree.map(lambda part: part.sum(0), each)
    flat = x.reshape(60, 6), y.reshape(60, -1).astype(float), w.ravel()
    for ridge in (0.0, 0.7):
        head = jax.jit(covfree.regression_head, static_argnames="bias")(total, ridge=ridge, bias=bias)
        weight, offset = solved(*flat, ridge, bias)
        scale = np.abs(flat[1]).max()
        np.testing.assert_allclose(head.weight, weight, atol=3e-4 * scale)
        np.testing.assert_allclose(head.bias, offset, atol=3e-4 * scale)
        np.testing.assert_allclose(head(flat[0]), flat[0] @ weight + offset, atol=3e-4 * scale)


def test_one_hot_targets_are_those_of_ridge_head(untyped):
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(40, 5)).astype(np.float32), np.arange(40, dtype=np.int32) % 3
    sums, plain = covfree.target_sums(x, np.eye(3, dtype=np.float32)[labels]), covfree.gram(x, labels, 3)
    np.testing.assert_allclose(sums.gram, plain.gram, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(sums.cross.T, plain.class_sum, rtol=1e-5, atol=1e-5)
    moments = covfree.first_moments(covfree.Rows(x, np.ones(40, np.int32), labels), 3)
    for bias in (False, True):
        expected = covfree.ridge_head(plain.gram, moments, ridge=0.5, unit=False, bias=bias)
        head = covfree.regression_head(sums, ridge=0.5, bias=bias)
        np.testing.assert_allclose(head.weight, expected.weight, atol=1e-5)
        np.testing.assert_allclose(head.bias, expected.bias, atol=1e-5)


def test_features_that_sum_to_a_constant_serve_as_the_intercept(untyped):
    rng = np.random.default_rng(3)
    x = np.eye(3, dtype=np.float32)[np.arange(30) % 3]
    y = rng.normal(size=(30, 1)).astype(np.float32)
    means = np.array([y[np.arange(30) % 3 == c].mean() for c in range(3)])
    head = covfree.regression_head(covfree.target_sums(x, y))
    np.testing.assert_allclose(head(np.eye(3, dtype=np.float32))[:, 0], means, atol=1e-5)


def test_bad_input():
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    for arguments, error, text in (
        ((x[0], y), ValueError, r"features: expected \[examples, numbers\], got \[3\]"),
        ((x, y[:, 0]), ValueError, r"targets: expected \[examples, numbers\], got \[4\]"),
        ((x, y[:3]), ValueError, "targets: expected 4, a row for each of features, got 3"),
        ((x, y, np.ones(3, np.float32)), ValueError, "weights: expected 4"),
        ((x, y, np.ones((4, 1), np.float32)), ValueError, r"weights: expected 4, .* got \[4, 1\]"),
        ((x, y, np.float32([1, -1, 1, 1])), ValueError, "weights: expected finite numbers of at least 0"),
        ((x, y, np.float32([1, np.nan, 1, 1])), ValueError, "weights: expected finite numbers of at least 0"),
        ((x, y + 1j), TypeError, "targets: expected real numbers, got complex"),
        ((x.astype(int), y), TypeError, "features: expected floating-point numbers, got int"),
    ):
        with pytest.raises(error, match=text):
            covfree.target_sums(*arguments)
