"""AFL, FedCGS and the Gaussian classifiers: beyond what every method keeps (test_contracts)."""

import federations
import jax
import numpy as np
import oracle
import pytest
from classifiers import assert_same_classifier, fit
from federations import CLASSES
from jax.test_util import check_grads
from precision import FLOAT32, assert_close, assert_heads_close, x64
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import covfree

FEDERATION = federations.make(0)
CLEAN = FEDERATION.clean


def test_afl_without_a_penalty_is_least_squares(precision):
    head = fit(covfree.afl(), FEDERATION, precision)
    assert_heads_close(head, oracle.afl(*CLEAN, CLASSES), precision.tolerance)


def test_afl_does_not_depend_on_gamma():
    # The server takes it out again, whatever the clients used.
    assert_heads_close(fit(covfree.afl(100.0), FEDERATION), fit(covfree.afl(), FEDERATION), 1e-6)


def test_fedcgs_shrinks_the_total_covariance(precision):
    head = fit(covfree.fedcgs(0.4), FEDERATION, precision)
    assert_heads_close(head, oracle.fedcgs(*CLEAN, CLASSES, gamma=0.4), precision.tolerance)


def test_fedcgs_ranks_as_linear_discriminant_analysis_but_for_the_priors():
    # T = W + B: T⁻¹μ lies in the same directions as W⁻¹μ, so that with equal priors two classes are split by
    # the same plane; its place differs only by how long the normal is.
    two = CLEAN.features[np.isin(CLEAN.labels, [0, 1])].astype(np.float32)
    labels = CLEAN.labels[np.isin(CLEAN.labels, [0, 1])]
    head = covfree.fit(covfree.fedcgs(), two, labels, np.zeros_like(labels))
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(two, labels)
    gap = np.asarray(head.weight[:, 1] - head.weight[:, 0], np.float64)
    cosine = gap @ peer.coef_[0] / np.linalg.norm(gap) / np.linalg.norm(peer.coef_)
    assert cosine == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("prior", "means"), [(0.3, False), (0.3, True)])
def test_naive_bayes_with_another_prior(precision, prior, means):
    sent = "means" if means else "sent"
    head = fit(covfree.naive_bayes(prior, covariance=sent), FEDERATION, precision)
    expected = oracle.naive_bayes(*CLEAN, CLASSES, prior, means)
    assert_same_classifier(head, expected, precision.tolerance)


@pytest.mark.parametrize("means", [False, True])
def test_qda_with_another_prior(means):
    sent = "means" if means else "sent"
    head = fit(covfree.qda(0.4, 0.3, covariance=sent), FEDERATION)
    assert_same_classifier(head, oracle.qda(*CLEAN, CLASSES, 0.4, 0.3, means), FLOAT32.tolerance)


def test_qda_of_a_strong_prior_is_linear_discriminant_analysis():
    # The classes then have one covariance: scores differ by what is the same for all of them. Weak, each
    # class has its own.
    features = FLOAT32.array(CLEAN.features)
    linear = jax.nn.softmax(fit(covfree.fedcof_oracle(0.4), FEDERATION)(features))
    strong, weak = (jax.nn.softmax(fit(covfree.qda(0.4, p), FEDERATION)(features)) for p in (1e4, 1.0))
    assert_close(strong, linear, 1e-2)
    assert np.abs(weak - linear).max() > 0.1


def test_derivatives_of_qda():
    rng = np.random.default_rng(0)
    labels, clients = np.arange(30) % 3, np.arange(30) % 2
    features = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3)) + np.eye(3)[labels]

    @jax.jit
    def loss(prior, features):
        head = covfree.fit(covfree.qda(0.1, prior), features, labels, clients, num_classes=3)
        return head(features).sum()

    with x64():
        check_grads(loss, (1.0, features), order=1, modes=("rev",), atol=1e-6, rtol=1e-6, eps=1e-5)


