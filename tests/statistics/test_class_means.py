"""Class means, subset means, Gram statistics and class covariances of one client."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES
from hypothesis import given
from hypothesis import strategies as st
from precision import FLOAT32, assert_close

import covfree

seeds = st.integers(0, 2**31 - 1)


def client(seed: int = 0, **kwargs):
    """Features and labels of one client, with padding."""
    federation = federations.make(seed, **kwargs)
    return federation.features, np.where(federation.kept, federation.labels, -1)


# Compiled, as each operation by itself takes as long to compile; that both agree is tested below.
class_means = jax.jit(covfree.class_means, static_argnums=2)
gram = jax.jit(covfree.gram, static_argnums=2)
class_covariances = jax.jit(covfree.class_covariances, static_argnums=2)
first_moments = jax.jit(covfree.first_moments, static_argnums=1)


def test_gram_equals_the_oracle(precision):
    features, labels = client()
    statistics = gram(precision.array(features), precision.array(labels), CLASSES)
    matrix, sums = oracle.gram(features, labels, CLASSES)
    precision.assert_close(statistics.gram, matrix)
    precision.assert_close(statistics.class_sum, sums)
    np.testing.assert_array_equal(statistics.count, oracle.class_means(features, labels, CLASSES)[1])


def test_one_example_of_a_class_has_covariance_zero():
    covariance = class_covariances(jnp.ones((1, 3)), jnp.zeros(1, jnp.int32), 2)
    np.testing.assert_array_equal(covariance, 0)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_labels_of_small_integer_types(dtype):
    """Of all types: tests/core/test_doors.py."""
    features, labels = jax.device_put((np.ones((8, 1), np.float32), np.full(8, 70, dtype)))
    rows = covfree.Rows(features, jax.device_put(np.ones(8, np.int32)), labels)
    # Where 8 bits end matters. Not compiled as a whole, which would be anew for each type.
    for num_classes in (100, 256, 300):
        _, counts = covfree.class_means(features, labels, num_classes)
        assert np.asarray(counts)[70] == 8
        assert np.asarray(covfree.gram(features, labels, num_classes).count)[70] == 8
        assert np.asarray(covfree.first_moments(rows, num_classes).count)[70] == 8


@given(seeds)
def test_order_of_examples_does_not_matter(seed):
    features, labels = client(seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    one = class_means(FLOAT32.array(features), FLOAT32.array(labels), CLASSES)
    other = class_means(FLOAT32.array(features[order]), FLOAT32.array(labels[order]), CLASSES)
    assert_close(one[0], other[0], 1e-5)
    np.testing.assert_array_equal(one[1], other[1])


def test_gradients_skip_padding_and_absent_classes():
    features, labels = client()
    kept = labels >= 0

    def loss(x):
        means, _ = class_means(x, FLOAT32.array(labels), CLASSES)
        return jnp.sum(means**2) + jnp.sum(class_covariances(x, FLOAT32.array(labels), CLASSES) ** 2)

    gradient = np.asarray(jax.jit(jax.grad(loss))(FLOAT32.array(features)))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~kept], 0)
    assert (np.abs(gradient[kept]).sum(1) > 0).all()


# Random subsets


def dealt(features, labels, num_rows, num_subsets, key):
    """Rows of random subsets of one client's classes."""
    client = jnp.zeros_like(labels)
    return covfree.client_rows(features, labels, client, num_rows=num_rows, num_subsets=num_subsets, key=key)


def test_subset_means_are_means_of_disjoint_subsets():
    dim = 12
    labels = jnp.array([0] * 7 + [1] * 1 + [2] * 3 + [-1])
    # One-hot features: a subset's sum shows who is in it.
    rows = dealt(jnp.eye(dim), labels, 7, 3, jax.random.key(3))
    members = np.asarray(rows.mean * rows.count[:, None])
    np.testing.assert_allclose(members, np.round(members), atol=1e-6)
    assert rows.count.tolist() == [3, 2, 2, 1, 3, 0, 0]
    assert rows.label.tolist() == [0, 0, 0, 1, 2, -1, -1]
    for c in range(4):
        np.testing.assert_allclose(members[rows.label == c].sum(0), np.asarray(labels == c), atol=1e-6)
    np.testing.assert_array_equal(rows.mean[5:], 0)


