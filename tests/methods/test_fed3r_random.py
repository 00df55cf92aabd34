"""Fed3R-RF: the width that clients' sums give, and the paper's one round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import covfree
from covfree.rounds import as_algorithm, run

CLASSES, DIM, EXAMPLES = 3, 4, 90
SIZE = 24


def examples(scale=1.0):
    """Examples of three classes, some of them padding that holds no number."""
    rng = np.random.default_rng(0)
    labels, clients = rng.integers(0, CLASSES, EXAMPLES), np.arange(EXAMPLES) % 7
    features = rng.normal(size=(EXAMPLES, DIM)) + np.eye(CLASSES, DIM)[labels] + 0.3
    features[::9], labels[::9] = np.nan, -1
    return (scale * features).astype(np.float32), labels, clients


def width(features, labels):
    """Four times the total deviation."""
    return 4 * np.sqrt(features[labels >= 0].astype(np.float64).var(0).sum())


@pytest.mark.slow
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_width_follows_the_features(scale, unit):
    features, labels, clients = examples(scale)
    head = covfree.fit(covfree.fed3r_random(0.1, SIZE, unit=unit), features, labels, clients)
    used = features / np.linalg.norm(features, axis=1, keepdims=True) if unit else features
    np.testing.assert_allclose(head.feature_map.sigma, width(used, labels), rtol=1e-4)
    # A second round is Fed3R's of that width.
    known = covfree.fed3r_random(0.1, SIZE, sigma=float(head.feature_map.sigma), unit=unit)
    assert known.one_shot
    points = scale * np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)
    expected = covfree.fit(known, features, labels, clients)
    np.testing.assert_allclose(head(points), expected(points), atol=2e-3)


def test_clients_send_sums():
    """In two rounds, of which the head is that of `fit`; bytes are those of the sums."""
    features, labels, clients = examples()
    method = covfree.fed3r_random(0.1, SIZE)
    assert not method.one_shot
    done = run(as_algorithm(method, num_classes=CLASSES), features, labels, clients, key=jax.random.key(0))
    assert len(done.history) == 2
    head = covfree.fit(method, features, labels, clients)
    points = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)
    np.testing.assert_allclose(done.result(points), head(points), atol=2e-3)
    sent = covfree.sent_bytes(method, labels, clients, dim=DIM)
    # n, Σ x and Σ ‖x‖²; the Gram matrix with its multiple of I, class sums, N_c, K_c and magnitudes.
    assert sent.total == 4 * 7 * (DIM + 2 + SIZE**2 + 1 + CLASSES * (SIZE + 3))
    assert sent.total == sum(record["bytes_up"] for record in done.history)
    assert covfree.received_bytes(method, labels, clients, dim=DIM) == 4 * 7


def test_equal_features_have_a_width():
    head = covfree.fit(covfree.fed3r_random(0.1, SIZE), jnp.zeros((6, 2)), np.arange(6) % 2, np.zeros(6, int))
    assert head.feature_map.sigma == 4
    same = covfree.fit(covfree.fed3r_random(0.1, SIZE), jnp.ones((6, 2)), np.arange(6) % 2, np.zeros(6, int))
    assert 0 < same.feature_map.sigma < 1e-2


@pytest.mark.slow
def test_digits_at_any_scale():
    """Above Fed3R, where the paper's σ is far from the features' size, or far above the norm 1."""
    features, labels = load_digits(return_X_y=True)
    test = np.arange(labels.size) % 3 == 0
    accuracy = {}
    for scale in (1 / 16, 100.0):
        x = (scale * features).astype(np.float32)
        for name, method in {
            "fed3r": covfree.fed3r(scale**2),
            "auto": covfree.fed3r_random(num_features=500),
            "degenerate": covfree.fed3r_random(num_features=500, sigma=1000.0, unit=True),
        }.items():
            head = covfree.fit(method, x[~test], labels[~test], np.zeros((~test).sum(), int))
            accuracy[name, scale] = float(covfree.evaluate(head, x[test], labels[test]))
    for scale in (1 / 16, 100.0):
        assert accuracy["auto", scale] > accuracy["fed3r", scale]
        assert accuracy["degenerate", scale] < 0.5


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sigma": "wide"}, ValueError, "sigma: expected a number above 0 or 'auto', got 'wide'"),
        ({"sigma": 0.0}, ValueError, "sigma: expected a finite number above 0"),
        ({"num_features": 0}, ValueError, "num_features: expected an integer of at least 1"),
        ({"ridge": -1.0}, ValueError, "ridge: expected"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        covfree.fed3r_random(**arguments)
