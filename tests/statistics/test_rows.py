"""Rows of a whole federation from flat arrays: class means, random subsets, and the spread about them."""

from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import CLASSES, CLIENTS, DIM
from hypothesis import given
from hypothesis import strategies as st
from precision import FLOAT32, assert_close

import covfree
from covfree.statistics.groups import subset_groups
from covfree.statistics.rows import client_pairs

# Class means


def test_client_rows_equal_the_oracle(precision):
    padding, federation = 5, federations.make(1)
    expected = oracle.client_rows(*federation)
    number = covfree.count_rows(federation.labels, federation.clients)
    assert number == len(expected)
    rows = covfree.client_rows(*map(precision.array, federation), num_rows=number + padding)
    precision.assert_close(rows.mean[:number], np.stack([x for x, _, _ in expected]), 1 / 10)
    np.testing.assert_array_equal(rows.count, [n for _, n, _ in expected] + [0] * padding)
    np.testing.assert_array_equal(rows.label, [y for _, _, y in expected] + [-1] * padding)


def test_client_rows_equal_class_means_of_each_client_under_vmap():
    federation = federations.make(2)
    mine = np.where(federation.clients == np.arange(CLIENTS)[:, None], federation.labels, -1)
    features = FLOAT32.array(np.broadcast_to(federation.features, (CLIENTS, *federation.features.shape)))
    means, counts = jax.jit(jax.vmap(lambda x, y: covfree.class_means(x, y, CLASSES)))(
        features, FLOAT32.array(mine)
    )
    dense = covfree.Rows.from_means(means, counts)
    held = np.flatnonzero(dense.count)
    rows = covfree.client_rows(*map(FLOAT32.array, federation), num_rows=len(held))
    assert_close(rows.mean, dense.mean[held], 1e-6)
    np.testing.assert_array_equal(rows.count, dense.count[held])
    np.testing.assert_array_equal(rows.label, dense.label[held])


def test_client_numbers_may_have_gaps():
    federation = federations.make(3)
    wide = np.where(federation.clients >= 0, federation.clients * 238_609_294, -1)  # up to 1.9e9
    number = covfree.count_rows(federation.labels, federation.clients)
    assert covfree.count_rows(federation.labels, wide) == number
    first = covfree.client_rows(*map(FLOAT32.array, federation), num_rows=number)
    second = covfree.client_rows(*map(FLOAT32.array, federation._replace(clients=wide)), num_rows=number)
    for field in ("mean", "count", "label"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))


def test_under_jit_client_rows_pad_to_the_bound():
    federation = federations.make(0)
    rows = jax.jit(covfree.client_rows, static_argnames="num_rows")(
        *map(FLOAT32.array, federation), num_rows=len(federation.labels)
    )
    number = covfree.count_rows(federation.labels, federation.clients)
    assert (np.asarray(rows.count[number:]) == 0).all()
    assert (np.asarray(rows.label[number:]) == -1).all()
    assert rows.count.sum() == federation.kept.sum()


# Subsets of a size


