"""Sums over tables in parts and by group, where the engine's tests do not reach."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compilations
from jax.sharding import Mesh, PartitionSpec

import covfree
from covfree.core import sums
from covfree.core.sums import fold_parts, mean_groups

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map

# XLA's fusions decide what a sum of small differences loses.
fused = pytest.mark.usefixtures("optimised")


@pytest.mark.parametrize("length", [0, 1, 5, 16, 31])
def test_every_item_is_in_one_part(monkeypatch, length):
    """Also where there are more parts than items in a part, as with millions of rows."""
    monkeypatch.setattr(sums, "PART", 2)
    sizes = []

    def step(carry, part):
        sizes.append(part.shape[0])
        return carry + (2.0**part).sum(0)

    items = jnp.arange(length, dtype=jnp.float32)
    assert fold_parts(step, jnp.float32(0), items) == 2.0**length - 1
    assert max(sizes) < 4


def test_groups_under_vmap_and_shard_map():
    """All of jax's checks on; each batch entry has groups of its own."""
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(16, 10, 3)).astype(np.float32)
    group = rng.integers(0, 5, (16, 10)).astype(np.int32)  # 4 is no group

    def one(values, group):
        return mean_groups(values, group, 4)[0]

    spec = PartitionSpec("rows")
    run = jax.jit(shard_map(jax.vmap(one), mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    expected = np.zeros((16, 4, 3))
    for table, owners, total in zip(values, group, expected, strict=True):
        for value, owner in zip(table, owners, strict=True):
            if owner < 4:
                total[owner] += value
    count = np.stack([np.bincount(owners, minlength=5)[:4] for owners in group])
    np.testing.assert_allclose(run(values, group), expected / np.maximum(count, 1)[:, :, None], atol=1e-6)


def rows_far_from_zero(ratio, size, seed=0, clients=60, classes=3, dim=40):
    """Class means of ``size`` examples each, in float32: the examples spread by 1 about ``ratio``."""
    rng = np.random.default_rng(seed)
    label = np.tile(np.arange(classes), clients)
    mean = ratio + rng.normal(size=(classes, dim))[label] + rng.normal(size=(len(label), dim)) / size**0.5
    return covfree.Rows(jnp.asarray(mean, jnp.float32), jnp.full(len(label), size), jnp.asarray(label))


def exact_covariance(mean, count, label):
    """FedCOF's covariance in float64."""
    mean, scatter, degrees = np.asarray(mean, np.float64), 0, 0
    for c in np.unique(label):
        own, n = mean[label == c], np.asarray(count, np.float64)[label == c]
        away = own - n @ own / n.sum()
        scatter = scatter + (n.sum() - 1) / (len(own) - 1) * (away.T * n) @ away
        degrees += n.sum() - 1
    return scatter / degrees


@fused
def test_small_spreads_are_seen_far_from_zero():
    """As float64 sees them in the same float32 means, at once and in chunks."""
    rule = covfree.fedcof(0.0)
    for ratio in (10.0, 1e3, 1e4):
        for size, within in ((1, 0.01), (100, 0.01), (10**4, 0.01), (10**5, 0.03)):
            rows = rows_far_from_zero(ratio, size)
            exact = np.trace(exact_covariance(rows.mean, rows.count, np.asarray(rows.label)))
            for totals in (
                covfree.accumulate(rule, rows, num_classes=3),
                covfree.accumulate(
                    rule, covfree.Generated(jax.tree_util.Partial(thirds, rows), 3), num_classes=3
                ),
            ):
                seen = np.trace(np.asarray(totals[1].scatter.dense()))
                assert abs(seen / exact - 1) < within, (ratio, size, seen / exact)


def thirds(rows, index):
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, 60 * index, 60), rows)


