"""AFL: the aggregate of clients' ridge solutions is the pooled ridge regression, whatever γ and the split."""

import functools

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES, CLIENTS, DIM
from precision import FLOAT32, PRECISIONS, assert_close
from sklearn.linear_model import Ridge

from covfree.estimators.analytic import (
    Analytic,
    aggregate,
    local_solution,
    remove_regularisation,
)

FLOAT64 = PRECISIONS["float64"]
SIZE = 40


def used(federation):
    """Features and one-hot labels of the examples that count, in float64."""
    kept = (federation.labels >= 0) & (federation.clients >= 0)
    return federation.features[kept], np.eye(CLASSES)[federation.labels[kept]]


def pooled(federation, ridge=0.0):
    """Ridge regression on all examples as least squares of the stacked system; minimum norm where λ = 0."""
    features, targets = used(federation)
    dim = features.shape[1]
    stacked = np.concatenate([features, np.sqrt(ridge) * np.eye(dim)])
    return np.linalg.lstsq(stacked, np.concatenate([targets, np.zeros((dim, CLASSES))]), rcond=None)[0]


def split(federation, kind):
    """Which client holds which example; −1 stays."""
    n = len(federation.labels)
    owner = {
        "as it is": federation.clients,
        "one client": np.zeros(n, int),
        # Each with fewer examples than dimensions: no client's own system is regular without γ.
        "few examples each": np.arange(n) % 18,
        "one class each": np.maximum(federation.labels, 0),
    }[kind]
    return np.where(federation.clients >= 0, owner, -1)


@jax.jit
def local_solutions(features, labels, gamma):
    return jax.vmap(lambda x, y: local_solution(x, y, CLASSES, gamma))(features, labels)


def messages(federation, clients, gamma, precision):
    """Stacked messages of all clients, padded to one shape with NaN features."""
    num_clients = clients.max() + 1
    features = np.full((num_clients, SIZE, federation.features.shape[1]), np.nan)
    labels = np.tile([-1, CLASSES], (num_clients, SIZE // 2))
    for k in range(num_clients):
        mine = np.flatnonzero(clients == k)[:SIZE]
        assert mine.size == (clients == k).sum()
        features[k, : mine.size], labels[k, : mine.size] = federation.features[mine], federation.labels[mine]
    return local_solutions(precision.array(features), precision.array(labels), gamma)


def client(stacked, k) -> Analytic:
    return jax.tree.map(lambda x: x[k], stacked)


@jax.jit
def fold(stacked):
    """All clients, one after the other."""
    rest = jax.tree.map(lambda x: x[1:], stacked)
    return jax.lax.scan(lambda sofar, new: (aggregate(sofar, new), None), client(stacked, 0), rest)[0]


def half(federation):
    """At most SIZE examples of a client, so that one shape holds any split."""
    clients = federation.clients.copy()
    clients[SIZE:] = -1
    return federation._replace(clients=clients)


@functools.cache
def federation_of(seed):
    return half(federations.make(seed))


def test_one_client_is_a_ridge_regression(precision):
    federation = federation_of(0)
    features, targets = used(federation)
    message = client(messages(federation, split(federation, "one client"), 2.0, precision), 0)
    peer = Ridge(alpha=2.0, fit_intercept=False).fit(features, targets)
    assert_close(message.weight, peer.coef_.T, precision.tolerance)
    assert_close(message.gram, features.T @ features + 2.0 * np.eye(DIM), precision.tolerance)
    assert message.clients == 1


@pytest.mark.parametrize("kind", ["as it is", "one client", "few examples each", "one class each"])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 100.0])
def test_the_aggregate_is_the_pooled_regression(precision, kind, gamma):
    federation = federation_of(0)
    clients = split(federation, kind)
    whole = fold(messages(federation, clients, gamma, precision))
    count = clients.max() + 1
    assert whole.clients == count
    # Before anything is removed: the regression with all of the clients' γ.
    assert_close(whole.weight, pooled(federation, count * gamma), precision.tolerance)
    # Float32 knows C − KγI to eps·(λ_max + Kγ), a dozen roundings of it, against λ_min.
    features = used(federation)[0]
    values = np.linalg.svd(features, compute_uv=False) ** 2
    eps = np.finfo(precision.dtype).eps
    tolerance = 20 * eps * (values[0] + count * gamma) / values[-1]
    assert tolerance < (0.03 if precision.name == "float32" else 1e-10)
    for ridge in (0.0, 3.0):
        weight = remove_regularisation(whole, gamma, ridge)
        assert_close(weight, pooled(federation, ridge), max(tolerance, precision.tolerance / 100))


