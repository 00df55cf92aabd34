"""The softmax head against scikit-learn and its own optimality, absent classes, padding, scale."""

from dataclasses import replace
from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import ABSENT, CLASSES, DIM
from precision import FLOAT32, PRECISIONS, assert_close, assert_heads_close, x64
from sklearn.linear_model import LogisticRegression

from covfree.heads.softmax import softmax_head

FLOAT64 = PRECISIONS["float64"]


def examples(seed=0):
    """One client's features and labels with padding, features of very unequal scales, and weights."""
    federation = federations.make(seed, offset=3.0)
    features = federation.features * np.logspace(-1, 1, DIM)
    labels = np.where(federation.kept, federation.labels, -1)
    weight = np.random.default_rng(seed).integers(0, 4, len(labels)).astype(float)
    return features, labels.astype(np.int32), weight


def standardised(features, weight):
    """Features about their mean, in units of their common deviation; and both."""
    share = weight / weight.sum()
    mean = share @ features
    deviation = np.sqrt(np.mean(share @ (features - mean) ** 2))
    return (features - mean) / deviation, mean, deviation


def slope(head, features, labels, weight, l2):
    """Largest entry of the gradient of the penalised loss, with respect to standardised weights and bias."""
    z, mean, deviation = standardised(features, weight)
    present = sorted(set(labels[weight > 0]))
    v = np.asarray(head.weight, np.float64)[:, present] * deviation
    b = np.asarray(head.bias, np.float64)[present] + mean @ np.asarray(head.weight, np.float64)[:, present]
    scores = z @ v + b
    probability = np.exp(scores - scores.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    residual = (weight / weight.sum())[:, None] * (probability - (labels[:, None] == np.array(present)))
    return max(np.abs(z.T @ residual + l2 * v).max(), np.abs(residual.sum(0)).max())


# Compiled once for each data type.
fitted = jax.jit(partial(softmax_head, num_classes=CLASSES), static_argnames="num_steps")


@pytest.mark.parametrize("weighted", [False, True])
def test_head_equals_scikit_learn(weighted):
    features, labels, weight = examples()
    kept = labels >= 0
    with x64():
        head = fitted(
            FLOAT64.array(features),
            jnp.asarray(labels),
            l2=0.01,
            weight=FLOAT64.array(np.where(kept, weight, np.nan)) if weighted else None,
            num_steps=500,
        )
    weight = weight[kept] if weighted else np.ones(kept.sum())
    z, mean, deviation = standardised(features[kept], weight)
    peer = LogisticRegression(C=1 / (0.01 * weight.sum()), tol=1e-10, max_iter=5000)
    peer.fit(z, labels[kept], sample_weight=weight)
    present = np.delete(np.arange(CLASSES), ABSENT)
    expected = peer.coef_.T / deviation
    assert_close(np.asarray(head.weight)[:, present], expected, 1e-5)
    assert_close(np.asarray(head.bias)[present], peer.intercept_ - mean @ expected, 1e-5)
    np.testing.assert_array_equal(head.weight[:, ABSENT], 0)
    assert np.asarray(head.present).tolist() == (np.arange(CLASSES) != ABSENT).tolist()
    assert np.asarray(head.bias)[ABSENT] == 0


def test_gradient_vanishes(precision):
    features, labels, _ = examples(1)
    kept = labels >= 0
    num_steps = 100 if precision is FLOAT32 else 500
    head = fitted(precision.array(features), jnp.asarray(labels), l2=1e-3, num_steps=num_steps)
    assert head.weight.dtype == head.bias.dtype == precision.dtype
    # The oracle takes the gradient of the head that was folded back, and so rounded.
    tolerance = 1.01 * np.sqrt(np.finfo(precision.dtype).eps)
    assert slope(head, features[kept], labels[kept], np.ones(kept.sum()), 1e-3) < tolerance


def test_derivatives_are_those_of_the_minimum():
    """In reverse too, though training is a loop: by the penalty, the features and the weights."""
    rng = np.random.default_rng(3)
    probes, labels = rng.normal(size=(4, 3)), np.array([0, 0, 1, 1, 3, 3, 3, -1])

    def score(l2, features, weight):
        head = softmax_head(features, labels, 4, l2=l2, weight=weight)
        return jnp.square(jax.nn.softmax(head(probes))).sum()

    with x64():
        point = jnp.array(0.05), jnp.asarray(rng.normal(size=(8, 3))), jnp.asarray(rng.uniform(1, 2, 8))
        along = [jnp.asarray(rng.normal(size=x.shape)) for x in point]
        value, there = (
            jax.jit(score),
            [[x + e * d for x, d in zip(point, along, strict=True)] for e in (1e-4, -1e-4)],
        )
        expected = (value(*there[0]) - value(*there[1])) / 2e-4
        forward = jax.jit(lambda *x: jax.jvp(score, x, tuple(along))[1])(*point)
        slopes = jax.jit(jax.grad(score, (0, 1, 2)))(*point)
        backward = sum(jnp.vdot(g, d) for g, d in zip(slopes, along, strict=True))
        np.testing.assert_allclose((forward, backward), expected, rtol=1e-5, atol=1e-6)


def test_scale_padding_and_order_do_not_matter():
    features, labels, _ = examples(2)
    order = np.random.default_rng(0).permutation(len(labels))
    head = fitted(FLOAT32.array(features), jnp.asarray(labels), l2=0.1)
    again = fitted(FLOAT32.array(features[order]), jnp.asarray(labels[order]), l2=0.1)
    assert_heads_close(again, head, 2e-3)
    # A label past the end is padding too.
    beyond = fitted(FLOAT32.array(features), jnp.where(labels < 0, CLASSES, labels), l2=0.1)
    assert_heads_close(beyond, head, 2e-3)
    # Squares of what is beyond 1e±19 leave float32.
    for scale in (1e-6, 1e6, 2.0**-90, 2.0**90):
        scaled = fitted(FLOAT32.array(scale * features), jnp.asarray(labels), l2=0.1)
        assert_heads_close(replace(scaled, weight=scaled.weight * scale), head, 2e-3)
    # More penalty, less weight.
    strong = fitted(FLOAT32.array(features), jnp.asarray(labels), l2=10.0)
    assert jnp.linalg.norm(strong.weight) < 0.1 * jnp.linalg.norm(head.weight)


def test_weights_are_numbers_of_copies():
    features, labels, weight = examples(3)
    copies = np.repeat(np.arange(len(labels)), weight.astype(int))[: len(labels)]
    number = np.bincount(copies, minlength=len(labels)).astype(np.float32)
    weighted = fitted(FLOAT32.array(features), jnp.asarray(labels), l2=0.1, weight=jnp.asarray(number))
    copied = fitted(FLOAT32.array(features[copies]), jnp.asarray(labels[copies]), l2=0.1)
    assert_heads_close(weighted, copied, 2e-3)


def test_degenerate_examples():
    features, labels, _ = examples(4)
    # Nothing but padding.
    head = fitted(FLOAT32.array(features), jnp.full(len(labels), -1), l2=0.1)
    np.testing.assert_array_equal(head.weight, 0)
    np.testing.assert_array_equal(head.present, 0)
    # A single class.
    head = fitted(FLOAT32.array(features), jnp.where(labels >= 0, 2, -1), l2=0.1)
    np.testing.assert_array_equal(head.weight, 0)
    assert head.present.tolist() == [c == 2 for c in range(CLASSES)]
    # Features that say nothing leave the classes' shares.
    head = fitted(jnp.ones((len(labels), DIM)), jnp.asarray(labels), l2=0.1)
    counts = np.bincount(labels[labels >= 0], minlength=CLASSES)
    np.testing.assert_allclose(jax.nn.softmax(head(jnp.ones(DIM))), counts / counts.sum(), atol=2e-3)
    # Classes that can be told apart, without a penalty: the loss has no minimum.
    head = fitted(
        FLOAT32.array(10 * np.eye(CLASSES)[np.maximum(labels, 0)][:, :DIM]), jnp.asarray(labels), l2=0.0
    )
    assert np.isfinite(np.asarray(head.weight)).all()


def test_half_precision_is_computed_in_float32():
    features, labels, _ = examples(5)
    half = jnp.asarray(features, jnp.bfloat16)
    head = fitted(half, jnp.asarray(labels), l2=0.1)
    assert head.weight.dtype == jnp.float32
    assert_heads_close(head, fitted(half.astype(jnp.float32), jnp.asarray(labels), l2=0.1), 2e-3)


def test_float32_features_where_float64_is_enabled():
    features, labels, _ = examples(6)
    with x64():
        head = fitted(FLOAT32.array(features), jnp.asarray(labels), l2=0.1)
        assert head.weight.dtype == head.bias.dtype == jnp.float32
    assert_heads_close(head, fitted(FLOAT32.array(features), jnp.asarray(labels), l2=0.1), 2e-3)


@pytest.mark.usefixtures("untyped")
def test_errors():
    features, labels, _ = examples(0)
    fit = partial(softmax_head, FLOAT32.array(features), jnp.asarray(labels))
    with pytest.raises(ValueError, match=r"weight: expected shape \[80\].*got \[3\]"):
        fit(CLASSES, weight=jnp.ones(3))
    with pytest.raises(ValueError, match="l2: expected a finite number of at least 0, got -1"):
        fit(CLASSES, l2=-1)
    with pytest.raises(ValueError, match="num_classes"):
        fit(0)
