"""Fed3R's recursive form: the batch solution after every update, and after every forgetting."""

import functools

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES, DIM
from precision import FLOAT32, PRECISIONS, assert_close, assert_heads_close

import covfree
from covfree.core.products import product
from covfree.heads.columns import unit_columns
from covfree.methods.field import recursive

RIDGE = 0.5
SIZE = 24  # examples of a client, padded, so that all share compiled functions


def clients_of(federation, precision=FLOAT32):
    """Features [clients, SIZE, dim] and labels [clients, SIZE], padded with NaN and labels out of range."""
    parts = []
    for k in range(federations.CLIENTS):
        mine = federation.clients == k
        features = np.full((SIZE, DIM), np.nan)
        labels = np.tile([-1, CLASSES, CLASSES + 7, -3], SIZE // 4)
        features[: mine.sum()], labels[: mine.sum()] = federation.features[mine], federation.labels[mine]
        parts.append((features, labels))
    features, labels = (np.stack(x) for x in zip(*parts, strict=True))
    return precision.array(features), precision.array(labels)


@functools.partial(jax.jit, static_argnums=0)
def scan(step, state, features, labels):
    return jax.lax.scan(lambda s, client: (step(s, *client), None), state, (features, labels))[0]


def all_clients(precision=FLOAT32, seed=0):
    features, labels = clients_of(federations.make(seed), precision)
    return scan(recursive.update, recursive.recursive_ridge(DIM, CLASSES, RIDGE), features, labels)


def assert_states_close(actual, expected, tolerance):
    assert_close(actual.root, expected.root, tolerance)
    assert_close(actual.total, expected.total, tolerance)
    np.testing.assert_array_equal(actual.count, expected.count)


def test_a_scan_over_clients_equals_the_batch(precision):
    federation = federations.make(0)
    state = all_clients(precision)
    head = recursive.head(state)
    assert head.weight.dtype == head.bias.dtype == precision.dtype
    assert_heads_close(head, oracle.fed3r(*federation, CLASSES, RIDGE), precision.tolerance)
    whole = covfree.fit(
        covfree.fed3r(RIDGE),
        precision.array(federation.features),
        precision.array(federation.labels),
        precision.array(federation.clients),
        num_classes=CLASSES,
    )
    assert_heads_close(head, whole, precision.tolerance)
    assert head.present[ABSENT] == 0
    # The root is what it says: upper triangular, its diagonal above 0, its square the matrix.
    rows = oracle.example_rows(*federation)
    matrix = oracle.gram([x for x, _, _ in rows], [y for _, _, y in rows], CLASSES)[0] + RIDGE * np.eye(DIM)
    np.testing.assert_array_equal(np.tril(state.root, -1), 0)
    assert (np.diagonal(state.root) > 0).all()
    assert_close(np.asarray(state.root, np.float64).T @ state.root, matrix, precision.tolerance)
    assert state.margin == 1


def test_the_batch_solution_holds_after_each_client(precision):
    federation = federations.make(1)
    features, labels = clients_of(federation, precision)
    state = recursive.recursive_ridge(DIM, CLASSES, RIDGE)
    for k in range(4):
        state = recursive.update(state, features[k], labels[k])
        seen = np.where(federation.clients <= k, federation.clients, -1)
        expected = oracle.fed3r(federation.features, federation.labels, seen, CLASSES, RIDGE)
        assert_heads_close(recursive.head(state), expected, precision.tolerance)


def test_any_order_and_any_grouping(precision):
    features, labels = clients_of(federations.make(0), precision)
    expected = all_clients(precision)
    start = recursive.recursive_ridge(DIM, CLASSES, RIDGE)
    order = np.random.default_rng(0).permutation(federations.CLIENTS)
    assert_states_close(
        scan(recursive.update, start, features[order], labels[order]), expected, precision.tolerance
    )
    together = recursive.update(start, features.reshape(-1, DIM), labels.reshape(-1))
    assert_states_close(together, expected, precision.tolerance)


def test_forgetting_undoes_an_update(precision):
    features, labels = clients_of(federations.make(0), precision)
    before = scan(
        recursive.update, recursive.recursive_ridge(DIM, CLASSES, RIDGE), features[:-2], labels[:-2]
    )
    after = scan(recursive.update, before, features[-2:], labels[-2:])
    # In another order than they came.
    undone = scan(recursive.downdate, after, features[-2:][::-1], labels[-2:][::-1])
    assert_states_close(undone, before, precision.tolerance)
    np.testing.assert_array_equal(np.tril(undone.root, -1), 0)
    assert 0.1 < undone.margin < 1


def test_forgetting_all_clients_leaves_the_ridge(precision):
    features, labels = clients_of(federations.make(0), precision)
    state = scan(recursive.downdate, all_clients(precision), features, labels)
    # What is left is λ against a Gram matrix that was a hundred times larger.
    assert_close(state.root, np.sqrt(RIDGE) * np.eye(DIM), 100 * precision.tolerance)
    np.testing.assert_array_equal(state.total, 0)
    np.testing.assert_array_equal(state.count, 0)
    np.testing.assert_array_equal(recursive.head(state).present, 0)
    assert 0 < state.margin < 0.2


def test_what_was_not_there_cannot_be_forgotten(precision):
    features, labels = clients_of(federations.make(0), precision)
    state = all_clients(precision)
    # Of a class that nobody holds; and features that nobody had.
    used = (labels[1] >= 0) & (labels[1] < CLASSES)
    for wrong in ((features[1], jnp.where(used, ABSENT, -1)), (100 * features[1], labels[1])):
        refused = recursive.downdate(state, *wrong)
        assert refused.margin == 0
        for field in ("root", "total", "count"):
            np.testing.assert_array_equal(getattr(refused, field), getattr(state, field))
        # It stays told.
        assert recursive.downdate(refused, features[1], labels[1]).margin == 0


def ill_conditioned(dim=24, clients=12):
    """Features with singular values from 1 to 1e4: their Gram matrix has condition 1e8, beyond float32."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    features = rng.normal(size=(clients, SIZE, dim)) * np.logspace(0, 4, dim) @ rotation
    features = features.astype(np.float32)
    return features, np.stack([rng.integers(0, 3, SIZE) for _ in range(clients)]).astype(np.int32)


def direct(features, labels, ridge):
    features, labels = features.reshape(-1, features.shape[-1]).astype(np.float64), labels.reshape(-1)
    matrix = features.T @ features + ridge * np.eye(features.shape[1])
    weight = np.linalg.solve(matrix, features.T @ np.eye(3)[labels])
    return weight / np.linalg.norm(weight, axis=0)


def test_ill_conditioned_features_in_float32():
    features, labels = ill_conditioned()
    state = scan(recursive.update, recursive.recursive_ridge(features.shape[-1], 3, 1.0), features, labels)
    error = np.linalg.norm(recursive.head(state).weight - direct(features, labels, 1.0))
    assert error < 1e-2
    # The route by the Gram matrix is what the root is there to avoid.
    flat = features.reshape(-1, features.shape[-1])
    gram = product(jnp.asarray(flat.T), jnp.asarray(flat)) + jnp.eye(flat.shape[1])
    with np.errstate(all="ignore"):
        naive = unit_columns(jnp.linalg.solve(gram, flat.T @ np.eye(3, dtype=np.float32)[labels.ravel()]))
    assert not np.linalg.norm(naive - direct(features, labels, 1.0)) < 5 * error
    # Half of the clients leave.
    half = scan(recursive.downdate, state, features[6:], labels[6:])
    assert half.margin > 0.1
    assert np.linalg.norm(recursive.head(half).weight - direct(features[:6], labels[:6], 1.0)) < 3e-2


def test_features_are_cast_to_the_state():
    features, labels = clients_of(federations.make(0))
    state = recursive.update(
        recursive.recursive_ridge(DIM, CLASSES, RIDGE), features[1].astype(jnp.bfloat16), labels[1]
    )
    assert state.root.dtype == state.total.dtype == np.float32
    with PRECISIONS["float64"].context():
        state = recursive.recursive_ridge(DIM, CLASSES, RIDGE)
        assert recursive.update(state, features[1], labels[1]).root.dtype == np.float64


def test_the_ridge_may_be_swept():
    features, labels = clients_of(federations.make(0))

    def of_ridge(ridge):
        return recursive.head(
            scan(recursive.update, recursive.recursive_ridge(DIM, CLASSES, ridge), features, labels)
        )

    ridges = jnp.array([0.1, 10.0])
    heads = jax.jit(jax.vmap(of_ridge))(ridges)
    for k, ridge in enumerate(ridges):
        expected = oracle.fed3r(*federations.make(0), CLASSES, float(ridge))
        assert_heads_close(jax.tree.map(lambda leaf, k=k: leaf[k], heads), expected, FLOAT32.tolerance)


@pytest.mark.usefixtures("untyped")
def test_bad_arguments():
    with pytest.raises(ValueError, match="dim: expected an integer of at least 1, got 0"):
        recursive.recursive_ridge(0, 2, 1.0)
    with pytest.raises(ValueError, match="ridge: expected a finite number above 0, got 0"):
        recursive.recursive_ridge(3, 2, 0.0)
    state = recursive.recursive_ridge(3, 2, 1.0)
    for step in (recursive.update, recursive.downdate):
        with pytest.raises(ValueError, match=r"features: expected \[examples, 3\].* got \[4, 5\]"):
            step(state, jnp.ones((4, 5)), jnp.zeros(4, jnp.int32))
        with pytest.raises(TypeError, match="labels: expected integers, got float32"):
            step(state, jnp.ones((4, 3)), jnp.zeros(4))
