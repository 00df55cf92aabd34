"""Metrics against scikit-learn and plain NumPy in float64; padding, absent classes, no prediction."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32, PRECISIONS
from sklearn import metrics as oracle

from covfree import evaluate, metrics

EXAMPLES, CLASSES, CLIENTS = 200, 6, 7
# Class 4 is unknown to the head, class 5 has no examples, client 3 neither.
UNKNOWN, EMPTY, NOBODY = 4, 5, 3


def problem(seed=0, scale=2.0):
    """Scores, labels and clients; some of the labels are of the class that the head does not know."""
    rng = np.random.default_rng(seed)
    scores = scale * rng.normal(size=(EXAMPLES, CLASSES))
    labels = rng.integers(0, EMPTY, EXAMPLES)
    scores[np.arange(EXAMPLES), labels] += rng.normal(size=EXAMPLES)
    scores[:, UNKNOWN] = -np.inf
    clients = rng.choice([k for k in range(CLIENTS) if k != NOBODY], EXAMPLES)
    return scores, labels, clients


def known(labels):
    """The same examples, none of which is of the class that the head does not know."""
    return np.where(labels == UNKNOWN, 0, labels)


def padded(scores, labels, clients):
    """With padding between, whose scores are NaN."""
    places = np.arange(0, EXAMPLES, 9)
    return (
        np.insert(scores, places, np.nan, axis=0),
        np.insert(labels, places, -3),
        np.insert(clients, places, 1),
    )


def softmax(scores):
    exponential = np.exp(scores - scores.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def ece(scores, labels, bins):
    """Bin by bin, as the official code of Guo et al. goes about it."""
    probability = softmax(scores)
    confidence, right = probability.max(1), probability.argmax(1) == labels
    edges, total = np.linspace(0, 1, bins + 1), 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def expected(scores, labels, clients):
    """Every figure by other means, in float64."""
    predicted, every = scores.argmax(1), np.arange(CLASSES)
    with np.errstate(invalid="ignore"):
        recall = oracle.recall_score(labels, predicted, labels=every, average=None, zero_division=np.nan)
    right = (predicted == labels).astype(float)
    by_client = [right[clients == k].mean() if (clients == k).any() else np.nan for k in range(CLIENTS)]
    loss = oracle.log_loss(known(labels), softmax(scores), labels=every)
    return {
        "accuracy": oracle.accuracy_score(labels, predicted),
        "balanced": np.nanmean(recall),
        "worst_class": np.nanmin(recall),
        "nll": np.inf if (labels == UNKNOWN).any() else loss,
        "ece": ece(scores, labels, 15),
        "mean_client": np.nanmean(by_client),
        "worst_client": np.nanmin(by_client),
        "p10_client": np.nanpercentile(by_client, 10),
    }, (recall, by_client)


@pytest.mark.parametrize("unknown", [True, False], ids=["unknown-class", "known-classes"])
def test_every_figure_against_scikit_learn(precision, unknown):
    scores, labels, clients = problem()
    labels = labels if unknown else known(labels)
    figures, (recall, by_client) = expected(scores, labels, clients)
    given = scores, labels, clients = padded(scores, labels, clients)
    scores = precision.array(scores)
    found = metrics.measure(scores, labels, clients=clients)
    assert list(found) == list(metrics.NAMES) == list(figures)
    for name, figure in figures.items():
        np.testing.assert_allclose(found[name], figure, rtol=precision.tolerance, err_msg=name)
    # The functions that they are made of, on their own.
    for name, function in {
        "accuracy": metrics.accuracy,
        "balanced": metrics.balanced_accuracy,
        "nll": metrics.nll,
        "ece": metrics.calibration_error,
    }.items():
        assert function(scores, labels).dtype == precision.dtype
        np.testing.assert_allclose(function(scores, labels), found[name], rtol=precision.tolerance)
    np.testing.assert_allclose(metrics.class_recall(scores, labels), recall, rtol=precision.tolerance)
    own = metrics.client_accuracy(scores, labels, clients, num_clients=CLIENTS)
    np.testing.assert_allclose(own, by_client, rtol=precision.tolerance)
    assert np.isnan(own[NOBODY])
    assert np.isnan(recall[EMPTY])
    kept = given[1] >= 0
    predicted, kept_labels = np.argmax(given[0][kept], 1), given[1][kept]
    every = np.arange(CLASSES)
    np.testing.assert_array_equal(
        metrics.confusion_matrix(scores, labels),
        oracle.confusion_matrix(kept_labels, predicted, labels=every),
    )
    shares = oracle.precision_score(kept_labels, predicted, labels=every, average=None, zero_division=np.nan)
    np.testing.assert_allclose(metrics.class_precision(scores, labels), shares, rtol=precision.tolerance)
    # Nobody predicts a class that is unknown.
    assert np.isnan(shares[UNKNOWN])


@pytest.mark.parametrize("bins", [1, 10])
def test_the_number_of_bins(bins):
    scores, labels, _ = problem(1, scale=1.0)
    with PRECISIONS["float64"].context():
        found = metrics.calibration_error(scores, labels, bins=bins)
        np.testing.assert_allclose(found, ece(scores, labels, bins), rtol=1e-9)


def test_accuracy_is_that_of_evaluate():
    scores, labels, _ = padded(*problem(2))
    scores = jnp.asarray(scores, jnp.float32)
    assert metrics.accuracy(scores, labels) == evaluate(lambda given: given["x"], {"x": scores}, labels)


def test_examples_without_a_prediction_count_as_wrong():
    nothing, nan = [-jnp.inf] * 3, [jnp.nan, 0.0, 1.0]
    scores = jnp.array([[3.0, 0.0, 0.0], nothing, nan])
    labels = jnp.array([0, 0, 2])
    assert metrics.accuracy(scores, labels) == pytest.approx(1 / 3)
    np.testing.assert_allclose(metrics.class_recall(scores, labels), [0.5, np.nan, 0])
    assert metrics.confusion_matrix(scores, labels).sum() == 1
    # No chance to be right, and no confidence to be wrong with.
    assert metrics.nll(scores[:2], labels[:2]) == jnp.inf
    sure = float(jax.nn.softmax(scores[0])[0])
    assert metrics.calibration_error(scores[:2], labels[:2]) == pytest.approx((1 - sure) / 2)
    # NaN is shown, and not taken for something.
    assert np.isnan(metrics.nll(scores, labels))
    assert np.isnan(metrics.calibration_error(scores, labels))


def test_nothing_but_padding_is_nan():
    found = metrics.measure(jnp.zeros((3, CLASSES)), -jnp.ones(3, int), clients=jnp.zeros(3, int))
    assert all(np.isnan(figure) for figure in found.values()), found
    assert metrics.measure(jnp.zeros((0, 2)), jnp.zeros(0, int), ["accuracy"])["accuracy"] != 0


def test_under_vmap_as_one_by_one():
    several = [problem(seed) for seed in range(3)]
    scores, labels, clients = (np.stack(part) for part in zip(*several, strict=True))
    scores = scores.astype(np.float32)

    def figures(scores, labels, clients):
        return (
            metrics.nll(scores, labels),
            metrics.calibration_error(scores, labels),
            metrics.client_accuracy(scores, labels, clients, num_clients=CLIENTS),
            metrics.confusion_matrix(scores, labels),
        )

    together = jax.jit(jax.vmap(figures))(scores, known(labels), clients)
    for place in range(3):
        alone = figures(scores[place], known(labels)[place], clients[place])
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(ours[place], theirs, rtol=1e-5)


def test_a_label_beyond_the_classes_is_padding_under_jit_and_an_error_elsewhere(untyped):
    scores, labels = jnp.eye(3), jnp.array([0, 2, 3])
    assert jax.jit(metrics.accuracy)(scores, labels) == 0.5
    assert jax.jit(metrics.confusion_matrix)(scores, labels).sum() == 2
    with pytest.raises(ValueError, match=r"labels: expected labels below 3, .*, got 3"):
        metrics.accuracy(scores, labels)


def test_long_means_keep_their_digits():
    """A million equal terms, which a running sum in float32 does not hold."""
    scores = np.broadcast_to(np.float32([0, 1.7]), (1_000_000, 2))
    labels = np.zeros(1_000_000, np.int8)
    loss = np.log1p(np.exp(np.float64(np.float32(1.7))))
    np.testing.assert_allclose(metrics.nll(scores, labels), loss, rtol=1e-6)


def test_clients_of_any_size_and_labels_of_any_type():
    scores, labels, clients = problem(3)
    names = ["worst_client", "accuracy"]
    scores = FLOAT32.array(scores)
    plain = metrics.measure(scores, labels, names, clients=clients)
    far = metrics.measure(scores, labels.astype(np.uint8), names, clients=10**12 * (clients + 1))
    assert far == plain
    assert list(plain) == names
    # Of an example that is nobody's, no client's accuracy knows.
    orphans = metrics.measure(scores, labels, names, clients=np.where(clients == 1, -5, clients))
    rest = clients != 1
    left = metrics.client_accuracy(scores[rest], labels[rest], clients[rest], num_clients=CLIENTS)
    assert orphans["worst_client"] == pytest.approx(float(np.nanmin(left)))
    assert orphans["accuracy"] == plain["accuracy"]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda s, y: metrics.accuracy(s.astype(int), y), TypeError, "scores: expected floats, got int"),
        (lambda s, y: metrics.nll(s[0], y), ValueError, r"scores: expected shape .*got \[3\]"),
        (lambda s, y: metrics.nll(s, y[:1]), ValueError, r"labels: expected shape \[2\].*got \[1\]"),
        (lambda s, y: metrics.nll(s, y / 2), TypeError, "labels: expected integers, got float"),
        (lambda s, y: metrics.calibration_error(s, y, bins=0), ValueError, "bins: .*at least 1, got 0"),
        (
            lambda s, y: metrics.client_accuracy(s, y, y, num_clients=1),
            ValueError,
            "clients: expected numbers below num_clients = 1, got 1",
        ),
        (lambda s, y: metrics.measure(s, y, ["f1"]), ValueError, "names: expected some of accuracy, .*'f1'"),
        (
            lambda s, y: metrics.measure(s, y, ["worst_client"]),
            ValueError,
            "names: worst_client needs the client of each example, got clients = None",
        ),
        (
            lambda s, y: metrics.measure(s, y, clients=y[:1]),
            ValueError,
            r"clients: expected shape \[2\].*got \[1\]",
        ),
        (lambda s, y: metrics.nll([[1.0, 2.0]], y), TypeError, "scores: expected an array, got list"),
        (
            lambda s, y: metrics.measure(s, y, "nll"),
            TypeError,
            r"names: expected several names, such as \['nll'\], got 'nll'",
        ),
        (lambda s, y: metrics.measure(s, y + 2**40, ["nll"]), ValueError, "labels: expected labels below 3"),
    ],
)
def test_errors_name_the_argument(call, kind, text):
    with pytest.raises(kind, match=text):
        call(np.zeros((2, 3), np.float32), np.array([0, 1]))


def test_scores_far_from_zero_lose_nothing():
    """Differences of scores decide: an offset of all that float32 holds exactly changes nothing."""
    rng = np.random.default_rng(5)
    near, labels = np.float32(rng.integers(-3, 4, (40, 3))), rng.integers(0, 3, 40)
    names = ["nll", "ece"]
    expected = metrics.measure(jnp.asarray(near), jnp.asarray(labels), names)
    for offset in (2.0**20, -(2.0**20)):
        found = metrics.measure(jnp.asarray(near + np.float32(offset)), jnp.asarray(labels), names)
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


def test_padding_reaches_no_gradient():
    scores = jnp.asarray([[1.0, 2.0], [jnp.nan, 0.0]], jnp.float32)
    slope = jax.grad(lambda s: metrics.nll(s, jnp.asarray([0, -1])))(scores)
    assert np.isfinite(slope).all()
    assert not slope[1].any()
