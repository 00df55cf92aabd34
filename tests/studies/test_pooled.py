"""Logistic regression on all examples in one place."""

import numpy as np
import pytest
import scipy.special
from sklearn.linear_model import LogisticRegression

import covfree
from covfree.studies.pooled import PENALTIES, pooled_head


def examples(num_classes, size=120, dim=4):
    rng = np.random.default_rng(0)
    labels = np.arange(size) % num_classes
    features = rng.normal(size=(size, dim)) + 1.5 * rng.normal(size=(num_classes, dim))[labels]
    return 30 + 7 * features.astype(np.float32), labels


@pytest.mark.parametrize("num_classes", [2, 3])
def test_it_is_scikit_learns_head_of_the_features_as_they_came(num_classes):
    x, y = examples(num_classes)
    head, penalty = pooled_head(x, y, num_classes + 1, penalties=(0.01,))
    assert penalty == 0.01
    white = (x - x.mean(0)) / np.sqrt(np.square(x - x.mean(0)).mean())
    # Of two classes scikit-learn has one column of weights, ours the half of it in each of two.
    strength = 0.01 * len(y) / (2 if num_classes == 2 else 1)
    expected = LogisticRegression(C=1 / strength, tol=1e-6).fit(white, y).predict_proba(white)
    scores = np.asarray(head(x), float)[:, :num_classes]
    found = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=0.005)
    assert np.isneginf(head(x)[:, num_classes]).all()


def test_it_is_the_optimum_where_features_have_very_unequal_variances():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    features = (rng.normal(size=(400, 30)) + rng.normal(size=(4, 30))[labels]) * np.logspace(0, -2, 30)
    white = features - features.mean(0)
    white /= np.sqrt(np.square(white).mean())
    head, _ = pooled_head(features.astype(np.float32), labels, 4, penalties=(1e-4,))
    peer = LogisticRegression(C=1 / (1e-4 * 400), solver="newton-cg", tol=1e-8, max_iter=1000).fit(
        white, labels
    )

    def objective(scores, weight):
        losses = scipy.special.logsumexp(scores, 1) - scores[np.arange(400), labels]
        return losses.mean() + 1e-4 / 2 * np.square(weight).sum()

    scale = np.sqrt(np.square(features - features.mean(0)).mean())
    own = objective(
        np.asarray(head(features.astype(np.float32)), float), scale * np.asarray(head.weight, float)
    )
    assert own < objective(peer.decision_function(white), peer.coef_) + 1e-4


def test_the_penalty_is_chosen_and_padding_and_single_classes_are_no_errors():
    x, y = examples(3)
    padded = np.concatenate([x, np.full((5, 4), np.nan, np.float32)]), np.append(y, np.full(5, -1))
    head, penalty = pooled_head(*padded, 3)
    assert penalty in PENALTIES
    assert float(covfree.evaluate(head, x, y)) > 0.8
    alone, _ = pooled_head(x, np.ones_like(y), 3)
    assert (np.asarray(alone(x).argmax(1)) == 1).all()
    # Too few examples for the folds: two of each class; or one alone of the second.
    for few in (np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 0, 0, 0, 1])):
        assert pooled_head(x[:6], few, 3)[1] == PENALTIES[0]
    with pytest.raises(ValueError, match="labels: expected at least one example"):
        pooled_head(x, np.full_like(y, -1), 3)
