"""``shard_map`` as all jax versions that are promised have it."""

from functools import partial

import jax

if hasattr(jax, "shard_map"):
    # Totals that devices gathered are equal on all of them, which the check of their types cannot see.
    shard_map = partial(jax.shard_map, check_vma=False)
else:
    from jax.experimental.shard_map import shard_map as _shard_map

    shard_map = partial(_shard_map, check_rep=False)
