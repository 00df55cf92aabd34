"""Which clients' sums are kept: all of them, or a fair sample that stands for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import Rows
from covfree.estimators.moments import row_clients

# Clients whose sums are kept: those of the numbers below this.
SAMPLE = 256
# Where in its stretch of the clients each of the sample is drawn: as even as the stretches themselves, but in
# step with nothing that clients may be ordered by.
_DRAWN = ((np.arange(SAMPLE) * 157) % SAMPLE).astype(np.int32)


def fair_numbers(rank: Any, senders: Any) -> Any:
    """Numbers of clients whose sums are kept where they are below 256, for the ranks 0 … senders − 1.

    Up to 256 senders keep their ranks. Of more, the order of ranks is cut into 256 stretches, and one
    of each is numbered by its stretch; the others by 256 and above.

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
    """The rows with their clients numbered anew: those that sent any, by `fair_numbers` of their order.

    Clients without rows take no number, and numbers may be of any size: simulation and deployment number
    alike. Clients unknown (below 0) stay so.

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
