"""What clients send, and the heads that servers make of it: those of the simulation."""

import dataclasses

import deployed
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from classifiers import ONE_SHOT
from deployed import DRAWN, messages, ragged
from federations import CLASSES, DIM
from precision import FLOAT32, assert_close
from variants import slow

import covfree
from covfree.core.types import DIRECTION

# The same numbers in a simulation as from clients apart.
# The last two send and sum what CCVR does.
EXACT = [name for name in ONE_SHOT if name not in (*DRAWN, "fishermix", "proto-hyper")]
# Clients of an ensemble train heads, which takes long to compile.
EACH = [*(name for name in ONE_SHOT if name != "ensemble"), *slow("ensemble")]


def assert_rows_are_the_class_means(rows, features, labels):
    means, counts = oracle.class_means(features, labels, CLASSES)
    present = [c for c in range(CLASSES) if counts[c] > 0]
    np.testing.assert_array_equal(rows.label, present)
    np.testing.assert_array_equal(rows.count, counts[present])
    FLOAT32.assert_close(rows.mean, means[present], factor=0.1)


def covariances(features, labels, ndim: int):
    """The classes' own covariances, in full, as diagonals or as one variance each."""
    full = oracle.class_covariances(features, labels, CLASSES)
    diagonal = np.stack([np.diag(matrix) for matrix in full])
    return {3: full, 2: diagonal, 1: diagonal.mean(1)}[ndim]


def own_examples(client: int, method: covfree.Method):
    """A client's examples without padding, as the method sees them."""
    features, labels, clients = ragged()
    mine = (clients == client) & (labels >= 0)
    return np.asarray(method.mapped(jnp.asarray(features[mine]))), labels[mine]


# What a client sends


# Of the others: rows.
SENT = {
    **dict.fromkeys(("fed3r", "fed3r-within", "fedcgs"), "gram"),
    **dict.fromkeys(("fedcof-oracle", "qda", "ccvr"), "covariances"),
    "afl": "solutions",
}


# Clients of an ensemble send heads: see tests/methods/test_recent.py.
@pytest.mark.parametrize("name", [name for name in EXACT if name != "ensemble"])
def test_contents(name):
    """Class means of the classes present, and beside them what the method's kind says."""
    method = deployed.make(name)
    for client, message in messages(name).items():
        x, y = own_examples(client, method)
        rows, (gram, sums) = message.rows, oracle.gram(x, y, CLASSES)
        assert rows.client is None
        kind = SENT.get(name)
        assert message.solved == (kind == "solutions")
        assert (message.matrix is not None) == (kind in ("gram", "solutions"))
        if kind == "gram":
            FLOAT32.assert_close(message.matrix, gram)
        if kind == "solutions":
            regular = gram + method.params.gamma * np.eye(len(gram))
            FLOAT32.assert_close(message.matrix, regular)
            present = sorted(set(y.tolist()))
            np.testing.assert_array_equal(rows.label, present)
            FLOAT32.assert_close(rows.mean, np.linalg.solve(regular, sums.T).T[present])
        else:
            means = rows.label >= 0  # not residual directions
            assert_rows_are_the_class_means(jax.tree.map(lambda v, means=means: v[means], rows), x, y)
        if kind == "covariances":
            assert rows.covariance.ndim == 3
        if rows.covariance is not None and rows.sketch is None:
            expected = covariances(x, y, rows.covariance.ndim)[rows.label]
            FLOAT32.assert_close(rows.covariance, expected)


@pytest.mark.parametrize(
    ("name", "ndim"), [("fedcof-spherical", 1), ("fedcof-diagonal", 2), ("naive-bayes", 2), ("qda", 3)]
)
def test_structure_of_the_covariances(name, ndim):
    assert {message.rows.covariance.ndim for message in messages(name).values()} == {ndim}


def test_class_sums_of_fed3r_are_means_times_counts():
    for client, message in messages("fed3r").items():
        x, y = own_examples(client, covfree.fed3r())
        sums = np.zeros((CLASSES, DIM), np.float32)
        sums[message.rows.label] = message.rows.mean * message.rows.count[:, None]
        FLOAT32.assert_close(sums, oracle.gram(x, y, CLASSES)[1])


