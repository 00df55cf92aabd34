"""Totals over devices, and over parts that are made on the way, are those of one table in memory."""

import warnings
from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import make
from federations import CLASSES
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial
from precision import FLOAT32, relative_error

import covfree
from covfree.core.sums import PART
from covfree.engine.parts import padded_rows

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map

# An older jax fills the records with placeholders on the way.
pytestmark = pytest.mark.usefixtures("untyped")

FEDCOF = covfree.fedcof(shrinkage=0.4)


@pytest.fixture(scope="module")
def mesh():
    assert jax.device_count() == 8
    return Mesh(np.array(jax.devices()), ("rows",))


def rows_of(method, federation):
    """The clients' rows without padding, on the host."""
    federation = federation._replace(features=federation.features.astype(np.float32)).clean
    rows = covfree.summarise(method, *federation, key=jax.random.key(1))
    used = np.asarray(rows.count) > 0
    return jax.tree.map(lambda x: np.asarray(x)[used], rows)


def assert_totals_close(actual, expected):
    """Integers agree exactly, floats within rounding."""
    leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(*leaves, strict=True):
        if np.asarray(other).dtype.kind == "f":
            FLOAT32.assert_close(one, other, 0.02)
        else:
            np.testing.assert_array_equal(one, other)


def as_sorted(rows):
    """Rows that are no padding, in an order of their own."""
    table = np.concatenate(
        [np.asarray(x, np.float64).reshape(len(rows.label), -1) for x in jax.tree.leaves(rows)], axis=1
    )[np.asarray(rows.count) > 0]
    return table[np.lexsort(table.T)]


def test_eight_devices_are_one(mesh):
    """Rows that they cannot share evenly; of all methods: tests/methods/test_contracts.py."""
    method = make("fedcof")
    rows = rows_of(method, federations.make(0))
    assert len(rows.label) % 8 != 0
    sharded = covfree.shard_rows(rows, mesh, whole_clients=method.whole_clients)
    totals = covfree.accumulate(method, sharded, num_classes=CLASSES, mesh=mesh)
    assert_totals_close(totals, covfree.accumulate(method, rows, num_classes=CLASSES))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="this jax cannot scatter over explicit axes")
def test_a_mesh_with_explicit_axes(mesh):
    """What such a mesh splits is worked on as a whole where nobody says how the result is split."""
    explicit = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    features, labels, clients = federations.make(0).clean
    some = len(labels) // 8 * 8
    features, labels, clients = features[:some].astype(np.float32), labels[:some], clients[:some]
    rows = rows_of(FEDCOF, federations.Federation(features, labels, clients))
    dense = jax.vmap(partial(covfree.class_means, num_classes=3))
    means, counts = dense(features[: 8 * 9].reshape(8, 9, -1), labels[: 8 * 9].reshape(8, 9))
    estimates = jax.vmap(covfree.estimate_covariance, in_axes=1)

    def split(array):
        return jax.device_put(array, NamedSharding(explicit, PartitionSpec("rows")))

    FLOAT32.assert_close(estimates(split(means), split(counts)), estimates(means, counts), 0.02)
    expected = covfree.fit(FEDCOF, features, labels, clients, num_classes=CLASSES)
    examples = map(split, (features, labels.astype(np.int32), clients.astype(np.int32)))
    table = covfree.shard_rows(rows, explicit)
    totals = covfree.accumulate(FEDCOF, table, num_classes=CLASSES, mesh=explicit)
    for head in (
        covfree.fit(FEDCOF, *examples, num_classes=CLASSES),
        covfree.solve_rows(FEDCOF, table, num_classes=CLASSES),
        covfree.solve_totals(FEDCOF, *totals),
    ):
        FLOAT32.assert_close(head.weight, expected.weight, 0.1)
    student = covfree.fit(covfree.fedcof(0.1, head="student"), features, labels, clients, num_classes=CLASSES)
    FLOAT32.assert_close(student(split(features)), student(features), 0.1)


def test_a_method_that_keeps_rows_gets_all_of_them(mesh):
    # Any rows will do; mixtures would take long to compile.
    method, rows = make("fedpft"), rows_of(FEDCOF, federations.make(0))
    moments, kept = covfree.accumulate(method, covfree.shard_rows(rows, mesh), num_classes=CLASSES, mesh=mesh)
    assert_totals_close(moments, covfree.first_moments(rows, CLASSES))
    np.testing.assert_array_equal(as_sorted(kept), as_sorted(rows))