def test_subsets_depend_on_the_key_alone():
    features, labels = map(FLOAT32.array, client(6))

    def run(key):
        return np.asarray(dealt(features, labels, len(labels), 3, key).mean)

    np.testing.assert_array_equal(run(jax.random.key(1)), run(jax.random.key(1)))
    np.testing.assert_array_equal(run(jax.random.key(1)), run(jax.random.PRNGKey(1)))
    assert (run(jax.random.key(1)) != run(jax.random.key(2))).any()


def test_subsets_are_uniformly_random():
    size, num_subsets, draws = 7, 3, 4000
    labels = jnp.zeros(size, jnp.int32)

    def members(key):
        rows = dealt(jnp.eye(size), labels, num_subsets, num_subsets, key)
        return rows.mean * rows.count[:, None], rows.count

    sums, counts = jax.jit(jax.vmap(members))(jax.random.split(jax.random.key(7), draws))
    sums = np.round(np.asarray(sums)).astype(int)
    together = np.einsum("tsi,tsj->ij", sums, sums) / draws
    # Any two examples share a subset with the chance that the subsets' sizes give.
    sizes = np.asarray(counts[0])
    chance = (sizes * (sizes - 1)).sum() / (size * (size - 1))
    pairs = together[np.triu_indices(size, 1)]
    z = (pairs - chance) / np.sqrt(chance * (1 - chance) / draws)
    assert np.abs(z).max() < 4.5
    # And each example is as often in the first subset as another.
    chance = sizes[0] / size
    z = (sums[:, 0].mean(0) - chance) / np.sqrt(chance * (1 - chance) / draws)
    assert np.abs(z).max() < 4.5


@pytest.mark.slow
def test_subset_means_of_sorted_features_estimate_their_covariance():
    # Over the deals, Σ̂ of the subsets averages to the examples' own covariance; a deal in order would not.
    size, num_subsets, draws = 12, 4, 4000
    features = jnp.sort(jax.random.normal(jax.random.key(8), (size, 2)), axis=0)
    labels = jnp.zeros(size, jnp.int32)

    def one(key):
        rows = dealt(features, labels, num_subsets, num_subsets, key)
        return covfree.estimate_covariance(rows.mean, rows.count)

    estimates = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(9), draws)), np.float64)
    expected = np.cov(np.asarray(features, np.float64), rowvar=False)

    def worst(estimates):
        return np.abs((estimates.mean(0) - expected) / (estimates.std(0) / np.sqrt(draws))).max()

    assert worst(estimates) < 4.5
    in_order = covfree.estimate_covariance(
        features.reshape(num_subsets, -1, 2).mean(1), jnp.full(num_subsets, 3)
    )
    assert np.abs(np.asarray(in_order) - expected).max() > 0.5 * np.abs(expected).max()


# Errors


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "function",
    [covfree.class_means, covfree.gram, covfree.class_covariances],
    ids=["class_means", "gram", "class_covariances"],
)
@pytest.mark.parametrize("compiled", [False, True])
class TestStructure:
    """Wrong structure raises by name, also while tracing."""

    def call(self, function, compiled, features, labels, num_classes=3):
        if compiled:
            return jax.jit(lambda x, y: function(x, y, num_classes))(features, labels)
        return function(features, labels, num_classes)

    def test_a_batch_of_clients(self, function, compiled):
        with pytest.raises(ValueError, match=r"features: expected shape \[examples, dim\].*2, 4, 3.*vmap"):
            self.call(function, compiled, jnp.ones((2, 4, 3)), jnp.zeros((2, 4), jnp.int32))

    def test_integer_features(self, function, compiled):
        with pytest.raises(TypeError, match=r"features: expected floats.*got int32"):
            self.call(function, compiled, jnp.ones((4, 3), jnp.int32), jnp.zeros(4, jnp.int32))

    def test_float_labels(self, function, compiled):
        with pytest.raises(TypeError, match=r"labels: expected integers, got float32"):
            self.call(function, compiled, jnp.ones((4, 3)), jnp.zeros(4))

    def test_too_few_labels(self, function, compiled):
        with pytest.raises(ValueError, match=r"labels: expected shape \[4\].*got \[3\]"):
            self.call(function, compiled, jnp.ones((4, 3)), jnp.zeros(3, jnp.int32))

    def test_no_classes(self, function, compiled):
        with pytest.raises(ValueError, match=r"num_classes: expected an integer of at least 1, got 0"):
            self.call(function, compiled, jnp.ones((4, 3)), jnp.zeros(4, jnp.int32), 0)

    def test_classes_that_are_no_integer(self, function, compiled):
        with pytest.raises(TypeError, match=r"num_classes: expected an integer of at least 1, got 2\.5"):
            self.call(function, compiled, jnp.ones((4, 3)), jnp.zeros(4, jnp.int32), 2.5)


