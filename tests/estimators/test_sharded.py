"""Phases are sums over rows: sharded over devices and added up, they are what they are on one device."""

from functools import partial

import federations
import jax
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
def test_eight_devices_are_one():
    """Rows, some of them padding, over 8 devices: both phases with ``psum``, no row leaves its device."""
    assert jax.device_count() == 8
    federation = federations.make(0)
    num_classes = federations.CLASSES
    rows = covfree.client_rows(
        federation.features.astype(np.float32), federation.labels, federation.clients, num_rows=64
    )
    mesh = Mesh(np.array(jax.devices()), ("rows",))

    def scatters(rows, moments):
        weightings = ("per_class", "pooled")
        return [covfree.within_scatter(rows, moments, weighting=weighting) for weighting in weightings]

    @jax.jit
    @partial(
        shard_map, mesh=mesh, in_specs=PartitionSpec("rows"), out_specs=(PartitionSpec(), PartitionSpec())
    )
    def phases(rows):
        moments = jax.lax.psum(covfree.first_moments(rows, num_classes), "rows")
        return moments, jax.lax.psum(scatters(rows, moments), "rows")

    moments, sums = phases(rows)
    alone = jax.jit(covfree.first_moments, static_argnums=1)(rows, num_classes)
    np.testing.assert_array_equal(moments.count, alone.count)
    np.testing.assert_array_equal(moments.num_rows, alone.num_rows)
    FLOAT32.assert_close(moments.total, alone.total)
    for scatter, expected in zip(sums, jax.jit(scatters)(rows, alone), strict=True):
        FLOAT32.assert_close(scatter, expected)
        assert np.isfinite(scatter).all()