def test_clients_that_must_stay_whole_lie_on_one_device_each(mesh):
    rows = rows_of(make("fedcof-components"), federations.make(1))
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rows.label))
    rows = jax.tree.map(lambda x: x[order], rows)
    sharded = covfree.shard_rows(rows, mesh, whole_clients=True)
    parts = [np.asarray(shard.data) for shard in sharded.client.addressable_shards]
    assert len({len(part) for part in parts}) == 1
    owners = [set(part[part >= 0].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners)) == len(set(rows.client.tolist()))
    np.testing.assert_array_equal(as_sorted(sharded), as_sorted(rows))


@pytest.mark.slow
def test_more_devices_than_clients_and_a_mesh_of_two_axes():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("hosts", "devices"))
    federation = federations.make(2)
    method = make("fedcof-components")
    rows = rows_of(method, federation._replace(clients=federation.clients.clip(-1, 1)))
    sharded = covfree.shard_rows(rows, mesh, whole_clients=True)
    totals = covfree.accumulate(method, sharded, num_classes=CLASSES, mesh=mesh)
    assert_totals_close(totals, covfree.accumulate(method, rows, num_classes=CLASSES))


def test_clients_that_are_cut_although_they_must_stay_whole(mesh):
    """It would give another covariance, without a word."""
    method = make("fedcof-components")
    rows = rows_of(method, federations.make(0))
    with pytest.raises(ValueError, match=r"rows: .*those of client \d+ are on \d.*whole_clients=True"):
        covfree.accumulate(method, covfree.shard_rows(rows, mesh), num_classes=CLASSES, mesh=mesh)


def test_integers_that_int32_cannot_hold(mesh):
    label = np.array([0, 2**32])
    with pytest.raises(ValueError, match=r"label: .*4294967296 at position 1"):
        covfree.shard_rows(covfree.Rows(np.ones((2, 2), np.float32), np.ones(2, int), label), mesh)


@pytest.mark.parametrize("whole_clients", [False, True])
def test_unsigned_labels_and_clients_stay_integers(mesh, whole_clients):
    """As floats, clients above 2²⁴ would merge."""
    labels, clients = np.arange(41) % 3, 2**24 + np.arange(41)
    means = np.random.default_rng(0).normal(size=(41, 2)).astype(np.float32)
    signed, unsigned = (
        covfree.shard_rows(
            covfree.Rows(means, np.ones(41, np.int32), labels.astype(dtype), clients.astype(dtype)),
            mesh,
            whole_clients=whole_clients,
        )
        for dtype in (np.int64, np.uint64)
    )
    assert (unsigned.label.dtype, unsigned.client.dtype) == (np.int32, np.int32)
    assert set(np.unique(unsigned.client)) == {-1, *clients}
    np.testing.assert_array_equal(unsigned.label, signed.label)
    np.testing.assert_array_equal(unsigned.client, signed.client)


def test_padding_keeps_unsigned_integers():
    labels = np.array([2**53 + 1, 3], np.uint64)
    padded = padded_rows(covfree.Rows(np.ones((2, 2)), np.ones(2), labels, labels), 3)
    assert padded.label.tolist() == padded.client.tolist() == [2**53 + 1, 3, -1]
    assert padded.label.dtype == padded.client.dtype == np.int64


def test_half_precision_counts_give_no_warning(mesh):
    rows = covfree.Rows(np.ones((2, 2), np.float32), np.ones(2, np.float16), np.zeros(2, np.int32))
    with warnings.catch_warnings(action="error"):
        assert float(covfree.shard_rows(rows, mesh).count.sum()) == 2


def test_clients_that_must_stay_whole_have_to_be_known(mesh):
    rows = covfree.Rows(np.ones((3, 2), np.float32), np.ones(3, np.int32), np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=r"rows: expected rows with a client each"):
        covfree.shard_rows(rows, mesh, whole_clients=True)


def test_a_process_without_a_device_in_the_mesh(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(ValueError, match="mesh: expected devices of this process among 8, got none"):
        covfree.shard_rows(covfree.Rows(np.ones((2, 3)), np.ones(2), np.zeros(2, int)), mesh)


def test_in_the_users_own_shard_map_with_rows_for_two_parts_a_device(mesh):
    """All of jax's checks on; each device folds its rows part by part."""
    rng = np.random.default_rng(0)
    size = 8 * (2 * PART + 100)
    labels = rng.integers(-1, CLASSES, size).astype(np.int32)
    features = (3 + rng.normal(size=(size, 4))).astype(np.float32)
    rows = covfree.Rows.from_examples(features, labels)

    @jax.jit
    @partial(shard_map, mesh=mesh, in_specs=PartitionSpec("rows"), out_specs=PartitionSpec())
    def run(rows):
        return covfree.accumulate(FEDCOF, rows, num_classes=CLASSES, axis_name="rows")

    assert "scan[" in str(jax.make_jaxpr(run)(rows))
    assert_totals_close(run(rows), covfree.accumulate(FEDCOF, rows, num_classes=CLASSES))


def cohort(key, index):
    """Twelve rows of dimension 3, of which some are padding."""
    draw, classes = jax.random.split(jax.random.fold_in(key, index))
    labels = jax.random.randint(classes, (12,), -1, 3)
    return covfree.Rows(2 + jax.random.normal(draw, (12, 3)), 1 + jnp.arange(12), labels)


def all_cohorts(key, num_parts):
    """The same in one table."""
    parts = jax.vmap(partial(cohort, key))(jnp.arange(num_parts))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts)


