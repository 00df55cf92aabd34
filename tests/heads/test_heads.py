"""Closed-form heads, beyond what `check_head` holds all to: the oracle's values, absent classes, peers."""

from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES, DIM
from precision import FLOAT32, PRECISIONS, assert_close, assert_heads_close, x64
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import covfree
from covfree.core.linalg import Scatter
from covfree.heads import MappedHead

FLOAT64 = PRECISIONS["float64"]
# Each head of a matrix and moments, and of a matrix, counts and means by the oracle.
HEADS = {
    "ncm": (
        lambda matrix, moments: covfree.ncm_head(moments),
        lambda matrix, *known: oracle.ncm_head(*known),
    ),
    "ridge": (
        partial(covfree.ridge_head, ridge=0.5),
        lambda matrix, count, mean: oracle.ridge_head(matrix, count, mean, 0.5),
    ),
    "lda": (covfree.lda_head, oracle.lda_head),
}
first_moments = jax.jit(covfree.first_moments, static_argnums=1)
lda_head = jax.jit(covfree.lda_head)


@pytest.fixture
def precision():
    """Formulas in float64: that float32 gives the same is a law of `check_head` (tests/testing)."""
    with FLOAT64.context():
        yield FLOAT64


def parts(seed=0, precision=FLOAT32):
    """Moments and a well-conditioned within-class covariance: the library's, and the oracle's."""
    expected = oracle.client_rows(*federations.make(seed))
    rows = federations.rows(federations.make(seed), precision, expected, padding=48 - len(expected))
    moments = first_moments(rows, CLASSES)
    matrix = oracle.diagonal_loading(
        oracle.within_scatter(expected, CLASSES) / oracle.within_degrees(expected, CLASSES), 0.3
    )
    return moments, precision.array(matrix), oracle.moments(expected, CLASSES), matrix


@partial(jax.jit, static_argnums=0)
def build(name, matrix, moments):
    return HEADS[name][0](matrix, moments)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("seed", [0, 1])
def test_heads_equal_the_oracle(precision, name, seed):
    moments, matrix, (count, _, mean), exact = parts(seed, precision)
    head = build(name, matrix, moments)
    assert_heads_close(head, HEADS[name][1](exact, count, mean), precision.tolerance)
    assert head.weight.dtype == head.bias.dtype == precision.dtype
    np.testing.assert_array_equal(head.weight[:, ABSENT], 0)
    assert head.bias[ABSENT] == 0
    np.testing.assert_array_equal(head.present, np.arange(CLASSES) != ABSENT)
    if name != "lda":
        norms = np.linalg.norm(np.asarray(head.weight, np.float64), axis=0)
        np.testing.assert_allclose(np.delete(norms, ABSENT), 1, rtol=1e-6)


@pytest.mark.parametrize("factored", [False, True])
def test_a_scatter_serves_as_the_matrix(precision, factored):
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(2 if factored else 9, DIM))
    moments, _, (count, _, mean), _ = parts(2, precision)
    scatter = Scatter.from_factor(precision.array(factor)).shifted(0.5)
    assert scatter.factored == factored
    matrix = factor.T @ factor + 0.5 * np.eye(DIM)
    for name in ("lda", "ridge"):
        expected = HEADS[name][1](matrix, count, mean)
        assert_heads_close(build(name, scatter, moments), expected, precision.tolerance)


