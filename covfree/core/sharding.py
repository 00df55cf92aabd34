"""``shard_map`` as all jax versions that are promised have it, and arrays that came over explicit axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

if hasattr(jax, "shard_map"):
    # The check of types cannot see that gathered totals are equal on all devices.
    shard_map = partial(jax.shard_map, check_vma=False)
else:
    from jax.experimental.shard_map import shard_map as _shard_map

    shard_map = partial(_shard_map, check_rep=False)


def whole(array: Any) -> Any:
    """The whole array on every device, if a mesh with explicit axes splits it; else as it is.

    Rows are sorted and added up by class, for which jax wants to be told how the result is split. Whoever has
    more rows than a device holds takes `covfree.accumulate(..., mesh=mesh)`.
    """
    # Older releases of jax cannot sum by class over explicit axes at all.
    if not isinstance(array, jax.Array) or not hasattr(jax.sharding, "reshard"):
        return array
    # The type does not name automatic or manual axes.
    sharding = jax.typeof(array).sharding
    if all(axis is None for axis in sharding.spec):
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))