def test_associative_and_commutative(precision):
    federation = federation_of(1)
    stacked = messages(federation, federation.clients, 1.0, precision)
    a, b, c = (client(stacked, k) for k in range(3))
    for one, other in (
        (aggregate(a, b), aggregate(b, a)),
        (aggregate(aggregate(a, b), c), aggregate(a, aggregate(b, c))),
    ):
        assert_close(one.weight, other.weight, precision.tolerance)
        assert_close(one.gram, other.gram, precision.tolerance)
        assert one.clients == other.clients
    # Any tree of all of them.
    parts = [client(stacked, k) for k in np.random.default_rng(0).permutation(CLIENTS)]
    while len(parts) > 1:
        parts = [functools.reduce(aggregate, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    expected = fold(stacked)
    assert_close(parts[0].weight, expected.weight, precision.tolerance)
    assert_close(parts[0].gram, expected.gram, precision.tolerance)


def test_the_law_as_the_paper_prints_it():
    # 𝒲_u = I − C_u⁻¹ C_v (I − (C_u + C_v)⁻¹ C_v), and the same with u and v exchanged.
    federation = federation_of(2)
    with FLOAT64.context():
        stacked = messages(federation, federation.clients, 0.7, FLOAT64)
        u, v = (client(stacked, k) for k in range(2))
        both = aggregate(u, v)
        eye, total = np.eye(DIM), np.linalg.inv(np.asarray(u.gram + v.gram))

        def share(mine, other):
            return eye - np.linalg.inv(mine) @ other @ (eye - total @ other)

        cu, cv = np.asarray(u.gram), np.asarray(v.gram)
        expected = share(cu, cv) @ np.asarray(u.weight) + share(cv, cu) @ np.asarray(v.weight)
        assert_close(both.weight, expected, 1e-9)


@pytest.mark.parametrize(("gamma", "seed"), [(0.1, 0), (1.0, 0), *((1e4, seed) for seed in range(4))])
def test_minimum_norm_where_the_features_are_dependent(gamma, seed):
    # With the largest γ, what is left of C − KγI beside the plane is far above the rounding of Xᵀ X.
    federation = federation_of(0)
    # Five dimensions in a plane of three.
    plane = np.random.default_rng(seed).normal(size=(3, DIM))
    flat = federation._replace(features=np.where(federation.clients[:, None] >= 0, 1, np.nan))
    flat = flat._replace(features=flat.features * (federation.features[:, :3] @ plane))
    with FLOAT64.context():
        whole = fold(messages(flat, flat.clients, gamma, FLOAT64))
        weight = remove_regularisation(whole, gamma)
    expected = pooled(flat)
    assert np.linalg.matrix_rank(used(flat)[0]) == 3
    assert_close(weight, expected, 1e-9 * max(gamma, 1))


def test_without_regularisation_at_all():
    federation = federation_of(0)
    with FLOAT64.context():
        whole = fold(messages(federation, split(federation, "few examples each"), 0.0, FLOAT64))
        assert_close(remove_regularisation(whole, 0.0), pooled(federation), 1e-9)


def test_an_empty_client_changes_nothing():
    federation = federation_of(0)
    stacked = messages(federation, federation.clients, 1.0, FLOAT32)
    empty = local_solution(jnp.full((SIZE, DIM), jnp.nan), jnp.full(SIZE, -1), CLASSES, 1.0)
    np.testing.assert_array_equal(empty.weight, 0)
    np.testing.assert_array_equal(empty.gram, np.eye(DIM))
    whole = remove_regularisation(aggregate(fold(stacked), empty), 1.0)
    assert_close(whole, pooled(federation), 1e-4)


@pytest.mark.usefixtures("untyped")
def test_bad_arguments():
    one = local_solution(jnp.ones((2, 3)), jnp.zeros(2, jnp.int32), 2, 1.0)
    other = local_solution(jnp.ones((2, 4)), jnp.zeros(2, jnp.int32), 2, 1.0)
    with pytest.raises(ValueError, match=r"second: expected a weight of \[3, 2\].* got \[4, 2\]"):
        aggregate(one, other)
    with pytest.raises(ValueError, match="gamma: expected a finite number of at least 0, got -1"):
        local_solution(jnp.ones((2, 3)), jnp.zeros(2, jnp.int32), 2, -1.0)
    with pytest.raises(TypeError, match="labels: expected integers"):
        local_solution(jnp.ones((2, 3)), jnp.zeros(2), 2, 1.0)
