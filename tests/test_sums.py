"""Sums over tables in parts and by group, where the engine's tests do not reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from covfree import sums
from covfree.sums import fold_parts, group_sums

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 15, 16, 31])
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
        return group_sums(values, (group < 4).astype(jnp.int32), group, 4)[0]

    spec = PartitionSpec("rows")
    run = jax.jit(shard_map(jax.vmap(one), mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    expected = np.zeros((16, 4, 3))
    for table, owners, total in zip(values, group, expected, strict=True):
        for value, owner in zip(table, owners, strict=True):
            if owner < 4:
                total[owner] += value
    np.testing.assert_allclose(run(values, group), expected, atol=1e-6)