@pytest.mark.parametrize("factored", [False, True])
def test_a_ridge_head_with_a_bias(precision, factored):
    """That of features with a constant 1 appended, whose row counts in no column's norm; λ is on it too."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 7 if factored else 60)
    features = rng.normal(size=(labels.size, 9)) + 0.5 * np.eye(4, 9)[labels] + 1
    rows = covfree.Rows.from_examples(precision.array(features), jnp.asarray(labels))
    moments, ridge = covfree.first_moments(rows, 5), 0.3
    gram = Scatter.from_factor(precision.array(features))
    assert gram.factored == factored
    longer = np.c_[features, np.ones(labels.size)]
    solved = np.linalg.solve(longer.T @ longer + ridge * np.eye(10), longer.T @ np.eye(5)[labels])
    norm = np.linalg.norm(solved[:-1], axis=0)
    norm = np.where(norm > 0, norm, 1)
    for unit, scale in ((True, norm), (False, np.ones(5))):
        head = covfree.ridge_head(gram, moments, ridge=ridge, unit=unit, bias=True)
        expected = solved[:-1] / scale, np.where(np.asarray(moments.count) > 0, solved[-1] / scale, -np.inf)
        assert_heads_close(head, expected, 10 * precision.tolerance)
        shifted = covfree.ridge_head(gram.shifted(ridge), moments, unit=unit, bias=True)
        assert_heads_close(shifted, expected, 10 * precision.tolerance)
    for method in (covfree.fed3r(ridge, bias=True), covfree.afl(ridge=ridge, bias=True)):
        fitted = covfree.fit(
            method, precision.array(features), labels, np.arange(labels.size) % 3, num_classes=5
        )
        scale = norm if method.name == "fed3r" else 1
        assert_heads_close(fitted, (solved[:-1] / scale, expected[1] / scale), 10 * precision.tolerance)


@pytest.mark.slow
def test_a_bias_is_of_ridge_heads():
    with pytest.raises(ValueError, match="bias: expected False unless the head is 'ridge'"):
        covfree.fedcof(bias=True)
    rng = np.random.default_rng(0)
    labels, clients = rng.integers(0, 3, 300), np.arange(300) % 20
    features = (rng.normal(size=(300, 6)) + np.eye(3, 6)[labels] + 2).astype(np.float32)
    # The grand mean is in Ĝ, so that the row and the column of the constant fit it.
    classes = [features[labels == c].astype(np.float64) for c in range(3)]
    within = sum((x - x.mean(0)).T @ (x - x.mean(0)) for x in classes) + 0.1 * 297 * np.eye(6)
    sums, counts = np.stack([x.sum(0) for x in classes], 1), np.array([len(x) for x in classes])
    total = sums.sum(1, keepdims=True)
    system = np.block([[within + total @ total.T / 300, total], [total.T, np.array([[300 + 0.1 * 297]])]])
    solved = np.linalg.solve(system, np.r_[sums, counts[None]])
    solved = solved / np.linalg.norm(solved[:-1], axis=0)
    exact, estimated = (
        covfree.fit(method(0.1, head="ridge", bias=True), features, labels, clients)
        for method in (covfree.fedcof_oracle, covfree.fedcof)
    )
    assert_heads_close(exact, (solved[:-1], solved[-1]), 1e-4)
    assert 0 < np.abs(estimated.bias - exact.bias).max() < 0.2
    # With as many directions as a client's scatter has, nothing is estimated.
    directions = covfree.fedcof_residuals(15, 0.1, "ridge", bias=True)
    assert_heads_close(covfree.fit(directions, features, labels, clients), (solved[:-1], solved[-1]), 1e-4)


def test_lda_with_priors(precision):
    moments, matrix, (count, _, mean), exact = parts(3, precision)
    priors = np.array([1.0, 2.0, 0.0, 5.0, 3.0, 1.0])
    head = lda_head(matrix, moments, priors=precision.array(priors))
    assert_heads_close(head, oracle.lda_head(exact, count, mean, priors), precision.tolerance)
    assert head.present[2] == 0
    # Their scale does not matter, and shares of the counts are the default.
    again = lda_head(matrix, moments, priors=precision.array(7 * priors))
    assert_heads_close(again, head, precision.tolerance)
    for wrong in (-priors, 0 * priors, np.array([1.0, -2.0, 0.0, 5.0, 3.0, 1.0])):
        with pytest.raises(ValueError, match="priors: expected finite numbers of at least 0, some above"):
            covfree.lda_head(matrix, moments, priors=precision.array(wrong))
    with pytest.raises(ValueError, match=r"priors: expected shape .*6.*, got .*2"):
        covfree.lda_head(matrix, moments, priors=precision.array(priors[:2]))
    shares = lda_head(matrix, moments, priors=precision.array(count))
    assert_heads_close(shares, lda_head(matrix, moments), precision.tolerance)


def test_lda_equals_scikit_learn():
    clean = federations.make(4).clean
    present = np.unique(clean.labels)
    with x64():
        rows = covfree.Rows.from_examples(FLOAT64.array(clean.features), FLOAT64.array(clean.labels))
        moments = first_moments(rows, CLASSES)
        # scikit-learn divides the pooled scatter by N.
        covariance = jax.jit(covfree.within_scatter)(rows, moments) / len(clean.labels)
        head = lda_head(covariance, moments)
        peer = LinearDiscriminantAnalysis(solver="lsqr").fit(clean.features, clean.labels)
        # But for a term that all classes share.
        weight, bias = np.asarray(head.weight).T[present], np.asarray(head.bias)[present]
        assert_close(weight - weight[:1], peer.coef_ - peer.coef_[:1], 1e-9)
        assert_close(bias - bias[0], peer.intercept_ - peer.intercept_[0], 1e-9)
        log_posterior = jax.nn.log_softmax(head(FLOAT64.array(clean.features)))[:, present]
        np.testing.assert_allclose(np.exp(log_posterior), peer.predict_proba(clean.features), atol=1e-9)


@pytest.mark.slow
def test_a_class_whose_features_cancel_has_no_direction():
    """In any order its column is 0, among rows and within a client; small features keep theirs."""
    rng = np.random.default_rng(0)
    half = (7 + rng.normal(size=(25, DIM))).astype(np.float32)
    features = np.concatenate([half, -half, half + 1, 1e-6 * half]).astype(np.float32)
    label = np.repeat([0, 1, 2], [50, 25, 25])
    orders = np.stack([rng.permutation(100) for _ in range(300)])

    @jax.jit
    def heads(order):
        values, labels = jnp.asarray(features)[order], jnp.asarray(label)[order]
        moments = covfree.first_moments(covfree.Rows.from_examples(values, labels), 3)
        client = covfree.Rows(*covfree.class_means(values, labels, 3), jnp.arange(3))
        client = covfree.ncm_head(covfree.first_moments(client, 3))
        ridge = [covfree.ridge_head(jnp.eye(DIM), moments, bias=bias) for bias in (False, True)]
        return (
            jnp.where(labels[:, None] == 0, values, 0).cumsum(0)[-1],
            covfree.ncm_head(moments),
            client,
            *ridge,
        )

    total, *found = jax.vmap(heads)(orders)
    assert (jnp.abs(total).max(1) > 0).sum() > 200, "the sums are rounding, or this tests nothing"
    for head in found[:3]:  # An intercept gives each column a part of the grand mean.
        np.testing.assert_array_equal(head.weight[:, :, 0], 0)
    for head in found:
        np.testing.assert_array_equal(head.present, 1)
        np.testing.assert_allclose(jnp.linalg.norm(head.weight[:, :, 1:], axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(head.weight, np.broadcast_to(head.weight[0], head.weight.shape), atol=1e-5)
    table = jax.tree.map(np.asarray, covfree.Rows.from_examples(features[orders[0]], label[orders[0]]))
    parts = covfree.solve_rows(covfree.fedncm(), covfree.Stream(table, part_rows=7), num_classes=3)
    np.testing.assert_allclose(parts.weight, found[0].weight[0], atol=1e-5)
    for clients in (np.zeros(100, int), np.arange(100) % 2):
        fitted = covfree.fit(covfree.fedncm(), features[orders[0]], label[orders[0]], clients[orders[1]])
        np.testing.assert_allclose(fitted.weight, found[0].weight[0], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_within_its_rounding_is_zero_and_no_other(dtype):
    """At any scale: sums that cancel are 0, one well above it is kept, and so is the derivative."""
    eps, half = np.finfo(dtype).eps, np.random.default_rng(3).normal(size=(400, 5))
    half = np.round(half * 2**10) / 2**10  # What is added below is then not rounded away.
    with jax.enable_x64(dtype == np.float64):
        for scale in (2.0**-100, 1.0, 2.0**100):
            for more in (0, 2e5 * eps):
                values = jnp.asarray(scale * np.concatenate([half, -half, [[more] * 5]]).astype(dtype))
                mean, _ = covfree.class_means(values, jnp.zeros(801, int), 1)
                expected = scale * more / 801
                np.testing.assert_allclose(mean[0], expected, rtol=0.1)
        large = np.full((100, 2), np.finfo(dtype).max / 10, dtype)  # The sum of their sizes overflows.
        np.testing.assert_array_equal(covfree.class_means(large, np.zeros(100, int), 1)[0][0], large[0])
        slope = jax.grad(lambda x: covfree.class_means(x, jnp.zeros(4, int), 1)[0].sum())(
            jnp.zeros((4, 2), dtype)
        )
        np.testing.assert_array_equal(slope, 0.25)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_columns_have_unit_norm_at_any_scale(scale):
    # Squares of these are beyond float32.
    moments = covfree.Moments(
        jnp.array([1, 1]),
        jnp.array([1, 1]),
        jnp.array([[3.0, 4.0], [0.0, 0.0]]) * (scale * 1e10 if scale > 1 else scale * 1e-10),
    )
    weight = covfree.ncm_head(moments).weight
    np.testing.assert_allclose(weight, [[0.6, 0.0], [0.8, 0.0]], rtol=1e-6)


def test_a_bias_is_divided_by_the_norm_at_any_scale():
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 3, 40)
    features = (1e18 * (rng.normal(size=(40, 3)) + np.eye(3)[labels])).astype(np.float32)
    rows = covfree.Rows.from_examples(jnp.asarray(features), jnp.asarray(labels))
    head = covfree.ridge_head(Scatter.from_factor(rows.mean), covfree.first_moments(rows, 3), bias=True)
    longer = np.c_[features / 1e18, np.ones(40)].astype(np.float64)
    solved = np.linalg.solve(longer.T @ longer, longer.T @ np.eye(3)[labels])
    norm = np.linalg.norm(solved[:-1], axis=0)
    assert_heads_close(head, (solved[:-1] / norm, 1e18 * solved[-1] / norm), 1e-4)


@pytest.mark.parametrize("dim", [1, 3])
def test_one_class(dim):
    moments = covfree.Moments(jnp.array([4]), jnp.array([2]), 4 * jnp.ones((1, dim)))
    for name in HEADS:
        head = build(name, jnp.eye(dim), moments)
        assert head.weight.shape == (dim, 1)
        assert (head(jnp.ones((2, dim))).argmax(-1) == 0).all()


@pytest.mark.parametrize("name", HEADS)
def test_derivatives_through_a_softmax_are_finite(name):
    """As fine-tuning takes them: scores of absent classes are −∞."""
    moments, matrix, _, _ = parts(6)
    features = FLOAT32.array(np.random.default_rng(0).normal(size=(7, DIM)))

    @jax.jit
    @jax.grad
    def slope(total):
        head = build(name, matrix, covfree.Moments(moments.count, moments.num_rows, total))
        return -jax.nn.log_softmax(head(features))[:, 0].sum()

    assert np.isfinite(np.asarray(slope(moments.total))).all()


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", ["ridge", "lda"])
def test_a_matrix_of_another_size(name):
    moments, _, _, _ = parts(0)
    with pytest.raises(ValueError, match=r"(gram|covariance): expected .* got "):
        build(name, jnp.eye(DIM + 1), moments)
    with pytest.raises(ValueError, match=r"(gram|covariance): expected .* got "):
        build(name, jnp.ones((DIM + 1, DIM)), moments)


@pytest.mark.parametrize("value", [1.0, 0.1, -3.3e3, 7e-9])
def test_equal_features_tell_classes_apart_by_their_number_alone(value):
    """Whatever the number: class means that differ by rounding have no scatter between them."""
    labels, clients = np.repeat([0, 1, 2], [10, 20, 30]), np.arange(60) % 7
    features = np.full((60, 5), value, np.float32)
    for method in (
        covfree.fedcof(),
        covfree.fedcof_oracle(0.1),
        covfree.fedcof(covfree.pseudo_observations()),
    ):
        head = covfree.fit(method, features, labels, clients)
        np.testing.assert_array_equal(head.weight, 0)
        np.testing.assert_allclose(jax.nn.softmax(head(features[:1]))[0], np.array([1, 2, 3]) / 6, rtol=1e-5)
    trained = covfree.softmax_head(features, labels, 3)
    np.testing.assert_array_equal(trained.weight, 0)


def test_finite_scores_in_place_of_absent_classes():
    """Predictions and the softmax stay, in half precision too; no mark is left."""
    features = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    for dtype in (jnp.float16, jnp.float32):
        present, bias = jnp.array([1, 0, 1], dtype), jnp.zeros(3, dtype)
        linear = covfree.LinearHead(2 * jnp.eye(3, dtype=dtype), bias, present)
        gaussian = covfree.GaussianHead(jnp.eye(3, dtype=dtype), jnp.ones((3, 3), dtype), bias, present)
        for head in (linear, gaussian, MappedHead(jnp.tanh, linear)):
            finite = covfree.with_finite_scores(head)
            x = features.astype(dtype)
            assert jnp.isfinite(finite(x)).all()
            np.testing.assert_array_equal(jax.nn.softmax(finite(x)), jax.nn.softmax(head(x)))
            assert len(jax.tree.leaves(finite)) == len(jax.tree.leaves(head)) - 1
    assert covfree.with_finite_scores(finite).head is finite.head
    with pytest.raises(TypeError, match="head: expected a linear, Gaussian or Student head, got function"):
        covfree.with_finite_scores(make_nothing)


def make_nothing(features):
    return features


def test_a_bias_of_another_size_is_named(untyped):
    head = covfree.LinearHead(np.ones((4, 3), np.float32), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"bias: expected \[3\], one number for each column .* got \[4\]"):
        head(np.ones((2, 4), np.float32))