def sizes_by_loops(federation, num_subsets, subset_size):
    """(client, label, sizes of its subsets, largest first) of every pair, in order."""
    pairs = {}
    for y, k in zip(federation.labels.tolist(), federation.clients.tolist(), strict=True):
        if y >= 0 and k >= 0:
            pairs[k, y] = pairs.get((k, y), 0) + 1
    result = []
    for (k, y), n in sorted(pairs.items()):
        parts = max(1, n // subset_size)
        if num_subsets is not None:
            parts = min(parts, num_subsets)
        result.append((k, y, [n // parts + (s < n % parts) for s in range(parts)]))
    return result


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("num_subsets", "subset_size"), [(None, 1), (None, 3), (None, 50), (1, 2), (2, 1), (5, 2), (5, 3)]
)
def test_number_of_subsets_grows_with_the_examples(seed, num_subsets, subset_size):
    """max(1, ⌊n/size⌋) subsets, capped; each of at least ``size`` unless there are fewer; none lost."""
    federation = federations.make(seed)
    expected = sizes_by_loops(federation, num_subsets, subset_size)
    number = sum(len(sizes) for _, _, sizes in expected)
    counted = covfree.count_rows(federation.labels, federation.clients, num_subsets, subset_size=subset_size)
    assert counted == number
    rows = covfree.client_rows(
        *map(FLOAT32.array, federation),
        num_rows=len(federation.labels),  # one shape for all
        num_subsets=num_subsets,
        subset_size=subset_size,
        key=jax.random.key(seed),
    )
    flat = [(k, y, size) for k, y, sizes in expected for size in sizes]
    actual = zip(
        *(np.asarray(x)[:number].tolist() for x in (rows.client, rows.label, rows.count)), strict=True
    )
    assert list(actual) == flat
    assert (np.asarray(rows.count)[number:] == 0).all()
    for _, _, sizes in expected:
        assert min(sizes) >= min(subset_size, sum(sizes))
        assert max(sizes) - min(sizes) <= 1
    # However the examples are dealt, the subsets of a class make up the class.
    moments = covfree.first_moments(rows, CLASSES)
    count, _, mean = oracle.moments(oracle.client_rows(*federation), CLASSES)
    np.testing.assert_array_equal(moments.count, count)
    assert_close(moments.mean, mean, 1e-5)


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.booleans()), min_size=12, max_size=12),
    st.sampled_from([None, 1, 3]),
    st.integers(1, 5),
)
def test_subset_groups(examples, num_subsets, subset_size):
    """Numbers are consecutive in the order of the groups; padding has none."""
    group = np.array([g for g, _ in examples], np.int32)
    kept = np.array([keep for _, keep in examples])
    whole = subset_groups(
        (jnp.asarray(group),),
        jnp.asarray(kept),
        num_subsets,
        jax.random.key(0),
        subset_size=subset_size,
    )
    whole = np.asarray(whole)
    first = 0
    for g in sorted(set(group[kept].tolist())):
        mine = kept & (group == g)
        parts = max(1, int(mine.sum()) // subset_size)
        parts = parts if num_subsets is None else min(parts, num_subsets)
        assert sorted(set(whole[mine].tolist())) == list(range(first, first + parts))
        sizes = np.bincount(whole[mine] - first)
        assert sizes.max() - sizes.min() <= 1
        first += parts
    assert (whole[~kept] == -1).all()


def test_subsets_of_single_examples_are_the_examples():
    clean = federations.make(5).clean
    rows = covfree.client_rows(
        *map(FLOAT32.array, clean),
        num_rows=len(clean.labels),
        num_subsets=None,
        subset_size=1,
        key=jax.random.key(0),
    )
    np.testing.assert_array_equal(rows.count, 1)
    order = np.lexsort(np.asarray(rows.mean).T)
    expected = clean.features.astype(np.float32)
    np.testing.assert_array_equal(np.asarray(rows.mean)[order], expected[np.lexsort(expected.T)])


def test_client_pairs():
    federation = federations.make(6)
    assert client_pairs(federation.labels, federation.clients)[1].tolist() == [
        n for _, n, _ in oracle.client_rows(*federation)
    ]
    nobody = np.full(3, -1)
    assert client_pairs(nobody, nobody)[1].tolist() == []
    assert covfree.count_rows(nobody, nobody, None, subset_size=4) == 0
    # Large ids and large labels do not run into one another.
    labels, clients = np.array([2**31 - 1, 0, 0, 2**31 - 1]), np.array([2**31 - 1, 2**31 - 1, 0, 0])
    assert client_pairs(labels, clients)[1].tolist() == [1, 1, 1, 1]


# The spread about the means


def variances(federation) -> tuple[np.ndarray, list[int]]:
    """NumPy's own unbiased variances of every client's class, 0 of one example."""
    features, labels, clients = federation.clean
    pairs = sorted(set(zip(clients.tolist(), labels.tolist(), strict=True)))
    result, sizes = [], []
    for k, y in pairs:
        mine = features[(clients == k) & (labels == y)].astype(np.float64)
        sizes.append(len(mine))
        result.append(np.var(mine, axis=0, ddof=1) if len(mine) > 1 else np.zeros(DIM))
    return np.stack(result), sizes


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_row_variances_equal_numpy_s(precision, covariance, offset):
    federation = federations.make(1, offset=offset)
    # What came is the rounded features; from there on far from zero costs no more than near it.
    federation = federation.with_features(np.asarray(federation.features, precision.dtype))
    expected, sizes = variances(federation)
    assert min(sizes) == 1 < max(sizes)
    if covariance == "spherical":
        expected = expected.mean(1)
    rows = covfree.client_rows(
        *map(precision.array, federation), num_rows=len(federation.labels), covariance=covariance
    )
    number = len(sizes)
    precision.assert_close(rows.covariance[:number], expected)
    assert rows.covariance.shape == ((80,) if covariance == "spherical" else (80, DIM))
    np.testing.assert_array_equal(rows.covariance[:number][np.array(sizes) == 1], 0)
    np.testing.assert_array_equal(rows.covariance[number:], 0)
    np.testing.assert_array_equal(rows.count[:number], sizes)


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_variances_of_subsets(covariance):
    """About the subset's own mean; of those dealt alike, whose members its mean is of."""
    dim = 12
    labels, clients = jnp.array([0] * 8 + [1] * 3 + [-1]), jnp.zeros(dim, jnp.int32)
    rows = covfree.client_rows(
        # One-hot features: a subset's mean shows who is in it.
        jnp.eye(dim).at[-1].set(jnp.nan),
        labels,
        clients,
        num_rows=5,
        num_subsets=None,
        subset_size=3,
        covariance=covariance,
        key=jax.random.key(0),
    )
    assert rows.count.tolist() == [4, 4, 3, 0, 0]
    for r, size in enumerate([4, 4, 3]):
        members = np.eye(dim)[np.asarray(rows.mean[r]) > 0]
        assert len(members) == size
        variance = members.var(0, ddof=1)
        expected = variance.mean() if covariance == "spherical" else variance
        np.testing.assert_allclose(rows.covariance[r], expected, atol=1e-6)


def test_variances_of_half_precision_are_summed_in_float32():
    federation = federations.make(1, offset=30.0)
    features = jnp.asarray(federation.features, jnp.float16)
    rounded = federation.with_features(np.asarray(features.astype(jnp.float32)))
    expected, sizes = variances(rounded)
    rows = covfree.client_rows(
        features, *map(FLOAT32.array, federation[1:]), num_rows=len(federation.labels), covariance="diagonal"
    )
    FLOAT32.assert_close(rows.covariance[: len(sizes)], expected)


def test_padding_changes_no_variance():
    federation = federations.make(1)
    kept, others = federation.kept, [FLOAT32.array(column) for column in federation[1:]]

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def run(x):
        rows = covfree.client_rows(x, *others, num_rows=len(kept), covariance="diagonal")
        return (rows.covariance * jnp.arange(1.0, DIM + 1)[None, :]).sum(), rows

    def padded(value):
        return run(FLOAT32.array(np.where(kept[:, None], federation.features, value)))

    (_, expected), _ = padded(0)
    for value in (np.nan, np.inf, 1e38):
        (_, rows), gradient = padded(value)
        for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
        gradient = np.asarray(gradient)
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[~kept], 0)
        assert np.abs(gradient[kept]).max() > 0


