"""Feature quality: the accuracy of ridge regression on features."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import CLASSES
from precision import FLOAT32

import covfree
from covfree.engine.quality import feature_quality

TRAIN, TEST = federations.make(0), federations.make(1)


def arrays(federation):
    """Features and labels; padding by its label, as there are no clients."""
    labels = np.where(federation.kept, federation.labels, -1)
    return FLOAT32.array(federation.features), FLOAT32.array(labels)


def accuracy(weight, features, labels):
    right = [np.argmax(x @ weight) == y for x, y in zip(features, labels, strict=True)]
    return sum(right) / len(right)


def test_equals_the_accuracy_of_the_oracle():
    # The classes lie elsewhere in the other federation: the same one without its first examples stands in.
    features, labels = arrays(TRAIN)
    tests = jnp.where(jnp.arange(len(labels)) < 20, -1, labels)
    weight, _ = oracle.fed3r(*TRAIN.clean, CLASSES, ridge=2.0)
    weight[:, np.abs(weight).sum(0) == 0] = 0
    shown = np.asarray(tests) >= 0
    expected = accuracy(weight, TRAIN.features[shown], TRAIN.labels[shown])
    assert 0.3 < expected < 1
    quality = feature_quality(features, labels, features, tests, num_classes=CLASSES, ridge=2.0)
    assert quality.shape == ()
    assert float(quality) == pytest.approx(expected, abs=1e-6)


def test_is_that_of_fed3r_however_examples_are_spread():
    features, labels = arrays(TRAIN)
    others = arrays(TEST)
    quality = feature_quality(features, labels, *others, num_classes=CLASSES)
    head = covfree.fit(covfree.fed3r(1.0), *TRAIN, num_classes=CLASSES)
    assert quality == covfree.evaluate(head, *others)


def test_better_features_are_better():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 80).astype(np.int32)
    signal, noise = np.eye(CLASSES)[labels], rng.normal(size=(80, CLASSES))
    tests = rng.normal(size=(80, CLASSES))
    qualities = [
        float(
            feature_quality(
                FLOAT32.array(signal + scale * noise),
                jnp.asarray(labels),
                FLOAT32.array(signal + scale * tests),
                jnp.asarray(labels),
                num_classes=CLASSES,
            )
        )
        for scale in (0.1, 1.0, 100.0)
    ]
    assert qualities[0] == 1
    assert qualities[0] > qualities[1] > qualities[2]
    assert qualities[2] < 0.5  # near chance


def test_the_penalty_can_be_swept():
    features, labels = arrays(TRAIN)
    ridges = jnp.array([0.0, 1.0, 2.0])
    swept = jax.vmap(
        lambda r: feature_quality(features, labels, features, labels, num_classes=CLASSES, ridge=r)
    )(ridges)
    one = feature_quality(features, labels, features, labels, num_classes=CLASSES, ridge=2.0)
    assert swept[2] == one


def test_without_tests_there_is_no_accuracy():
    features, labels = arrays(TRAIN)
    nothing = jnp.full_like(labels, -1)
    assert np.isnan(feature_quality(features, labels, features, nothing, num_classes=CLASSES))
