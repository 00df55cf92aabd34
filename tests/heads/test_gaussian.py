"""The head with a covariance for each class, and the head behind a map of features."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES, DIM
from jax.test_util import check_grads
from precision import FLOAT32, PRECISIONS, assert_close, x64
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

import covfree
from covfree.heads import MappedHead

FLOAT64 = PRECISIONS["float64"]
CLEAN = federations.make(0).clean
PRESENT = np.unique(CLEAN.labels)


def parts(precision, diagonal):
    """Moments of the examples, and a definite covariance for each class: the library's, and the oracle's."""
    expected = oracle.example_rows(CLEAN.features, CLEAN.labels)
    rows = covfree.Rows.from_examples(precision.array(CLEAN.features), precision.array(CLEAN.labels))
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(CLASSES, DIM, 2 * DIM)) / np.sqrt(DIM)
    covariances = np.einsum("cij,ckj->cik", roots, roots) * np.arange(1, CLASSES + 1)[:, None, None]
    if diagonal:
        covariances = np.stack([np.diag(np.diag(s)) for s in covariances])
    given = np.stack([np.diag(s) for s in covariances]) if diagonal else covariances
    # Of an absent class nothing is known.
    given[ABSENT] = np.nan
    return (
        covfree.first_moments(rows, CLASSES),
        precision.array(given),
        oracle.moments(expected, CLASSES),
        covariances,
    )


# In float32 as well by `check_head` (tests/testing/test_head.py).
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("diagonal", [False, True])
def test_scores_equal_the_oracle(precision, diagonal):
    moments, given, (count, _, mean), covariances = parts(precision, diagonal)
    head = covfree.gaussian_head(given, moments)
    features = precision.array(CLEAN.features)
    scores = head(features)
    precision.assert_close(scores, oracle.gaussian_scores(count, mean, covariances)(np.asarray(features)))
    np.testing.assert_array_equal(scores[:, ABSENT], -np.inf)
    # Any batch, one at a time too; and compiled.
    np.testing.assert_allclose(head(features[:6].reshape(2, 3, DIM))[1, 2], scores[5], rtol=1e-5)
    np.testing.assert_allclose(head(features[5]), scores[5], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda h, x: h(x))(head, features), scores, rtol=1e-5)


def test_equals_scikit_learn():
    with x64():
        rows = covfree.Rows.from_examples(FLOAT64.array(CLEAN.features), FLOAT64.array(CLEAN.labels))
        moments = covfree.first_moments(rows, CLASSES)
        scatters = covfree.estimators.class_scatters(rows, moments)
        count = jnp.maximum(moments.count, 1)[:, None, None]
        features = FLOAT64.array(CLEAN.features)
        # With its own covariances: versions of scikit-learn divide by N_c or N_c − 1.
        peer = QuadraticDiscriminantAnalysis(store_covariance=True).fit(CLEAN.features, CLEAN.labels)
        covariances = np.full((CLASSES, DIM, DIM), np.nan)
        covariances[PRESENT] = peer.covariance_
        head = covfree.gaussian_head(covariances, moments)
        assert_close(jax.nn.softmax(head(features))[:, PRESENT], peer.predict_proba(CLEAN.features), 1e-8)
        # scikit-learn's naive Bayes divides by N_c.
        variances = jnp.diagonal(scatters / count, axis1=1, axis2=2)
        naive = covfree.gaussian_head(variances, moments)
        peer = GaussianNB(var_smoothing=0).fit(CLEAN.features, CLEAN.labels)
        assert_close(jax.nn.softmax(naive(features))[:, PRESENT], peer.predict_proba(CLEAN.features), 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("diagonal", [False, True])
def test_one_covariance_for_all_classes_is_linear_discriminant_analysis(diagonal):
    moments, given, _, _ = parts(FLOAT32, diagonal)
    one = given[0]
    scores = covfree.gaussian_head(jnp.stack([one] * CLASSES), moments)(FLOAT32.array(CLEAN.features))
    linear = covfree.lda_head(jnp.diag(one) if diagonal else one, moments)(FLOAT32.array(CLEAN.features))
    assert_close(jax.nn.softmax(scores), jax.nn.softmax(linear), 1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_half_precision_features_are_computed_in_float32(dtype):
    moments, given, _, _ = parts(FLOAT32, False)
    head = covfree.gaussian_head(given, moments)
    features = FLOAT32.array(CLEAN.features).astype(dtype)
    scores = head(features)
    assert scores.dtype == jnp.float32
    np.testing.assert_array_equal(scores, head(features.astype(jnp.float32)))


@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients(diagonal):
    with x64():
        moments, given, _, _ = parts(FLOAT64, diagonal)
        features = FLOAT64.array(CLEAN.features[:4])

        @jax.jit
        def loss(covariances, total, features):
            if not diagonal:
                # The factorisation reads one triangle; the derivative is that of symmetric matrices.
                covariances = (covariances + jnp.swapaxes(covariances, 1, 2)) / 2
            some = covfree.Moments(moments.count, moments.num_rows, total)
            scores = covfree.gaussian_head(covariances, some)(features)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(scores), scores, 0)))

        safe = jnp.nan_to_num(given)
        arguments = (safe, moments.total, features)
        check_grads(loss, arguments, order=1, modes=("rev",), atol=1e-5, rtol=1e-5, eps=1e-6)
        # What an absent class holds has no way in.
        slope = jax.jit(jax.grad(loss))(given, moments.total, features)
        np.testing.assert_array_equal(slope[ABSENT], 0)
        assert np.isfinite(slope).all()


def test_a_mapped_head_is_the_head_of_what_the_map_gives():
    features = covfree.relu_features(7)
    inner = covfree.LinearHead(jnp.arange(21.0).reshape(7, 3), jnp.array([0.0, 1.0, -jnp.inf]))
    head = MappedHead(features, inner)
    x = FLOAT32.array(CLEAN.features[:6])
    np.testing.assert_array_equal(head(x), inner(features(x)))
    assert head(x.reshape(2, 3, DIM)).shape == (2, 3, 3)
    # A pytree: it may be an argument of a compiled function.
    assert_close(jax.jit(lambda h, x: h(x))(head, x), head(x), 1e-6)
    right = covfree.evaluate(head, x, np.asarray(head(x)).argmax(-1))
    assert right == 1
