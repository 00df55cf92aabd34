"""Matrices at the door: what cannot be F Fᵀ of the examples is refused, and no honest rounding is."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from deployed import rows, with_matrix, with_rows
from precision import x64

import covfree


def reason(message: covfree.Message, num_classes: int = 3, **options) -> str:
    """Why it is set aside; empty if it is not. A sound one comes with it, so that nothing raises."""
    empty = covfree.Message(
        covfree.Rows(np.zeros((0, np.shape(message.rows.mean)[1]), np.float32), *2 * [np.zeros(0, np.int32)])
    )
    collected = covfree.collect({"it": message, "none": empty}, num_classes=num_classes, **options)
    return collected.rejected.get("it", "")


def changed(matrix, **parts) -> covfree.Message:
    return dataclasses.replace(with_matrix(rows()), matrix=matrix, **parts)


GOOD = with_matrix(rows()).matrix.astype(np.float64)  # [[49, 66], [66, 93]]
ASYMMETRIC = np.array([[49, 66.5], [66, 93]])
REFUSED = {
    "negative": (-50 * np.eye(2), "matrix: holds -50.0 at (0, 0); expected a diagonal of at least 0"),
    "times -100": (-100 * GOOD, "matrix: holds -4900.0 at (0, 0); expected a diagonal of at least 0"),
    "asymmetric": (ASYMMETRIC, "matrix: holds 66.5 at (0, 1) and 66.0 at (1, 0); expected a symmetric"),
    "too large beside the diagonal": (
        [[49.0, -70.0], [-70.0, 93.0]],
        "matrix: holds -70.0 at (",
    ),
    "complex": (GOOD + 1e-3j, "matrix: expected floats, got complex128"),
    "integers that wrap": (np.full((2, 2), 100, np.int8), "matrix: expected floats, got int8"),
    "about to overflow": (3e37 * np.eye(2, dtype=np.float32), "matrix: has a trace of 6e+37; expected at mo"),
    "huge": (np.full((2, 2), 1e300), "matrix: holds 1e+300 at (0, 0); expected finite numbers"),
}


@pytest.mark.parametrize(("matrix", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_gram_matrix_is_refused(untyped, matrix, text):
    matrix = np.asarray(matrix)
    single = matrix.astype(np.float32) if matrix.dtype == np.float64 and matrix.max() < 1e38 else matrix
    assert reason(changed(GOOD)) == reason(changed(GOOD.astype(np.float32))) == ""
    assert reason(changed(single)).startswith(text)


@pytest.mark.parametrize("matrix", [-50 * np.eye(2), ASYMMETRIC], ids=["negative", "asymmetric"])
def test_nor_is_what_is_no_matrix_of_a_solution(matrix):
    assert reason(changed(GOOD, solved=True)) == ""
    assert reason(changed(matrix, solved=True)).startswith("matrix: holds ")


def test_a_negative_eigenvalue_behind_a_positive_diagonal():
    """Three features each of which seems to be the opposite of both others."""
    matrix = 10 * np.where(np.eye(3, dtype=bool), 1, -0.9)
    small = rows(mean=np.full((2, 3), 0.1))
    message = dataclasses.replace(small, matrix=matrix.astype(np.float32))
    assert reason(message) == "matrix: has a negative eigenvalue; expected F Fᵀ, a sum of squares"
    assert reason(dataclasses.replace(message, solved=True)) == reason(message)


def clients():
    """Honest clients' features and labels, each hard in a way of its own; most of them in one shape."""
    rng = np.random.default_rng(0)

    def features(n, dim, offset=0.0):
        labels = rng.integers(0, 3, n)
        values = rng.normal(size=(n, dim)) + offset * rng.normal(size=(3, dim))[labels]
        return values.astype(np.float32), labels

    far, labels = features(3000, 64, 1e4)
    near, first = features(3000, 64)[0], np.arange(3000)
    yield "far from zero", far, labels
    yield "one example", far, np.where(first == 0, labels, -1)
    yield "fewer than features, far from zero", far, np.where(first < 9, labels, -1)
    yield "all equal", np.tile(near[:1], (3000, 1)), 0 * labels
    yield "scales apart", near * np.logspace(-9, 9, 64, dtype=np.float32), labels
    yield "one feature always 0", near * (np.arange(64) > 0), labels
    yield "squares that vanish", near * np.float32(1e-21), labels
    yield "large d", *features(40, 1280, 1e4)
    yield "many", *features(100_000, 8, 3.0)


@pytest.mark.parametrize("name", ["fed3r", "afl", "fedcof-oracle"])
def test_what_honest_clients_compute_is_accepted(name):
    method = covfree.methods.registry()[name].make()
    for client, features, labels in clients():
        for dtype in (jnp.float32, jnp.bfloat16) if client == "far from zero" else (jnp.float32,):
            if features.shape[1] == 64 or name == "fed3r":
                message = covfree.client_message(method, jnp.asarray(features, dtype), labels, num_classes=3)
                assert reason(message) == "", (client, dtype)