@pytest.mark.parametrize("name", ["fedcof", "fed3r"])
def test_parts_are_the_table_that_they_make(name):
    method, key = make(name), jax.random.key(5)
    totals = covfree.accumulate(method, covfree.Generated(Partial(cohort, key), 40), num_classes=3)
    table = all_cohorts(key, 40)
    # Under ``jit``, as values of counts are then unknown: those of examples, which fed3r expects, are 1.
    expected = jax.jit(lambda rows: covfree.accumulate(method, rows, num_classes=3))(table)
    assert_totals_close(totals, expected)
    none = covfree.accumulate(method, covfree.Generated(Partial(cohort, key), 0), num_classes=3)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(none))


def test_another_number_of_parts_or_key_compiles_nothing_anew():
    calls = 0

    def counted(key, index):
        nonlocal calls
        calls += 1
        return cohort(key, index)

    first = covfree.accumulate(
        FEDCOF, covfree.Generated(Partial(counted, jax.random.key(0)), 2), num_classes=3
    )
    assert calls > 0
    traced = calls
    more = covfree.accumulate(
        FEDCOF, covfree.Generated(Partial(counted, jax.random.key(1)), 7), num_classes=3
    )
    assert calls == traced
    assert more[0].count.sum() > first[0].count.sum()


def one_class(index):
    """Two rows a part; the sums' rounding, not the terms', is what counts."""
    value = 0.1 + 1e-3 * jnp.sin(jnp.stack([index, index + 0.5]).astype(jnp.float32))
    return covfree.Rows(value[:, None], jnp.ones(2, jnp.int32), jnp.zeros(2, jnp.int32))


def test_sums_over_20000_parts_are_accurate_in_float32():
    num_parts = 20_000
    moments, spread = covfree.accumulate(FEDCOF, covfree.Generated(one_class, num_parts), num_classes=1)
    values = np.asarray(jax.vmap(one_class)(jnp.arange(num_parts)).mean, np.float32).reshape(-1)
    exact = values.astype(np.float64)
    # One after the other in float32 the sum is off by more than a hundred times what is allowed here.
    assert relative_error(values.cumsum(dtype=np.float32)[-1], exact.sum()) > 2e-5
    assert int(moments.count[0]) == 2 * num_parts
    assert relative_error(moments.total[0, 0], exact.sum()) < 2e-7
    assert relative_error(spread[0].value[0, 0], exact.var(ddof=1)) < 1e-5


def test_parts_over_devices(mesh):
    key = jax.random.key(6)

    @jax.jit
    @partial(shard_map, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    def run(key):
        def part(key, index):
            return cohort(key, 8 * index + jax.lax.axis_index("rows"))

        return covfree.accumulate(
            FEDCOF, covfree.Generated(Partial(part, key), 5), num_classes=3, axis_name="rows"
        )

    expected = covfree.accumulate(FEDCOF, all_cohorts(key, 40), num_classes=3)
    assert_totals_close(run(key), expected)


def test_parts_cannot_be_kept():
    with pytest.raises(
        ValueError, match=r"method: expected one with totals of fixed size, got one that keeps"
    ):
        covfree.accumulate(make("fedpft"), covfree.Generated(one_class, 3), num_classes=1)


def test_parts_have_derivatives_in_reverse():
    """As those of all rows at once."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32))
    labels = jnp.array([0, 0, 1, 1])

    def part(x, index):
        return covfree.Rows.from_examples(x[index], labels)

    def loss(totals):
        return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(totals[1]))

    def in_parts(x):
        return loss(covfree.accumulate(FEDCOF, covfree.Generated(Partial(part, x), 3), num_classes=2))

    def at_once(x):
        rows = covfree.Rows.from_examples(x.reshape(12, 2), jnp.tile(labels, 3))
        return loss(covfree.accumulate(FEDCOF, rows, num_classes=2))

    def closed(x):
        return loss(
            covfree.accumulate(FEDCOF, covfree.Generated(lambda index: part(x, index), 3), num_classes=2)
        )

    expected, *found = jax.jit(lambda x: [jax.grad(way)(x) for way in (at_once, in_parts, closed)])(x)
    for slope in found:
        np.testing.assert_allclose(slope, expected, atol=1e-6)
