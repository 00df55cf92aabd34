"""``shard_map`` as all jax versions that are promised have it, and arrays that came over explicit axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

if hasattr(jax, "shard_map"):
    # Totals that devices gathered are equal on all of them, which the check of their types cannot see.
    shard_map = partial(jax.shard_map, check_vma=False)
else:
    from jax.experimental.shard_map import shard_map as _shard_map

    shard_map = partial(_shard_map, check_rep=False)


def whole(array: Any) -> Any:
    """The array on all devices, if a mesh with explicit axes splits it between them; else as it is.

    Rows are sorted and added up by class, for which jax wants to be told how the result is split. Whoever has
    more rows than a device holds takes `covfree.accumulate_sharded`.
    """
    # An older jax does not add up by class over explicit axes, however the rows lie.
    if not isinstance(array, jax.Array) or not hasattr(jax.sharding, "reshard"):
        return array
    # Of axes that are automatic or manual the type says nothing.
    sharding = jax.typeof(array).sharding
    if all(axis is None for axis in sharding.spec):
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))