def test_what_clients_add_up_one_after_the_other_is_accepted():
    """10⁵ terms without any care: rounding is 20 times that of sums in parts, and of one sign."""
    rng = np.random.default_rng(1)
    for offset in (0.0, 1e4):
        features = (rng.normal(size=(100_000, 12)) + offset * rng.normal(size=12)).astype(np.float32)
        sums = np.add.accumulate(features, axis=0)[-1]
        columns = (features[:, i : i + 1] for i in range(12))
        matrix = np.stack([np.add.accumulate(features * column, axis=0)[-1] for column in columns])
        assert matrix.dtype == np.float32
        mean = (sums / np.float32(100_000))[None]
        message = rows(mean=mean, count=[100_000], label=[0])
        assert reason(dataclasses.replace(message, matrix=matrix)) == ""


def test_what_was_rounded_to_be_sent_is_accepted():
    features = np.random.default_rng(2).normal(size=(30, 40)) + 5
    mean, gram = features.mean(0, keepdims=True), features.T @ features
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        part = {"mean": np.asarray(jnp.asarray(mean, dtype))}
        message = with_rows(rows(mean=mean, count=[30], label=[0]), **part)
        assert reason(dataclasses.replace(message, matrix=np.asarray(jnp.asarray(gram, dtype)))) == "", dtype


def test_half_precision_is_added_up_in_full():
    """60,000 and 60,000 are more than float16 holds."""
    message = rows(mean=[[200.0, 200.0]], count=[1], label=[0], mean_dtype=np.float16)
    message = dataclasses.replace(message, matrix=np.full((2, 2), 40_000, np.float16))
    total = covfree.collect({k: message for k in range(9)}, num_classes=3).message
    np.testing.assert_array_equal(total.matrix, np.full((2, 2), 360_000.0))
    assert total.rows.mean.dtype == np.float32


def test_features_computed_in_float32_are_accepted_where_float64_is_enabled():
    for _, features, labels in list(clients())[:3]:
        message = covfree.client_message(covfree.fed3r(), features, labels, num_classes=3)
        wide = with_rows(message, mean=np.asarray(message.rows.mean, np.float64))
        wide = dataclasses.replace(wide, matrix=np.asarray(message.matrix, np.float64))
        with x64():
            assert reason(wide) == ""


# Covariances with each row

COVARIANCES = {
    "negative variance": ([1.0, -2.0], "row 1 (class 2) holds -2.0 at position 0; expected variances of at"),
    "negative on a diagonal": (
        [[1.0, 1.0], [3.0, -0.5]],
        "row 1 (class 2) holds -0.5 at position 1; expected variances of at least 0",
    ),
    "negative in full": (
        [np.eye(2), -np.eye(2)],
        "row 1 (class 2) holds -1.0 at (0, 0); expected a diagonal of at least 0",
    ),
    "asymmetric": (
        [[[1.0, 0.5], [0.4, 1.0]], np.eye(2)],
        "row 0 (class 0) holds 0.5 at (0, 1) and 0.4",
    ),
    "correlation above 1": (
        [np.eye(2), [[1.0, 2.0], [2.0, 1.0]]],
        "row 1 (class 2) holds 2.0 at (0, 1); expected at most 1",
    ),
}


@pytest.mark.parametrize(("covariance", "text"), COVARIANCES.values(), ids=COVARIANCES)
def test_what_is_no_covariance_is_refused(covariance, text):
    message = with_rows(rows(), covariance=np.array(covariance, np.float32))
    assert reason(message).startswith(f"covariance: {text}")
    # Of padding it may be anything.
    assert reason(with_rows(message, count=np.zeros(2, np.int32))) == ""


def test_a_covariance_with_a_negative_eigenvalue_is_refused():
    """Its diagonal is positive, and no correlation is beyond 1."""
    sound = with_rows(rows(mean=np.zeros((2, 4))), covariance=np.ones((2, 4, 4), np.float32))
    assert reason(sound) == ""
    wrong = np.array(sound.rows.covariance)
    wrong[1] = 2 * np.eye(4) - 1
    text = "covariance: row 1 (class 2) has a negative eigenvalue; expected a sum of squares"
    assert reason(with_rows(sound, covariance=wrong)) == text


def test_parts_of_the_wrong_type_are_refused(untyped):
    for dtype in ("complex128", "int64"):
        message = with_rows(rows(), covariance=np.ones(2, dtype))
        assert reason(message) == f"covariance: expected floats, got {dtype}"
    assert reason(with_rows(rows(), sketch=np.zeros(2, int))) == "sketch: expected booleans, got int64"