@pytest.mark.slow
@fused
@pytest.mark.usefixtures("untyped")
def test_equal_rows_have_no_spread():
    """Not even that of rounding: whatever the numbers, at once, in parts and over devices."""
    rng = np.random.default_rng(1)
    value = (rng.normal(size=500) * 10.0 ** rng.uniform(-3, 4, 500)).astype(np.float32)
    features = np.tile(value, (960, 1))
    labels, clients = rng.integers(0, 3, 960), rng.integers(0, 50, 960)
    method = covfree.fedcof(0.0)
    rows = covfree.summarise(method, features, labels, clients)
    kept = np.asarray(rows.count) > 0
    np.testing.assert_array_equal(np.asarray(rows.mean)[kept], np.tile(value, (kept.sum(), 1)))
    # As many rows as there are examples, so that both tables share compiled functions.
    more = 960 - len(kept)
    means = [
        np.pad(np.asarray(x), [(0, more)] + [(0, 0)] * (x.ndim - 1))
        for x in (rows.mean, rows.count, rows.label)
    ]
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    for columns in (means, (features, np.ones(960, np.int32), labels.astype(np.int32))):
        some = covfree.Rows(*map(jnp.asarray, columns))
        for totals in (
            covfree.accumulate(method, some, num_classes=3),
            covfree.accumulate(
                method, covfree.Generated(jax.tree_util.Partial(quarter, some), 4), num_classes=3
            ),
            covfree.accumulate(method, covfree.shard_rows(some, mesh), num_classes=3, mesh=mesh),
        ):
            np.testing.assert_array_equal(totals[1].scatter.value, 0)


def quarter(rows, index):
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, 240 * index, 240), rows)


@fused
def test_gradients_far_from_zero_are_those_of_float64():
    rows = rows_far_from_zero(1e3, 100, clients=8, dim=3)
    label, direction = np.asarray(rows.label), np.random.default_rng(2).normal(size=rows.mean.shape)

    def variance(mean):
        moments = covfree.first_moments(dataclasses.replace(rows, mean=mean), 3)
        scatter = covfree.within_scatter(dataclasses.replace(rows, mean=mean), moments)
        return jnp.trace(scatter) / moments.within_degrees

    slope = np.asarray(jax.jit(jax.grad(variance))(rows.mean), np.float64)
    # The exact function is quadratic: central differences have no error but rounding.
    mean, step = np.asarray(rows.mean, np.float64), 1e-2
    ends = [np.trace(exact_covariance(mean + s * direction, rows.count, label)) for s in (step, -step)]
    np.testing.assert_allclose((slope * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=2e-3)


def test_deviations_become_zero_only_where_a_whole_group_is_within_rounding():
    """As the rule says, with groups whose ends are near the mean and whose middle is not, and by `vmap`."""
    eps = np.finfo(np.float32).eps
    group = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 9])  # the last is padding, group 4 part of a group
    off = np.array([1, 1, 1, 1, -1, 0, 1, 4000, 1, 1, 1], np.float32) * eps
    values = (1 + off)[:, None] * np.array([1, -1000, 0], np.float32)
    mean = np.ones((6, 1), np.float32) * np.array([1, -1000, 0], np.float32)
    seen = np.asarray(sums.deviations(jnp.asarray(values), jnp.asarray(mean), jnp.asarray(group)))
    rough = values[:-1] - mean[group[:-1]]
    assert (rough[:, :2] != 0).sum() > 15
    zero = np.isin(group[:-1], [0, 1, 2, 4])
    np.testing.assert_array_equal(seen[:-1], np.where(zero[:, None], 0, rough))
    both = jax.vmap(sums.deviations)(
        jnp.stack([values, values + mean[0]]), jnp.stack([mean, mean]), jnp.stack([group, group])
    )
    np.testing.assert_array_equal(both[0], seen)
    np.testing.assert_array_equal(both[1, :-1], (values + mean[0])[:-1] - mean[group[:-1]])
    np.testing.assert_array_equal(seen[-1], 0)


def test_derivatives_of_deviations_are_those_of_differences():
    """Of a constant feature too, whether or not another feature's deviations are rounding."""
    values = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    values[:, 0], group = 0, jnp.array([0, 0, 0, 1, 1, 1])
    for constant in (values[0, 1], np.float32(1000.1)):
        values[1:, 1] = constant

        def product(values):
            means = jnp.stack([values[:3].mean(0), values[3:].mean(0)])
            centred = sums.deviations(values, means, group)
            return (centred[:, 0] * centred[:, 2]).sum()

        exact = values[:, 2] - values[:, 2].reshape(2, 3).mean(1).repeat(3)
        np.testing.assert_allclose(jax.grad(product)(jnp.asarray(values))[:, 0], exact, atol=1e-6)


def test_a_scatter_outside_jit_is_compiled_once():
    rows = covfree.Rows(jnp.eye(4), jnp.full(4, 3), jnp.array([0, 0, 1, 1]))

    def factor():
        return covfree.within_factor(rows, covfree.first_moments(rows, 2))

    factor()
    assert compilations(factor) == 0
