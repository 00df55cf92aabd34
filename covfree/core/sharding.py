"""Provide ``shard_map`` for all supported versions of jax; replicate arrays sharded over explicit axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

if hasattr(jax, "shard_map"):
    # jax checks by types whether an output is equal on all devices. It cannot see this of totals that were
    # gathered, so switch the check off.
    shard_map = partial(jax.shard_map, check_vma=False)
else:
    from jax.experimental.shard_map import shard_map as _shard_map

    shard_map = partial(_shard_map, check_rep=False)


def whole(array: Any) -> Any:
    """Return an array in full on each device if it is sharded over explicit mesh axes, else as it is.

    Otherwise jax would need a sharding as an argument of each sort and each sum by class. For an array too
    large for one device, use `covfree.accumulate(..., mesh=mesh)`.
    """
    # A release of jax without `reshard` cannot sum by class over explicit axes in any case.
    if not isinstance(array, jax.Array) or not hasattr(jax.sharding, "reshard"):
        return array
    # An array's type says how it is sharded over explicit axes alone, not over automatic or manual ones.
    sharding = jax.typeof(array).sharding
    if all(axis is None for axis in sharding.spec):
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))