# Rounding. At the end: from here on XLA optimises.


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_class_means_equal_the_oracle(precision, offset):
    features, labels = client(offset=offset)
    means, counts = class_means(precision.array(features), precision.array(labels), CLASSES)
    expected, expected_counts = oracle.class_means(features, labels, CLASSES)
    precision.assert_close(means, expected, factor=1 / 10)  # no solve, no difference
    np.testing.assert_array_equal(counts, expected_counts)
    assert counts.dtype == jnp.int32
    np.testing.assert_array_equal(means[ABSENT], 0)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_class_covariances_equal_the_oracle(precision, offset):
    features, labels = client(offset=offset)
    actual = class_covariances(precision.array(features), precision.array(labels), CLASSES)
    # float32 holds features near 1000 to 6e-5 of their spread, whatever is done with them after.
    factor = 5 if offset and precision is FLOAT32 else 1
    precision.assert_close(actual, oracle.class_covariances(features, labels, CLASSES), factor)
    kept = labels == 0
    precision.assert_close(actual[0], np.cov(features[kept], rowvar=False), factor)
    np.testing.assert_array_equal(actual[ABSENT], 0)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_half_precision_is_summed_in_float32():
    """bfloat16: tests/methods/test_contracts.py."""
    features, labels = client(offset=30.0)
    features = jnp.asarray(features, jnp.float16)
    # What was received is the rounded features; from there on nothing more may be lost.
    rounded = np.asarray(features.astype(jnp.float32))
    means, _ = class_means(features, jnp.asarray(labels), CLASSES)
    FLOAT32.assert_close(means, oracle.class_means(rounded, labels, CLASSES)[0], factor=1 / 10)
    statistics = gram(features, jnp.asarray(labels), CLASSES)
    FLOAT32.assert_close(statistics.gram, oracle.gram(rounded, labels, CLASSES)[0])
    covariances = class_covariances(features, jnp.asarray(labels), CLASSES)
    FLOAT32.assert_close(covariances, oracle.class_covariances(rounded, labels, CLASSES))


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_sums_of_many_examples_keep_their_digits():
    num_examples = 10**6
    # A running sum in float32 stops growing by the right amounts once it is 1e7 times its terms.
    for value in (0.1, 1000.1):
        features = FLOAT32.array(np.full((num_examples, 1), value))
        labels = FLOAT32.array(np.zeros(num_examples, int))
        means, _ = class_means(features, labels, 1)
        assert_close(means, [[np.float32(value)]], 1e-5)
        rows = covfree.Rows.from_examples(features, labels)
        assert_close(first_moments(rows, 1).mean, [[np.float32(value)]], 1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@given(
    seeds, st.sampled_from([np.nan, np.inf, -np.inf, 1e38, 0.0]), st.sampled_from([-1, -7, CLASSES, 10**6])
)
def test_padding_changes_nothing_bit_for_bit(seed, value, label):
    features, labels = client(seed)
    kept = labels >= 0
    first = class_means(FLOAT32.array(features), FLOAT32.array(labels), CLASSES)
    features, labels = np.where(kept[:, None], features, value), np.where(kept, labels, label)
    second = class_means(FLOAT32.array(features), FLOAT32.array(labels), CLASSES)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.usefixtures("untyped")  # a batch of GramStatistics has axes that its annotations lack
def test_vmap_over_clients():
    clients = [client(seed) for seed in range(2)]
    features, labels = (FLOAT32.array(np.stack(column)) for column in zip(*clients, strict=True))

    def many(x, y):
        functions = (covfree.class_means, covfree.gram, covfree.class_covariances)
        return [function(x, y, CLASSES) for function in functions]

    batched, alone = jax.jit(jax.vmap(many))(features, labels), jax.jit(many)
    for k in range(2):
        expected = alone(features[k], labels[k])
        for a, b in zip(*map(jax.tree.leaves, (batched, expected)), strict=True):
            assert_close(a[k], b, 1e-6)
