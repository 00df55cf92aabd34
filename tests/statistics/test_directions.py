"""Residual directions: NumPy's truncated singular vectors, exact at full rank, in any units."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32, assert_close, assert_heads_close, x64

import covfree
from covfree.core.lapack import eigh
from covfree.core.types import DIRECTION
from covfree.estimators.directed import directed_factor, directed_freedom, directed_moments
from covfree.statistics.directions import directed_rows

CLASSES, DIM = 4, 5
# Client 7 has more examples than there are features, client 2 one, client 4 two of one class; padding of each
# kind. Class 3 has none.
OWNERS = np.array([7] * 12 + [2, 4, 4, -1, 7])
LABELS = np.array([0, 0, 1, 1, 1, 2, 0, 1, 1, 0, 2, 1, 0, 1, 1, 0, -1])
KEPT = (OWNERS >= 0) & (LABELS >= 0)


def examples(offset=0.0, scale=1.0):
    rng = np.random.default_rng(0)
    features = scale * (rng.normal(size=(len(OWNERS), DIM)) + 3 * OWNERS[:, None] + LABELS[:, None] + offset)
    features[~KEPT] = np.nan
    return features


def residuals(features, owners=OWNERS):
    """Of each client, by loops."""
    found = {}
    for k in sorted(set(owners[KEPT])):
        mine = [features[KEPT & (owners == k) & (c == LABELS)] for c in range(CLASSES)]
        found[int(k)] = np.concatenate([np.float64(x) - np.float64(x).mean(0) for x in mine if len(x)])
    return found


@partial(jax.jit, static_argnames="num_directions")
def table(features, num_directions):
    return directed_rows(
        features, LABELS, OWNERS, num_rows=7, num_clients=4, client_size=13, num_directions=num_directions
    )


def test_directions_are_truncated_singular_vectors(precision):
    features = examples()
    rows = table(precision.array(features), 3)
    of_client = np.asarray(rows.client)[7:].reshape(4, 3)
    count = np.asarray(rows.count)[7:].reshape(4, 3)
    np.testing.assert_array_equal(of_client[:, 0], [2, 4, 7, -1])
    np.testing.assert_array_equal(count, [[0] * 3, [1, 0, 0], [1] * 3, [0] * 3])
    np.testing.assert_array_equal(np.asarray(rows.sketch)[7:], count.ravel() > 0)
    vectors = np.asarray(rows.mean)[7:].reshape(4, 3, DIM)
    assert not vectors[count == 0].any()
    for place, k in ((1, 4), (2, 7)):
        _, size, right = np.linalg.svd(residuals(features)[k], full_matrices=False)
        expected = (size[:, None] * right)[:3] * (count[place] > 0)[: len(size), None]
        peak = np.take_along_axis(expected, np.abs(expected).argmax(1)[:, None], 1)
        precision.assert_close(vectors[place][: len(expected)], np.where(peak < 0, -1, 1) * expected, 20)


@pytest.mark.parametrize(
    ("offset", "scale", "tolerance"), [(0, 1, 1), (0, 1e-25, 1), (0, 1e16, 1), (1e4, 1, 1e3)]
)
def test_all_directions_together_are_the_scatter(offset, scale, tolerance):
    features = np.float32(examples(offset, scale))
    rows = table(features, DIM)
    factor = np.asarray(directed_factor(rows, directed_moments(rows, CLASSES))) / scale
    clean = np.float64(features[KEPT])
    exact = sum(
        (x := clean[LABELS[KEPT] == c] / scale - clean[LABELS[KEPT] == c].mean(0) / scale).T @ x
        for c in range(CLASSES - 1)
    )
    assert_close(factor.T @ factor, exact, tolerance * FLOAT32.tolerance)


def test_fewer_directions_never_exceed_the_scatter(precision):
    whole = residuals(examples())[7]
    scatter, last = whole.T @ whole, np.zeros((DIM, DIM))
    for number in (1, 2, 4):
        vectors = np.asarray(table(precision.array(examples()), number).mean)[7:].reshape(4, number, DIM)[2]
        part = vectors.T @ vectors
        for larger, smaller in ((scatter, part), (part, last)):
            assert np.linalg.eigvalsh(larger - smaller).min() > -precision.tolerance * np.trace(scatter)
        last = part
    assert np.trace(last) < np.trace(scatter)


@pytest.mark.slow
def test_many_directions_make_the_oracle():
    """Automatic shrinkage included, as the degrees of freedom are then those of the examples."""
    rng = np.random.default_rng(1)
    labels, clients = np.arange(48) % 3, np.arange(48) // 12
    features = np.float32(
        rng.normal(size=(48, DIM)) + labels[:, None] + 2 * rng.normal(size=(4, DIM))[clients]
    )
    method = covfree.fedcof_residuals(12, covfree.oas())
    actual = covfree.fit(method, features, labels, clients)
    assert_heads_close(
        actual, covfree.fit(covfree.fedcof_oracle(covfree.oas()), features, labels, clients), 1e-4
    )
    rows = covfree.summarise(method, features, labels, clients)
    freedom = directed_freedom(directed_moments(rows, 3))
    # 4 clients hold 3 classes each: 12 rows, and 9 degrees inside those of each client, in DIM directions.
    np.testing.assert_array_equal(np.asarray(rows.count)[-12:], [2] * 4 + [1] + [0] * 7)
    np.testing.assert_array_equal(freedom.degrees, [3, 3, 3, 36])
    np.testing.assert_allclose(freedom.weight, 1, rtol=1e-6)
    few = covfree.summarise(covfree.fedcof_residuals(2), features, labels, clients)
    freedom = directed_freedom(directed_moments(few, 3))
    np.testing.assert_array_equal(freedom.degrees, [3, 3, 3, 8])
    np.testing.assert_allclose(freedom.weight, [1, 1, 1, 36 / 8], rtol=1e-6)


@pytest.mark.slow
def test_no_directions_are_no_degrees():
    labels, clients = np.arange(6) % 2, np.arange(6)
    rows = covfree.summarise(covfree.fedcof_residuals(2), np.ones((6, 2), np.float32), labels, clients)
    freedom = directed_freedom(directed_moments(rows, 2))
    np.testing.assert_array_equal(freedom.degrees, [2, 2, 0])
    np.testing.assert_array_equal(freedom.weight, [1, 1, 0])
    nobody = covfree.fedcof_residuals(2).summary.one_client(jnp.zeros((0, 2)), jnp.zeros(0, int), 2, None)
    assert not np.asarray(nobody.count).any()
    none = np.zeros(0, int)
    nothing = covfree.summarise(covfree.fedcof_residuals(2), np.zeros((0, 2), np.float32), none, none)
    assert not np.asarray(nothing.count).any()


@pytest.mark.parametrize("number", [1, 3, DIM])
def test_honest_directions_pass_the_server_s_check_of_norms(number):
    rng = np.random.default_rng(4)
    features = rng.normal(size=(60, DIM)) + 1
    features = np.float32(features / np.linalg.norm(features, axis=1, keepdims=True))
    method = covfree.fedcof_residuals(number)
    message = covfree.client_message(method, features, np.arange(60) % 2, num_classes=2)
    collected = covfree.collect({"a": message}, num_classes=2, max_norm=1.0)
    assert not collected.rejected
    # The label of directions is kept by the server's conversion.
    assert (np.asarray(collected.message.rows.label) == DIRECTION).sum() == number
    rows = message.rows
    strong = replace(rows, mean=jnp.where(rows.sketch[:, None], 3 * rows.mean, rows.mean))
    refused = covfree.collect({"a": replace(message, rows=strong)}, num_classes=2, max_norm=1.0).rejected
    assert "residual directions have squares that sum to" in refused["a"]


def test_clients_that_are_not_there_cost_nothing():
    """Under `jit` the bound on clients is the number of examples; only real ones are decomposed."""
    seen = []
    features = np.float32(np.nan_to_num(examples()))

    def counted(matrix):
        jax.debug.callback(lambda: seen.append(1))
        return eigh(matrix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covfree.statistics.directions.eigh", counted)
        method = covfree.fedcof_residuals(3)  # a size of its own: nothing is compiled yet
        rows = jax.jit(partial(covfree.summarise, method))(features, LABELS, OWNERS)
        jax.block_until_ready(rows)
        jax.effects_barrier()
    assert len(seen) == 2  # clients 4 and 7; client 2 has one example


def test_directions_are_no_test_of_shift():
    """Truncated scatter would make all clients look different: the test is that without them."""
    rng = np.random.default_rng(2)
    labels, clients = np.repeat(np.arange(2), 60), np.arange(120) % 20
    features = np.float32(rng.normal(size=(120, 8)))
    directed = covfree.summarise(covfree.fedcof_residuals(1), features, labels, clients)
    plain = covfree.summarise(covfree.fedcof(), features, labels, clients)
    found, expected = (covfree.shift_test(rows, 2) for rows in (directed, plain))
    np.testing.assert_array_equal(found.informative, expected.informative)
    np.testing.assert_allclose(found.p_value, expected.p_value, rtol=1e-5)


def test_bounds_that_are_too_small_are_errors():
    sizes = {"num_rows": 7, "num_clients": 4, "client_size": 12, "num_directions": 1}
    for name, value, message in (
        ("client_size", 11, "client_size: 11 cannot hold the examples of all clients: one has 12"),
        ("num_clients", 2, "num_clients: 2 cannot hold all clients: there are 3"),
        ("num_directions", 0, "num_directions: expected an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            directed_rows(np.float32(examples()), LABELS, OWNERS, **{**sizes, name: value})


@pytest.mark.slow
def test_derivatives_are_those_of_the_scatter():
    """Of Σ s_j² v_j v_jᵀ, by finite differences: vectors turn with the features."""
    rng = np.random.default_rng(3)
    x, way = rng.normal(size=(2, 6, DIM))
    weight = rng.normal(size=(DIM, DIM))
    weight = jnp.asarray(weight + weight.T)
    with x64():

        def value(t):
            rows = directed_rows(
                jnp.asarray(x) + t * jnp.asarray(way), np.arange(6) % 2, np.zeros(6, int), num_rows=2,
                num_clients=1, client_size=6, num_directions=2,
            )  # fmt: skip
            vectors = rows.mean[2:]
            return (weight * (vectors.T @ vectors)).sum()

        step = 1e-5
        np.testing.assert_allclose(jax.grad(value)(0.0), (value(step) - value(-step)) / (2 * step), rtol=1e-6)
