"""Phases are sums over rows: sharded over devices and added up, they are what they are on one device."""

from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from precision import FLOAT32

import covfree

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map


@pytest.mark.usefixtures("untyped")  # an older jax fills the records with placeholders on the way
@pytest.mark.parametrize("weighting", ["per_class", "pooled"])
def test_eight_devices_are_one(weighting):
    """Rows, some of them padding, over 8 devices: both phases with ``psum``, no row leaves its device."""
    assert jax.device_count() == 8
    federation = federations.make(0)
    num_classes = federations.CLASSES
    rows = covfree.client_rows(
        federation.features.astype(np.float32), federation.labels, federation.clients, num_rows=64
    )
    mesh = Mesh(np.array(jax.devices()), ("rows",))

    @jax.jit
    @partial(
        shard_map, mesh=mesh, in_specs=PartitionSpec("rows"), out_specs=(PartitionSpec(), PartitionSpec())
    )
    def phases(rows):
        moments = jax.lax.psum(covfree.first_moments(rows, num_classes), "rows")
        scatter = covfree.within_scatter(rows, moments, weighting=weighting)
        return moments, jax.lax.psum(scatter, "rows")

    moments, scatter = phases(rows)
    alone = covfree.first_moments(rows, num_classes)
    np.testing.assert_array_equal(moments.count, alone.count)
    np.testing.assert_array_equal(moments.num_rows, alone.num_rows)
    FLOAT32.assert_close(moments.total, alone.total)
    FLOAT32.assert_close(scatter, covfree.within_scatter(rows, alone, weighting=weighting))
    assert jnp.isfinite(scatter).all()
