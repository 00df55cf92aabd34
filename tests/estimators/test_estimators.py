"""Moments, scatters and covariances from rows: the oracle's values and the laws of them."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, ALONE, CLASSES, DIM
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads
from precision import FLOAT32, PRECISIONS, assert_close, x64

import covfree
from covfree import linalg

FLOAT64 = PRECISIONS["float64"]
WEIGHTINGS = ["per_class", "pooled"]
ROWS = 48  # the tests' rows, padded, so that they share compiled functions
seeds = st.integers(0, 2**31 - 1)


def table(seed=0, precision=FLOAT32, size=ROWS, **kwargs):
    """The library's rows, padded to one size, and the oracle's."""
    federation = federations.make(seed, **kwargs)
    expected = oracle.client_rows(*federation)
    return federations.rows(federation, precision, expected, padding=size - len(expected)), expected


def take(rows, index):
    return covfree.Rows(rows.mean[index], rows.count[index], rows.label[index])


@pytest.fixture
def double():
    with x64():
        yield


# Compiled, as each operation by itself takes as long to compile; that both agree is tested below.
first_moments = jax.jit(covfree.first_moments, static_argnums=1)
within_scatter = jax.jit(covfree.within_scatter, static_argnames="weighting")
between_scatter = jax.jit(covfree.between_scatter)
total_gram = jax.jit(lambda *args: covfree.total_gram(*args).dense())
gram_factor = jax.jit(covfree.estimators.gram_factor, static_argnums=1)
estimate_covariance = jax.jit(covfree.estimate_covariance)
estimate_covariances = jax.jit(covfree.estimate_covariances, static_argnums=1)
aggregate_covariances = jax.jit(covfree.aggregate_covariances)


@jax.jit
def both(rows):
    """Moments and the scatters of both weightings."""
    moments = covfree.first_moments(rows, CLASSES)
    return moments, [covfree.within_scatter(rows, moments, weighting=w) for w in WEIGHTINGS]


# Against the oracle


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_moments_and_scatters_equal_the_oracle(precision, seed, offset):
    rows, expected = table(seed, precision, offset=offset)
    moments, scatters = both(rows)
    count, held, mean = oracle.moments(expected, CLASSES)
    np.testing.assert_array_equal(moments.count, count)
    np.testing.assert_array_equal(moments.num_rows, held)
    assert held[ABSENT] == 0
    assert held[ALONE] == 1
    np.testing.assert_array_equal(moments.present, count > 0)
    precision.assert_close(moments.mean, mean, 1 / 10)
    precision.assert_close(moments.grand_mean, oracle.grand_mean(expected, CLASSES), 1 / 10)
    assert moments.within_degrees == oracle.within_degrees(expected, CLASSES)
    assert moments.spread_degrees == oracle.spread_degrees(expected, CLASSES)
    # float32 holds means near 1000 to 6e-5: up to 1e-3 of the spread of a mean of 10 examples.
    factor = 20 if offset and precision is FLOAT32 else 1
    for scatter, weighting in zip(scatters, WEIGHTINGS, strict=True):
        precision.assert_close(scatter, oracle.within_scatter(expected, CLASSES, weighting), factor)
    precision.assert_close(between_scatter(moments), oracle.between_scatter(expected, CLASSES), factor)


@pytest.mark.usefixtures("double")
def test_total_gram_equals_the_oracle():
    rows, expected = table(2, FLOAT64)
    moments, (within, _) = both(rows)
    # What a shrunk covariance adds to the diagonal is regularisation, and stays.
    given = linalg.Scatter.from_matrix(within).shifted(0.3)
    parts = ("both", "within", "between")
    grams = jax.jit(lambda *x: [covfree.total_gram(*x, scatter=part).dense() for part in parts])(
        given, moments
    )
    for scatter, gram in zip(parts, grams, strict=True):
        total = oracle.grand_term(expected, CLASSES)
        if scatter != "between":
            total = total + oracle.within_scatter(expected, CLASSES)
        if scatter != "within":
            total = total + oracle.between_scatter(expected, CLASSES)
        FLOAT64.assert_close(gram, oracle.diagonal_loading(total, 0.3))


@pytest.mark.usefixtures("double")
def test_examples_as_rows_give_the_exact_scatter_and_gram():
    federation = federations.make(3)
    clean = federation.clean
    labels = np.where(federation.kept, federation.labels, -1)
    rows = covfree.Rows.from_examples(FLOAT64.array(federation.features), FLOAT64.array(labels))
    moments, (per_class, pooled) = both(rows)
    exact = oracle.exact_within_scatter(clean.features, clean.labels, CLASSES)
    FLOAT64.assert_close(per_class, exact)
    FLOAT64.assert_close(pooled, exact)
    gram = oracle.gram(clean.features, clean.labels, CLASSES)[0]
    FLOAT64.assert_close(total_gram(per_class, moments), gram)
    factor = gram_factor(rows, CLASSES)
    FLOAT64.assert_close(factor.T @ factor, gram)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_estimate_covariance_equals_the_oracle(precision, offset, shrinkage):
    _, expected = table(4, offset=offset)
    every = []
    for c in range(CLASSES):
        # As a server would hold the class's means: the other rows are there, with count 0 and NaN.
        means = np.stack([x if y == c else np.full(DIM, np.nan) for x, _, y in expected])
        counts = np.array([n if y == c else 0 for _, n, y in expected])
        every.append(oracle.estimate_covariance(means, counts))
        actual = estimate_covariance(precision.array(means), precision.array(counts), shrinkage=shrinkage)
        factor = 20 if offset and precision is FLOAT32 else 1
        precision.assert_close(actual, oracle.diagonal_loading(every[c], shrinkage), factor)
    rows, _ = table(4, precision, offset=offset)
    actual = estimate_covariances(rows, CLASSES, shrinkage=shrinkage)
    precision.assert_close(actual, [oracle.diagonal_loading(s, shrinkage) for s in every], factor)
    np.testing.assert_array_equal(every[ABSENT], 0)
    np.testing.assert_array_equal(every[ALONE], 0)


@pytest.mark.usefixtures("double")
def test_weights_tie_the_class_covariances_to_the_scatter():
    rows, expected = table(5, FLOAT64)
    count = oracle.moments(expected, CLASSES)[0]
    covariances = estimate_covariances(rows, CLASSES)
    moments = first_moments(rows, CLASSES)
    weighted = np.tensordot(np.maximum(count - 1, 0), np.asarray(covariances, np.float64), 1)
    FLOAT64.assert_close(within_scatter(rows, moments), weighted)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_aggregated_covariances_are_those_of_the_pooled_examples(precision, offset):
    clean = federations.make(6, offset=offset).clean
    mine = clean.labels == 0
    parts = [clean.features[mine & (clean.clients == k)] for k in range(federations.CLIENTS)]
    means = np.stack([p.mean(0) if len(p) else np.full(DIM, np.nan) for p in parts])
    counts = np.array([len(p) for p in parts])
    assert 1 in counts  # whose covariance is undefined
    covariances = np.stack(
        [np.cov(p, rowvar=False) if len(p) > 1 else np.full((DIM, DIM), np.nan) for p in parts]
    )
    actual = aggregate_covariances(*map(precision.array, (means, counts, covariances)))
    factor = 20 if offset and precision is FLOAT32 else 1
    precision.assert_close(actual, np.cov(clean.features[mine], rowvar=False), factor)
    if not offset:
        precision.assert_close(actual, oracle.aggregate_covariances(means, counts, covariances))


# Edges


def test_a_class_with_one_row_or_none_adds_nothing():
    for counts in ([9, 0, 0], [0, 0, 0]):
        covariance = estimate_covariance(jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]), jnp.array(counts))
        np.testing.assert_array_equal(covariance, 0)
        shrunk = estimate_covariance(jnp.ones((3, 2)), jnp.array(counts), shrinkage=0.5)
        np.testing.assert_array_equal(shrunk, 0.5 * np.eye(2))


def test_equal_examples_have_no_scatter():
    rows, _ = table(0, equal=True)
    moments, scatters = both(rows)
    for scatter in (*scatters, between_scatter(moments)):
        np.testing.assert_allclose(scatter, 0, atol=1e-9)


def test_one_example_per_client_and_class_of_one_row():
    rows, _ = table(0)
    alone = jnp.arange(ROWS) < CLASSES
    moments, scatters = both(covfree.Rows(rows.mean, alone.astype(rows.count.dtype), jnp.arange(ROWS)))
    np.testing.assert_array_equal(scatters, np.zeros((2, DIM, DIM)))
    assert moments.spread_degrees == 0


def test_one_class_of_one_dimension():
    rows = covfree.Rows(jnp.array([[1.0], [3.0], [8.0]]), jnp.array([2, 1, 3]), jnp.zeros(3, jnp.int32))
    # N = 6, μ = 29/6, S = Σ n x² − N μ² = 203 − 841/6; w = 5/2.
    FLOAT32.assert_close(both(rows)[1][0], [[2.5 * (203 - 841 / 6)]])


def test_float_counts_equal_integer_counts():
    precision = FLOAT32
    rows, expected = table(7, precision)
    floats = covfree.Rows(rows.mean, rows.count.astype(precision.dtype), rows.label)
    moments, scatters = both(rows)
    float_moments, float_scatters = both(floats)
    np.testing.assert_array_equal(moments.count, float_moments.count)
    np.testing.assert_array_equal(moments.num_rows, float_moments.num_rows)
    for a, b in zip(scatters, float_scatters, strict=True):
        precision.assert_close(a, b)
    # Counts need not be whole: a weight is enough.
    halves = covfree.Rows(rows.mean, rows.count.astype(precision.dtype) * 2.5, rows.label)
    scaled = [(x, n * 2.5, y) for x, n, y in expected]
    precision.assert_close(both(halves)[1][0], oracle.within_scatter(scaled, CLASSES))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_counts_of_small_integer_types_do_not_overflow(dtype):
    rows = covfree.Rows(jnp.arange(4.0)[:, None], jnp.full(4, 120).astype(dtype), jnp.zeros(4, dtype))
    moments = first_moments(rows, 1)
    assert moments.count.tolist() == [480]
    assert moments.mean.tolist() == [[1.5]]


def test_half_precision_rows_are_summed_in_float32():
    dtype = jnp.float16
    rows, expected = table(8)
    # float16 ends at 65504: the sums of these counts go past it.
    count = jnp.where(rows.count > 0, rows.count + 30000, 0)
    half = covfree.Rows(rows.mean.astype(dtype), count, rows.label)
    rounded = np.asarray(half.mean.astype(jnp.float32))
    expected = [(rounded[r], n + 30000, y) for r, (_, n, y) in enumerate(expected)]
    moments, scatters = both(half)
    assert_close(moments.mean, oracle.moments(expected, CLASSES)[2], 1e-5)
    for scatter, weighting in zip(scatters, WEIGHTINGS, strict=True):
        assert_close(scatter, oracle.within_scatter(expected, CLASSES, weighting), 1e-4)
    mine = np.array([y == 0 for _, _, y in expected])
    index = np.flatnonzero(mine)
    actual = estimate_covariance(half.mean[index], half.count[index])
    assert_close(actual, oracle.estimate_covariance(rounded[index], np.asarray(count)[index]), 1e-4)


def test_scatter_of_many_rows_far_from_zero():
    # The sum of 200,000 features near 1000 is 2e8; the spread about their mean is 1.
    number = 200_000
    x = 1000 + np.random.default_rng(0).normal(size=(number, 2))
    actual = estimate_covariance(jnp.asarray(x, jnp.float32), jnp.ones(number, jnp.int32))
    assert_close(actual, np.cov(np.asarray(x, np.float32).astype(np.float64), rowvar=False), 1e-3)


# Laws


@given(
    seeds, st.sampled_from([np.nan, np.inf, -1e38]), st.sampled_from([(0, 2), (5, -1), (5, CLASSES), (-4, 0)])
)
def test_padding_changes_nothing_bit_for_bit(seed, value, filler):
    rows, expected = table(seed)
    kept = np.arange(ROWS) < len(expected)
    other = covfree.Rows(
        FLOAT32.array(np.where(kept[:, None], rows.mean, value)),
        FLOAT32.array(np.where(kept, rows.count, filler[0])),
        FLOAT32.array(np.where(kept, rows.label, filler[1])),
    )
    for a, b in zip(jax.tree.leaves(both(rows)), jax.tree.leaves(both(other)), strict=True):
        np.testing.assert_array_equal(a, b)


@given(seeds, st.integers(1, 5))
def test_terms_of_any_split_add_up(seed, parts):
    rows, _ = table(seed)
    moments, scatters = both(rows)
    # Split by padding what is not in the part: any tree of merges is a sum of these.
    owner = np.random.default_rng(seed).integers(0, parts, ROWS)
    pieces = [
        covfree.Rows(rows.mean, FLOAT32.array(np.where(owner == p, rows.count, 0)), rows.label)
        for p in range(parts)
    ]
    sums = [first_moments(piece, CLASSES) for piece in pieces]
    np.testing.assert_array_equal(sum(m.count for m in sums), moments.count)
    np.testing.assert_array_equal(sum(m.num_rows for m in sums), moments.num_rows)
    assert_close(sum(m.total for m in sums), moments.total, 1e-5)
    for weighting, scatter in zip(WEIGHTINGS, scatters, strict=True):
        terms = [within_scatter(piece, moments, weighting=weighting) for piece in pieces]
        assert_close(sum(terms), scatter, 1e-5)


@given(seeds)
def test_merging_equal_classes_of_a_client_keeps_the_class_means(seed):
    # Rows of subsets, merged pair by pair, leave count and mean of each class as they were.
    rows, _ = table(seed)
    moments = first_moments(rows, CLASSES)
    halved = covfree.Rows(
        jnp.concatenate([rows.mean, rows.mean]),
        jnp.concatenate([rows.count // 2, rows.count - rows.count // 2]),
        jnp.concatenate([rows.label, rows.label]),
    )
    split = first_moments(halved, CLASSES)
    np.testing.assert_array_equal(split.count, moments.count)
    assert_close(split.mean, moments.mean, 1e-5)


@pytest.mark.usefixtures("untyped")  # batched structures have axes that the annotations lack
def test_vmap_over_tables():
    tables = [table(seed)[0] for seed in range(2)]
    batched = jax.jit(jax.vmap(both))(jax.tree.map(lambda *x: jnp.stack(x), *tables))
    for k, rows in enumerate(tables):
        for a, b in zip(*map(jax.tree.leaves, (batched, both(rows))), strict=True):
            assert_close(a[k], b, 1e-6)


def test_estimate_covariance_batches_over_classes():
    rng = np.random.default_rng(0)
    means = FLOAT32.array(rng.normal(size=(6, 4, 3)))  # clients, classes, dim
    counts = FLOAT32.array(rng.integers(0, 5, (6, 4)))
    batched = jax.jit(jax.vmap(covfree.estimate_covariance, in_axes=(1, 1)))(means, counts)
    rows = covfree.Rows.from_means(means, counts)
    assert_close(batched, estimate_covariances(rows, 4), 1e-6)
    for c in range(4):
        assert_close(batched[c], estimate_covariance(means[:, c], counts[:, c]), 1e-6)


def test_gradients_of_the_scatter_against_finite_differences():
    with x64():
        rows, _ = table(9, FLOAT64)
        # Padding has no derivative to compare: finite differences of it are tried by themselves below.
        index = np.flatnonzero((rows.count > 0) & (rows.label >= 0))
        kept = take(rows, index)

        @jax.jit
        def loss(mean):
            some = covfree.Rows(mean, kept.count, kept.label)
            moments = first_moments(some, CLASSES)
            return jnp.sum(within_scatter(some, moments) * jnp.arange(DIM**2.0).reshape(DIM, DIM))

        check_grads(loss, (kept.mean,), order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)


def test_the_factor_stands_for_the_scatter():
    rows, expected = table(11)
    moments = first_moments(rows, CLASSES)
    factor = jax.jit(covfree.within_factor)(rows, moments)
    assert_close(factor.T @ factor, within_scatter(rows, moments), 1e-6)
    np.testing.assert_array_equal(factor[len(expected) :], 0)
    assert linalg.Scatter.from_factor(factor).factored is False
    assert linalg.Scatter.from_factor(factor[:3]).factored is True  # 3 + 1 < 5
    assert_close(linalg.Scatter.from_factor(factor[:3]).dense(), factor[:3].T @ factor[:3], 1e-6)


# Errors


@pytest.mark.usefixtures("untyped")
def test_unknown_weighting():
    rows, _ = table(0)
    moments = covfree.first_moments(rows, CLASSES)
    with pytest.raises(ValueError, match=r"weighting: expected one of \('per_class', 'pooled'\), got 'mean'"):
        covfree.fedcof(weighting="mean")
    with pytest.raises(ValueError, match=r"weighting: expected one of"):
        covfree.within_scatter(rows, moments, weighting="mean")
    with pytest.raises(
        ValueError, match=r"scatter: expected one of \('both', 'within', 'between'\), got 'all'"
    ):
        covfree.total_gram(jnp.eye(DIM), moments, scatter="all")


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_structure_of_means_and_counts(compiled):
    function = jax.jit(covfree.estimate_covariance) if compiled else covfree.estimate_covariance
    with pytest.raises(
        ValueError, match=r"means: expected \[rows, dim\] with counts \[rows\] of one class.*vmap"
    ):
        function(jnp.ones((4, 3)), jnp.ones(3))
    with pytest.raises(ValueError, match=r"means: expected \[rows, dim\]"):
        function(jnp.ones((2, 4, 3)), jnp.ones((2, 4)))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ((jnp.ones((4, 2)), jnp.ones(3), jnp.zeros(4, jnp.int32)), ValueError, "count"),
        ((jnp.ones((4, 2)), jnp.ones(4), jnp.zeros(3, jnp.int32)), ValueError, "label"),
        ((jnp.ones((4, 2)), jnp.ones(4), jnp.zeros(4)), TypeError, "label"),
        ((jnp.ones(4), jnp.ones(4), jnp.zeros(4, jnp.int32)), ValueError, "mean"),
        ((jnp.ones((4, 2), jnp.int32), jnp.ones(4), jnp.zeros(4, jnp.int32)), TypeError, "mean"),
    ],
    ids=["count", "label", "float-label", "mean", "int-mean"],
)
def test_wrong_structure_of_rows(arrays, error, message, compiled):
    def function(mean, count, label):
        return covfree.first_moments(covfree.Rows(mean, count, label), 2)

    with pytest.raises(error, match=rf"^{message}: expected .* got "):
        (jax.jit(function) if compiled else function)(*arrays)


@pytest.mark.usefixtures("untyped")
def test_no_classes():
    rows = covfree.Rows(jnp.ones((4, 2)), jnp.ones(4), jnp.zeros(4, jnp.int32))
    with pytest.raises(ValueError, match=r"covariances: expected \[4, 3, 3\], got \[4, 3\]"):
        covfree.aggregate_covariances(jnp.ones((4, 3)), jnp.ones(4), jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"share: expected a number in \[0, 1\], got 1\.5"):
        covfree.kept_aside(jnp.ones((4, 3)), 1.5)
    with pytest.raises(ValueError, match=r"num_classes: expected .*, got 0"):
        covfree.first_moments(rows, 0)
