"""Which clients' sums the automatic rule keeps: all, or a fair sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import Rows
from covfree.estimators.moments import row_clients

# Sums are kept of clients numbered below this.
SAMPLE = 256
# The position drawn in each stretch of the clients: evenly spread, and out of step with any order of clients.
_DRAWN = ((np.arange(SAMPLE) * 157) % SAMPLE).astype(np.int32)


def fair_numbers(rank: Any, senders: Any) -> Any:
    """Number the clients of ranks 0 … senders − 1 so that a fair sample has the numbers below 256.

    Up to 256 senders keep their ranks. With more, the ranks are cut into 256 stretches. One client of each
    stretch gets the stretch's number; the others get 256 and above.

    Args:
        rank: NumPy or jax array of ranks.
        senders: how many there are; traced with a traced ``rank``.
    """
    on_host = isinstance(rank, np.ndarray)
    xp: Any = np if on_host else jnp
    size = xp.maximum(senders, SAMPLE)
    length, more = size // SAMPLE, size % SAMPLE
    stretch = np.arange(SAMPLE, dtype=np.int32)
    drawn = stretch * length + (stretch * more) // SAMPLE + (_DRAWN * length) // SAMPLE
    found = xp.searchsorted(drawn, rank, side="right", **({} if on_host else {"method": "compare_all"}))
    last = found - 1
    return xp.where(drawn[last] == rank, last, SAMPLE + rank).astype(np.int32)


def numbered(rows: Rows, axis_name: Any = None) -> Rows:
    """Renumber the clients of rows by `fair_numbers` of their order.

    Only clients with rows count, and the numbers that come may have any size, so simulation and deployment
    agree. Unknown clients (below 0) stay unknown.

    Args:
        rows: *all* rows.
        axis_name: mesh axes over which they are sharded, under ``shard_map``; clients' numbers are then
            exchanged.
    """
    if rows.client is None:
        return rows
    client = row_clients(rows)
    none = jnp.iinfo(client.dtype).max
    sent = (client >= 0) & (jnp.asarray(rows.count) > 0) & (jnp.asarray(rows.label) >= 0)
    senders = jnp.where(sent, client, none)
    if axis_name is not None:
        senders = jax.lax.all_gather(senders, axis_name, tiled=True)
    place = jnp.arange(senders.shape[0])
    ordered, origin = jax.lax.sort((senders, place), num_keys=1)
    first = (ordered < none) & jnp.append(True, ordered[1:] != ordered[:-1])[: len(place)]
    rank = jnp.maximum(jnp.cumsum(first, dtype=jnp.int32) - 1, 0)
    numbers = fair_numbers(rank, first.sum(dtype=jnp.int32))
    numbers = jnp.zeros_like(numbers).at[origin].set(numbers)
    if axis_name is not None:
        own = jax.lax.axis_index(axis_name) * client.shape[0]
        numbers = jax.lax.dynamic_slice_in_dim(numbers, own, client.shape[0])
    return replace(rows, client=jnp.where(sent, numbers, -1))