# Errors


@pytest.mark.usefixtures("untyped")
def test_client_rows_say_what_is_wrong():
    x, y, k = jnp.ones((4, DIM)), jnp.arange(4), jnp.zeros(4, jnp.int32)
    with pytest.raises(
        ValueError, match=r"num_rows: 2 rows cannot hold all client-class pairs: 2 of 4 examples"
    ):
        covfree.client_rows(x, y, k, num_rows=2)
    with pytest.raises(ValueError, match=r"key: expected a PRNG key"):
        covfree.client_rows(x, y, k, num_rows=4, num_subsets=2)
    with pytest.raises(ValueError, match=r"num_rows: expected an integer of at least 1, got 0"):
        covfree.client_rows(x, y, k, num_rows=0)
    with pytest.raises(TypeError, match=r"clients: expected integers, got float32"):
        covfree.client_rows(x, y, jnp.zeros(4), num_rows=4)
    with pytest.raises(ValueError, match=r"clients: expected shape \[4\]"):
        covfree.client_rows(x, y, k[:3], num_rows=4)
    with pytest.raises(ValueError, match=r"num_subsets: expected an integer of at least 1"):
        covfree.count_rows(np.zeros(2, int), np.zeros(2, int), 0)
    with pytest.raises(ValueError, match=r"subset_size: expected an integer of at least 1, got 0"):
        covfree.count_rows(np.zeros(2, int), np.zeros(2, int), 2, subset_size=0)
    with pytest.raises(TypeError, match=r"subset_size: expected an integer of at least 1, got 2\.5"):
        covfree.client_rows(x, y, k, num_rows=4, subset_size=2.5)
    with pytest.raises(ValueError, match=r"key: expected a PRNG key"):
        covfree.client_rows(x, y, k, num_rows=4, num_subsets=None)
    with pytest.raises(
        ValueError, match=r"covariance: expected one of \(None, 'diagonal', 'spherical'\), got 'full'"
    ):
        covfree.client_rows(x, y, k, num_rows=4, covariance="full")