def test_naive_bayes_ignores_correlations():
    # Features that vary together but for the sign: one class along the diagonal, one across.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    noise = 0.1 * rng.normal(size=(400, 2))
    signs = np.where(np.arange(400)[:, None] % 2 == 0, [[1.0, 1.0]], [[1.0, -1.0]])
    features, labels = FLOAT32.array(x * signs + noise), np.arange(400) % 2
    clients = rng.integers(0, 4, 400)
    assert covfree.evaluate(covfree.fit(covfree.qda(0.01), features, labels, clients), features, labels) > 0.9
    naive = covfree.fit(covfree.naive_bayes(), features, labels, clients)
    assert covfree.evaluate(naive, features, labels) < 0.65


def test_a_feature_that_never_varies_decides_nothing():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80).astype(np.int32)
    features = np.concatenate([rng.normal(size=(80, 4)) + labels[:, None], np.full((80, 1), 0.3)], 1)
    clients = np.zeros(80, np.int32)
    head = covfree.fit(covfree.naive_bayes(), FLOAT32.array(features), labels, clients)
    without = covfree.fit(covfree.naive_bayes(), FLOAT32.array(features[:, :4]), labels, clients)
    both = head(FLOAT32.array(features)), without(FLOAT32.array(features[:, :4]))
    assert_close(*(jax.nn.softmax(scores) for scores in both), 1e-4)
    assert np.isfinite(both[0]).all()


@pytest.mark.slow
def test_the_unit_of_a_feature_changes_nothing():
    """And a constant feature leaves the covariances of an unshrunk quadratic head an inverse."""
    rng = np.random.default_rng(0)
    labels = np.arange(60, dtype=np.int32) % 3
    features = rng.normal(size=(60, 3)) + 3 * np.eye(3)[labels]
    features[:, 2] = 5
    clients = np.arange(60) % 5
    units = np.array([1e5, 1e-3, 1.0])
    mine, scaled = (
        covfree.fit(covfree.naive_bayes(), FLOAT32.array(x), labels, clients)(FLOAT32.array(x))
        for x in (features, features * units)
    )
    np.testing.assert_array_equal(mine.argmax(1), scaled.argmax(1))
    assert_close(jax.nn.softmax(mine), jax.nn.softmax(scaled), 1e-3)
    varying = FLOAT32.array(features[:, :2])
    for prior in (1.0, 0.0):
        whole, without = (
            covfree.fit(covfree.qda(0.0, prior), x, labels, clients)(x)
            for x in (FLOAT32.array(features), varying)
        )
        assert_close(jax.nn.softmax(whole), jax.nn.softmax(without), 1e-3 if prior == 0 else 0.1)
        assert (whole.argmax(1) == labels).mean() > 0.85
    collinear = FLOAT32.array(features[:, [0, 1, 1]])
    with pytest.raises(ValueError, match="a covariance is singular: set shrinkage to a number above 0"):
        covfree.fit(covfree.qda(0.0, 1.0), collinear, labels, clients)
    with pytest.raises(ValueError, match="a covariance for each class also a prior above 0"):
        covfree.fit(covfree.qda(0.1, 0.0), collinear, labels, clients)
    assert covfree.fit(covfree.qda(0.1, 1.0), collinear, labels, clients)(varying[:, [0, 1, 1]]).shape == (
        60,
        3,
    )


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: covfree.fedcgs(-1.0), ValueError, r"shrinkage: expected a finite number .*got -1\.0"),
        (lambda: covfree.fedcgs("auto"), TypeError, "shrinkage: expected a number, got 'auto'"),
        (lambda: covfree.qda(prior=-1.0), ValueError, r"prior: expected a finite number .*got -1\.0"),
        (
            lambda: covfree.qda("best"),
            ValueError,
            "shrinkage: expected a number, a share .* '10%', 'auto' or a rule",
        ),
        (
            lambda: covfree.qda(covfree.ledoit_wolf()),
            ValueError,
            "shrinkage: expected a rule that needs only covariances",
        ),
        (lambda: covfree.qda(covariance="full"), ValueError, "covariance: expected one of .*got 'full'"),
        (lambda: covfree.naive_bayes(float("nan")), ValueError, "prior: expected .*got nan"),
        (lambda: covfree.naive_bayes(covariance="full"), ValueError, "covariance: expected one of"),
    ],
)
def test_wrong_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()