@pytest.mark.parametrize("num_subsets", [2, 3])
def test_subsets_partition_each_class(num_subsets):
    """At most so many subsets, each of 2 or more unless the class has one; counts and sums add up."""
    method = covfree.fedcof(num_subsets=num_subsets)
    for client, message in deployed.send(method).items():
        means, counts = oracle.class_means(*own_examples(client, method), CLASSES)
        for c in range(CLASSES):
            of_class = np.asarray(message.rows.label) == c
            sizes = np.asarray(message.rows.count)[of_class]
            assert len(sizes) == (min(num_subsets, max(counts[c] // 2, 1)) if counts[c] else 0)
            assert sizes.sum() == counts[c]
            assert (sizes >= min(2, counts[c])).all()
            if counts[c]:
                mean = sizes @ np.asarray(message.rows.mean)[of_class] / counts[c]
                np.testing.assert_allclose(mean, means[c], atol=1e-5)


def test_subsets_follow_the_key_and_need_one():
    method, (x, y) = covfree.fedcof(num_subsets=2), deployed.examples(23)

    def means(key):
        return covfree.client_message(method, x, y, num_classes=CLASSES, key=key).rows.mean

    np.testing.assert_array_equal(means(jax.random.key(0)), means(jax.random.key(0)))
    assert (means(jax.random.key(0)) != means(jax.random.key(1))).any()
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        means(None)


@pytest.mark.parametrize("name", DRAWN)
def test_methods_that_draw_need_a_key(name):
    """The others need none: a client with one example, below, has none for them."""
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        covfree.client_message(deployed.make(name), *deployed.examples(23), num_classes=CLASSES)


@pytest.mark.parametrize("name", EACH)
def test_a_client_with_one_example(name):
    method = deployed.make(name)
    x, y = np.full((deployed.SIZE, DIM), np.nan, np.float32), np.full(deployed.SIZE, -1, np.int32)
    x[7], y[7] = 2, 4
    key = jax.random.key(0) if name in DRAWN else None
    message = covfree.client_message(method, x, y, num_classes=CLASSES, key=key)
    x = x[7:8]
    rows, seen = message.rows, np.asarray(method.mapped(jnp.asarray(x)), np.float64)
    if name == "ensemble":  # one class has nothing to learn
        seen = np.zeros((1, DIM + 1))
    if name == "fedran":  # the example is its own direction
        seen = np.repeat(seen, 2, 0)
    assert rows.label.tolist() == [4, DIRECTION][: len(seen)]
    assert rows.count.tolist() == [1] * len(seen)
    gram = seen.T @ seen
    if message.solved:  # (f fᵀ + γI)⁻¹ f
        gram = gram + method.params.gamma * np.eye(DIM)
        FLOAT32.assert_close(rows.mean, np.linalg.solve(gram, seen.T).T)
    else:
        FLOAT32.assert_close(rows.mean, seen, factor=0.1)
    if message.matrix is not None:
        FLOAT32.assert_close(message.matrix, gram)
    if rows.covariance is not None:
        np.testing.assert_array_equal(rows.covariance, 0)


@pytest.mark.parametrize("name", EACH)
def test_a_client_without_examples_has_no_rows(name):
    method = deployed.make(name)
    for labels in (np.zeros(0, np.int32), np.full(deployed.SIZE, -1, np.int32)):
        features = np.full((len(labels), DIM), np.nan, np.float32)
        message = covfree.client_message(method, features, labels, num_classes=CLASSES, key=jax.random.key(0))
        assert message.rows.mean.shape[0] == 0
        assert message.rows.count.shape == message.rows.label.shape == (0,)
        assert message.matrix is None


def test_messages_are_in_float32_and_in_float64_only_where_enabled(precision):
    features, labels, clients = ragged()
    mine = clients == 13
    message = covfree.client_message(
        covfree.fed3r(), precision.array(features[mine]), labels[mine], num_classes=CLASSES
    )
    assert message.rows.mean.dtype == message.matrix.dtype == precision.dtype


@pytest.mark.parametrize(
    ("features", "labels", "error", "text"),
    [
        (np.array([[1.0, np.nan]]), np.array([0]), ValueError, r"features: row 0 \(class 0\) holds nan"),
        (np.ones((1, 2)), np.array([7]), ValueError, r"labels: row 0 has label 7; expected labels below"),
        (np.ones((1, 2), int), np.array([0]), TypeError, "features: expected floats, got int"),
        (np.ones((1, 2)), np.array([0.0]), TypeError, "labels: expected integers, got float"),
        (np.ones(2), np.array([0, 1]), ValueError, r"features: expected shape \[examples, dim\]"),
        (np.ones((2, 2)), np.array([0]), ValueError, r"labels: expected shape \[2\]"),
    ],
)
def test_a_client_is_told_what_is_wrong(untyped, features, labels, error, text):
    with pytest.raises(error, match=text):
        covfree.client_message(covfree.fedcof(), features, labels, num_classes=3)


# From messages to a head


def assert_same_head(actual, expected, tolerance: float) -> None:
    """The same weights and biases, or the same scores where the head has none."""
    if isinstance(expected, covfree.LinearHead):
        assert_close(actual.weight, expected.weight, tolerance)
        assert_close(actual.bias, expected.bias, tolerance)
    else:
        probes = np.random.default_rng(5).normal(size=(20, DIM)).astype(np.float32)
        assert_close(actual(probes), expected(probes), tolerance)


def simulated(name: str):
    method, federation = deployed.make(name), ragged(name)
    return covfree.summarise(method, *federation, key=jax.random.key(0))


def received(name: str):
    """The rows that a server has, and whose they are."""
    collected = covfree.collect(messages(name), num_classes=CLASSES)
    assert collected.rejected == {}
    rows = collected.message.rows
    return rows, np.array(collected.clients)[rows.client]


def assert_same_structure(actual: covfree.Rows, expected: covfree.Rows) -> None:
    """So that what a server solves with is what a simulation does."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    assert all(a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in leaves)


@pytest.mark.parametrize("name", [name for name in EXACT if not deployed.make(name).summary.stays])
def test_a_server_has_the_rows_of_the_simulation(name):
    """Where the server runs the phases over rows, the same rows give the same head."""
    (rows, clients), expected = received(name), simulated(name)
    assert_same_structure(rows, expected)
    kept = np.asarray(expected.count) > 0
    expected = jax.tree.map(lambda x: np.asarray(x)[kept], expected)
    if rows.sketch is not None:  # a message has a client's means, then its directions
        order = np.argsort(rows.sketch, stable=True)
        rows, clients = jax.tree.map(lambda x: x[order], rows), np.asarray(clients)[order]
    np.testing.assert_array_equal(clients, expected.client)
    np.testing.assert_array_equal(rows.label, expected.label)
    np.testing.assert_array_equal(rows.count, expected.count)
    assert_close(rows.mean, expected.mean, 1e-3 if name == "ensemble" else 1e-5)  # clients train
    if expected.covariance is not None:
        assert_close(rows.covariance, expected.covariance, 1e-5)


# The other kinds of messages are solved in tests/methods/test_contracts.py, by the law `messages`.
@pytest.mark.parametrize("name", ["fed3r-within", "fedcgs", "fedcof-random", "qda"])
def test_solving_messages_is_fitting_the_examples(name):
    method = deployed.make(name)
    collected = covfree.collect(messages(name), num_classes=CLASSES)
    assert collected.rejected == {}
    head = covfree.solve_message(method, collected.message, num_classes=CLASSES)
    expected = covfree.fit(method, *ragged(name), num_classes=CLASSES)
    assert_same_head(head, expected, FLOAT32.tolerance * 10)


def test_virtual_features_are_drawn_from_the_same_totals():
    """CCVR's head is a function of them and of a seed, and the slowest to compile."""
    method = deployed.make("ccvr")
    message = covfree.collect(messages("ccvr"), num_classes=CLASSES).message
    totals = jax.jit(lambda message: method.summary.merge(method.params, message, CLASSES))(message)
    expected = covfree.accumulate(method, simulated("ccvr"), num_classes=CLASSES)
    assert jax.tree.structure(totals) == jax.tree.structure(expected)
    deployment, simulation = (jax.tree.leaves_with_path(each) for each in (totals, expected))
    for (path, actual), (_, wanted) in zip(deployment, simulation, strict=True):
        # Rows are counted as integers; examples, of which there may be more, as floats.
        assert actual.dtype.itemsize == wanted.dtype.itemsize
        if jax.tree_util.keystr(path).endswith(".magnitude"):
            # The magnitude is that of the rows: a mean's is at most that of its examples.
            assert (actual <= wanted * (1 + FLOAT32.tolerance)).all()
        else:
            assert_close(actual, wanted, FLOAT32.tolerance)


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_has_the_simulation_s_structure(name):
    """Other draws: but the same number of rows of each client's class, and the same class totals."""
    (rows, clients), expected = received(name), simulated(name)
    # Other numbers, of the same structure: and so the same compiled functions.
    assert_same_structure(rows, expected)

    def rows_of(rows, clients):
        kept = np.asarray(rows.count) > 0
        return sorted(zip(clients[kept].tolist(), np.asarray(rows.label)[kept].tolist(), strict=True))

    assert rows_of(rows, clients) == rows_of(expected, np.asarray(expected.client))
    actual, moments = (covfree.first_moments(table, CLASSES) for table in (rows, expected))
    # A mixture's components share out the examples' weight, and so keep count and mean.
    assert_close(actual.count, moments.count, 1e-5)
    assert_close(actual.total, moments.total, 1e-5)


def test_mixtures_of_one_component_draw_nothing():
    """Classes of fewer than four examples: the client's Gaussian, as in the simulation."""

    def alone(rows, clients):
        pairs = list(zip(clients.tolist(), np.asarray(rows.label).tolist(), strict=True))
        return {
            pair: (np.asarray(rows.mean)[r], np.asarray(rows.covariance)[r])
            for r, pair in enumerate(pairs)
            if pairs.count(pair) == 1 and rows.count[r] > 0
        }

    own = alone(*received("fedpft"))
    rows = simulated("fedpft")
    expected = alone(rows, np.asarray(rows.client))
    assert own.keys() == expected.keys()
    assert len(own) > 1
    for pair, parts in own.items():
        for actual, wanted in zip(parts, expected[pair], strict=True):
            assert_close(actual, wanted, 1e-5)


def test_transforms_happen_before_the_rows_are_sent():
    def doubled(strength, rows, key):
        return dataclasses.replace(rows, mean=strength * rows.mean)

    transform = covfree.transforms.Transform(2.0, doubled)
    sent = deployed.send_one(covfree.fedcof().with_transforms(transform), 23)
    np.testing.assert_array_equal(sent.rows.mean, 2 * messages("fedcof")[23].rows.mean)
