"""What every partitioner promises, and those that do not look at the labels."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covfree.data.partitions import PARTITIONERS, iid, lognormal_sizes, natural_id

# One setting of each that assigns every example, whatever the labels.
PARAMETERS = {
    "inner_dirichlet": (0.3,),
    "dirichlet": (0.3,),
    "iid": (),
    "shards": (1,),
    "pathological": (1,),
    "dominant_classes": (0.2,),
    "lognormal_sizes": (1.0,),
}
COMPLETE = [name for name in PARAMETERS if name != "pathological"]

federations = st.tuples(
    st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 60), st.integers(0, 2**32)
).filter(lambda drawn: drawn[1] <= len(drawn[0]))


def test_the_contract_covers_every_partitioner():
    assert set(PARAMETERS) == set(PARTITIONERS)
    assert next(iter(PARTITIONERS)) == "inner_dirichlet"  # a command line's default
    for function in PARTITIONERS.values():
        parameters = inspect.signature(function).parameters
        assert list(parameters)[:2] == ["labels", "num_partitions"]
        assert parameters["seed"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", COMPLETE)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(federation=federations)
def test_each_example_is_assigned_once(name, federation):
    labels, num_partitions, seed = federation
    clients = PARTITIONERS[name](np.array(labels), num_partitions, *PARAMETERS[name], seed=seed)
    assert clients.shape == (len(labels),)
    assert clients.dtype == np.int32
    assert clients.min() >= 0
    assert clients.max() < num_partitions
    sizes = np.bincount(clients, minlength=num_partitions)
    if name in ("iid", "inner_dirichlet", "shards", "dominant_classes"):
        assert np.ptp(sizes) <= 1
    if name != "dirichlet":
        assert sizes.min() >= 1


# Eight clients of a random class each leave some of the ten out.
@pytest.mark.filterwarnings("ignore:on no client")
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_seed_is_a_partition(name):
    labels = np.repeat(np.arange(10), 40)
    draw = [PARTITIONERS[name](labels, 8, *PARAMETERS[name], seed=seed) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert (draw[0] != draw[2]).any()
    np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 40))  # left as it was


@pytest.mark.parametrize("name", PARAMETERS)
def test_one_client_one_class_and_as_many_clients_as_examples(name):
    labels = np.array([7, 7, 7, 7, 7, 7])
    function, parameters = PARTITIONERS[name], PARAMETERS[name]
    assert (function(labels, 1, *parameters, seed=0) == 0).all()
    each = function(labels, 6, *parameters, seed=0)
    if name != "dirichlet":
        assert sorted(each) == [0, 1, 2, 3, 4, 5]
    assert function(np.array([0]), 1, *parameters, seed=0).tolist() == [0]


@pytest.mark.filterwarnings("ignore:on no client")
@pytest.mark.parametrize("name", PARAMETERS)
def test_labels_are_names_only(name):
    labels = np.repeat(np.arange(5), 20)
    function, parameters = PARTITIONERS[name], PARAMETERS[name]
    far = function(labels * 10**15, 4, *parameters, seed=0)  # a table by label would not fit in memory
    np.testing.assert_array_equal(far, function(labels, 4, *parameters, seed=0))
    for same in (labels.tolist(), labels.astype(np.uint8), jnp.asarray(labels)):
        np.testing.assert_array_equal(far, function(same, 4, *parameters, seed=0))


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize(
    ("labels", "num_partitions", "seed", "error", "message"),
    [
        ([], 1, 0, ValueError, r"labels: expected shape \[examples\], not empty, got \[0\]"),
        ([[0, 1]], 1, 0, ValueError, r"labels: expected shape \[examples\], not empty, got \[1, 2\]"),
        ([0.0, 1.0], 1, 0, TypeError, "labels: expected integers, got float64"),
        ([True, False], 1, 0, TypeError, "labels: expected integers, got bool"),
        ([0, 1, -1], 1, 0, ValueError, "labels: expected integers of at least 0, got -1 at row 2"),
        ([0, 1], 0, 0, ValueError, "num_partitions: expected an integer of at least 1, got 0"),
        ([0, 1], 3, 0, ValueError, "num_partitions: expected at most the number of examples, 2, got 3"),
        ([0, 1], 1.5, 0, TypeError, "num_partitions"),
        ([0, 1], 1, -1, ValueError, "seed: expected an integer of at least 0, got -1"),
        ([0, 1], 1, None, TypeError, "seed"),
    ],
)
def test_errors_name_the_argument(name, labels, num_partitions, seed, error, message):
    with pytest.raises(error, match=message):
        PARTITIONERS[name](np.array(labels), num_partitions, *PARAMETERS[name], seed=seed)


@pytest.mark.parametrize(
    ("name", "argument"), [("inner_dirichlet", "alpha"), ("dirichlet", "alpha"), ("lognormal_sizes", "sigma")]
)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_reals(name, argument, value):
    with pytest.raises(ValueError, match=f"{argument}: expected a finite number .*, got {value}"):
        PARTITIONERS[name]([0, 1], 1, value, seed=0)


def test_iid_and_sizes_take_a_number_of_examples():
    labels = np.repeat(np.arange(4), 25)
    np.testing.assert_array_equal(iid(100, 7, seed=1), iid(labels, 7, seed=1))
    np.testing.assert_array_equal(
        lognormal_sizes(100, 7, 1.0, seed=1), lognormal_sizes(labels, 7, 1.0, seed=1)
    )
    with pytest.raises(ValueError, match="labels: expected an integer of at least 1, got 0"):
        iid(0, 1, seed=0)


def test_iid_marginals_are_hypergeometric():
    labels = np.repeat(np.arange(5), 200)
    counts = np.stack(
        [np.bincount(labels[iid(labels, 10, seed=seed) == 0], minlength=5) for seed in range(200)]
    )
    # 100 of 1000 drawn without replacement, 200 of each class.
    variance = 100 * 0.2 * 0.8 * (900 / 999)
    z = (counts.mean(0) - 20) / np.sqrt(variance / 200)
    assert np.abs(z).max() < 4
    assert counts.var(0).mean() == pytest.approx(variance, rel=0.2)


def test_lognormal_sizes_follow_their_law():
    sizes = np.bincount(lognormal_sizes(1_000_000, 2000, 1.0, seed=0))
    assert sizes.sum() == 1_000_000
    assert sizes.min() >= 1
    logs = np.log(sizes)
    # The standard deviation of 2000 normal draws is off by 1/sqrt(4000) = 1.6%.
    assert logs.std() == pytest.approx(1.0, abs=0.08)
    skewness = np.mean(((logs - logs.mean()) / logs.std()) ** 3)
    assert abs(skewness) < 4 * np.sqrt(6 / 2000)


def test_lognormal_sizes_at_the_ends_of_sigma():
    assert np.ptp(np.bincount(lognormal_sizes(103, 10, 0, seed=0))) <= 1
    huge = np.bincount(lognormal_sizes(100, 10, 1e300, seed=0))
    assert sorted(huge) == [1] * 9 + [91]


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b", "c"],
        np.array(["b", "a", "b", "c"]),
        np.array(["b", "a", "b", "c"], dtype=object),
        np.array(["b", "a", "b", "c"], dtype=np.dtypes.StringDType()),
        [20, -3, 20, 2**40],
        np.array([2, 1, 2, 7], np.uint8),
        np.array([0.5, -1.0, 0.5, np.inf]),
        np.array(["2024-02-01", "2024-01-01", "2024-02-01", "2025-01-01"], "datetime64[D]"),
        [b"b", b"a", b"b", b"c"],
        [("u", 2), ("u", 1), ("u", 2), ("v", 0)],
        np.ma.masked_array([5, 4, 5, 6]),
    ],
)
def test_natural_ids_in_sorted_order(ids):
    clients = natural_id(ids)
    assert clients.dtype == np.int32
    assert clients.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", None, "a"], "got None at row 2"),
        (["a", float("nan")], "got nan at row 1"),
        ([1, None, 2], "got None at row 1"),
        (np.array([1.0, 2.0, np.nan, np.nan]), "got nan at row 2"),
        (np.array(["2024-01-01", "NaT"], "datetime64[D]"), "at row 1"),
        (["a", ""], "got '' at row 1"),
        (np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]), "got None at row 1"),
        ([], "ids: expected one for each example"),
        ([["a"], ["b"]], "ids: expected one for each example"),
        (np.zeros((2, 2)), r"ids: expected one for each example, got shape \[2, 2\]"),
    ],
)
def test_missing_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        natural_id(ids)


def test_ids_of_mixed_types():
    with pytest.raises(TypeError, match="ids: expected ids of one type that can be sorted"):
        natural_id([1, "a"])
