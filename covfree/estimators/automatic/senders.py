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


def mixed(x: Any) -> Any:
    """Mix the bits of uint32 numbers, so that near ones end far apart (the last steps of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def count_keys(count: Any, label: Any, xp: Any) -> Any:
    """Terms of clients' keys: n·mix(label) mod 2³² for each row.

    A client's key is the sum of its rows' terms: the same for class means, subset means and examples.

    Args:
        count: counts, at least 0.
        label: labels, at least 0.
        xp: ``np`` or ``jnp``, the module of both.
    """
    # As float32 wherever rows are read: data types may differ between sources.
    whole = xp.mod(xp.floor(count.astype(np.float32)), np.float32(2.0**32)).astype(np.uint32)
    return whole * mixed(label.astype(np.uint32) + np.uint32(1))


def mean_keys(mean: Any, xp: Any) -> Any:
    """Terms of clients' second keys, which tell clients of equal counts apart: from the bits of the means."""
    mean = mean.astype(np.float32)
    bits = jax.lax.bitcast_convert_type(mean, jnp.uint32) if xp is jnp else mean.view(np.uint32)
    odd = 2 * np.arange(mean.shape[1], dtype=np.uint32) + np.uint32(1)
    return mixed((bits * odd[None, :]).sum(1, dtype=np.uint32))


def numbered(rows: Rows, axis_name: Any = None) -> Rows:
    """Renumber the clients of rows by `fair_numbers` of their place in the order of their keys.

    A client's keys depend on its rows, and not on its number: the sample is the same in whatever order
    clients come. Only clients with rows count, and the numbers that come may have any size, so simulation and
    deployment agree. Unknown clients (below 0) stay unknown.

    Args:
        rows: *all* rows.
        axis_name: mesh axes over which they are sharded, under ``shard_map``; clients' numbers are then
            exchanged.
    """
    if rows.client is None:
        return rows
    client = row_clients(rows)
    none = jnp.iinfo(client.dtype).max
    count, label = jnp.asarray(rows.count), jnp.asarray(rows.label)
    sent = (client >= 0) & (count > 0) & (label >= 0)
    senders = jnp.where(sent, client, none)
    if axis_name is not None:
        senders = jax.lax.all_gather(senders, axis_name, tiled=True)
    place = jnp.arange(senders.shape[0])
    ordered, origin = jax.lax.sort((senders, place), num_keys=1)
    first = (ordered < none) & jnp.append(True, ordered[1:] != ordered[:-1])[: len(place)]
    rank = jnp.maximum(jnp.cumsum(first, dtype=jnp.int32) - 1, 0)
    size = first.sum(dtype=jnp.int32)
    if not isinstance(len(place), int) or len(place) > SAMPLE:
        mean = jax.lax.stop_gradient(jnp.where(sent[:, None], jnp.asarray(rows.mean), 0))
        terms = count_keys(jnp.where(sent, count, 0), label, jnp), mean_keys(mean, jnp)
        if axis_name is not None:
            terms = jax.lax.all_gather(terms, axis_name, tiled=True)
        rank = _in_order(terms, rank, origin, ordered < none, size)
    numbers = fair_numbers(rank, size)
    numbers = jnp.zeros_like(numbers).at[origin].set(numbers)
    if axis_name is not None:
        own = jax.lax.axis_index(axis_name) * client.shape[0]
        numbers = jax.lax.dynamic_slice_in_dim(numbers, own, client.shape[0])
    return replace(rows, client=jnp.where(sent, numbers, -1))


def _in_order(
    terms: tuple[jax.Array, jax.Array],
    rank: jax.Array,
    origin: jax.Array,
    sent: jax.Array,
    senders: jax.Array,
) -> jax.Array:
    """Change ranks by clients' numbers to ranks by clients' keys.

    Args:
        terms: of the two keys, for each row.
        rank: of each row's client, rows sorted by client.
        origin: the row at each of these places.
        sent: whether there is a client at each of them.
        senders: the number of clients.
    """
    length = rank.shape[0]
    place = jnp.arange(length, dtype=jnp.int32)

    def key(term: jax.Array) -> jax.Array:
        total = jax.ops.segment_sum(jnp.where(sent, term[origin], 0), rank, length)
        # Places without a client come last: at equal keys, the place decides.
        return jnp.where(place < senders, mixed(total), np.uint32(2**32 - 1))

    *_, order = jax.lax.sort((*map(key, terms), place), num_keys=3)
    return jnp.zeros_like(place).at[order].set(place)[rank]


def order_of(keys: np.ndarray) -> np.ndarray:
    """Ranks of clients by their keys, [2, clients] sums of terms, on the host; as `numbered` has them."""
    order = np.lexsort(mixed(keys[::-1]))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank
