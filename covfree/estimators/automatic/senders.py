"""Choose the clients whose sums `automatic` uses: all, or a fair sample of 256 if there are more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.products import product
from covfree.core.sums import add_by_group
from covfree.core.types import Rows
from covfree.estimators.moments import row_clients
from covfree.statistics.kept import mixed

# The automatic rule uses sums over a client's rows for the clients with numbers below this.
SAMPLE = 256
# Clients with equal counts are ordered by a hash of their projections, of this many bits or a few more.
# `projections` computes at most this many numbers for each client; each number gives at least one bit.
BITS = 16
# Sorted clients are cut into 256 intervals, and one client is drawn from each. Entry i is the position of the
# client drawn in interval i, in 256ths of the interval; the positions are evenly spread and scrambled.
_DRAWN = ((np.arange(SAMPLE) * 157) % SAMPLE).astype(np.int32)


def _group_numbers(rank: Any, start: Any, end: Any, senders: Any, xp: Any) -> Any:
    """Renumber sorted clients, such that the clients with new numbers below 256 are a fair sample of all.

    A client's rank is its position in the sorted order. Up to 256 clients get their rank as number. With
    more, the ranks are cut into 256 intervals, and one rank is drawn in each. Clients with equal keys are a
    group, and have consecutive ranks. If k drawn ranks lie in a group, its first k clients are in the sample:
    they get the numbers of those k intervals. All other clients get 256 + their rank.

    Args:
        rank: each client's rank.
        start: the first rank of the client's group.
        end: the last rank of the client's group, plus 1.
        senders: the number of clients.
        xp: ``np`` or ``jnp``, the module of the arrays.
    """
    size = xp.maximum(senders, SAMPLE)
    length, more = size // SAMPLE, size % SAMPLE
    stretch = np.arange(SAMPLE, dtype=np.int32)
    drawn = stretch * length + (stretch * more) // SAMPLE + (_DRAWN * length) // SAMPLE
    how = {} if xp is np else {"method": "compare_all"}
    first, beyond = (xp.searchsorted(drawn, place, **how) for place in (start, end))
    number = first + rank - start
    return xp.where(number < beyond, number, SAMPLE + rank).astype(np.int32)


def count_keys(count: Any, label: Any, xp: Any) -> Any:
    """Compute a term for each row; a client's terms add up to its key, a hash of its class counts.

    The term of a row with count n is ⌊n⌋·mixed(label + 1) mod 2³², where ``mixed`` is a hash. The key is the
    same whether rows are class means, subset means or examples. Clients are sorted by it.
    """
    # Round counts to float32: another source of the same rows may have them in another data type, but a
    # client must get the same key from both.
    whole = xp.mod(xp.floor(count.astype(np.float32)), np.float32(2.0**32)).astype(np.uint32)
    return whole * mixed(label.astype(np.uint32) + np.uint32(1))


def projections(mean: Any, count: Any, xp: Any) -> Any:
    """Project each row's sum of features, n·x, on at most 16 fixed directions; return [rows, directions].

    x is the mean of the row's n examples. Added up over a client's rows, the projections tell apart clients
    that have the same class counts. These sums are the same whether rows are class means, subset means or
    examples.
    """
    dim = mean.shape[1]
    bits = mixed(np.arange(1, dim + 1, dtype=np.uint32))[:, None] >> np.arange(BITS, dtype=np.uint32)
    signs = 1 - 2 * (bits & np.uint32(1)).astype(np.float32) if dim > BITS else np.eye(dim, dtype=np.float32)
    mean = mean.astype(np.float32)
    projected = mean @ signs if xp is np else product(mean, jnp.asarray(signs))
    return count.astype(np.float32)[:, None] * projected


def sample_numbers(keys: Any, projected: Any, senders: Any, xp: Any) -> Any:
    """Renumber clients, such that the clients with new numbers below 256 are a fair sample of all.

    Clients are sorted by a hash of their keys, and 256 positions of the sorted list are drawn. Clients with
    equal keys are a group. If k of the drawn positions lie in a group, its first k clients are in the sample
    (see `_group_numbers`). Within a group, clients are sorted by a second hash: a grid about the group's mean
    divides the space of ``projected`` into cells, and the cell that contains a client is hashed. Rounding can
    move only a client at the edge of a cell, and that changes at most one client of the sample.

    Args:
        keys: [clients] sums of `count_keys`.
        projected: [clients, at most 16] sums of `projections`.
        senders: the number of clients; entries after them are padding.
        xp: ``np`` or ``jnp``, the module of the arrays.
    """
    size = keys.shape[0]
    place = xp.arange(size, dtype=np.int32)
    nobody = place >= senders
    by_key = xp.lexsort((mixed(keys), nobody))
    keys, nobody, projected = keys[by_key], nobody[by_key], projected[by_key]
    new = (keys[1:] != keys[:-1]) | (nobody[1:] != nobody[:-1])
    group = xp.append(np.zeros(1, np.int32), xp.cumsum(new, dtype=np.int32))
    # The last client of a group marks the group's end.
    ends = xp.where(xp.append(new, True), place + 1, 0)
    tally = _sums(xp.stack([xp.ones_like(place), ends], 1), group, xp)[group]
    members, end = tally[:, 0], tally[:, 1]

    share = (1 / members.astype(projected.dtype))[:, None]
    away = projected - _sums(projected, group, xp)[group] * share
    spread = _sums(abs(away), group, xp)[group] * share
    # Cut each of q columns into 2^⌈16/q⌉ cells: all columns together then tell at least 2¹⁶ places apart.
    cells = 2 ** -(-BITS // away.shape[1])
    cell = xp.floor((away / xp.where(spread > 0, spread, 1) + 4) * (cells / 8))
    cell = xp.clip(xp.nan_to_num(cell), 0, cells - 1).astype(np.uint32)
    digits = np.uint32(cells) ** np.arange(away.shape[1], dtype=np.uint32)
    within = xp.lexsort((away[:, 0], mixed((cell * digits[None, :]).sum(1, dtype=np.uint32)), group))
    numbers = _group_numbers(place, end - members, end, senders, xp)
    order = by_key[within]
    if xp is jnp:
        return jnp.zeros_like(numbers).at[order].set(numbers)
    ranked = np.empty_like(numbers)
    ranked[order] = numbers
    return ranked


def _sums(values: Any, group: Any, xp: Any) -> Any:
    """Sum the rows of ``values`` by group; the result has as many rows, with 0 after the last group."""
    if xp is jnp:
        return jax.ops.segment_sum(values, group, group.shape[0])
    return add_by_group(values, group, len(values))


def numbered(rows: Rows, axis_name: Any = None, *, few: bool = False) -> Rows:
    """Renumber the clients of ``rows`` from 0; return the rows with the new numbers.

    Automatic shrinkage takes the clients numbered 0 … 255 as its sample. Up to 256 clients are all in the
    sample. With more, `sample_numbers` chooses the sample by what clients sent, not by their original numbers
    or the order of rows; clients without rows are ignored. So simulation and deployment have the same sample.
    Unknown clients (below 0) stay unknown.

    Args:
        rows: *all* rows.
        axis_name: under ``shard_map``, the mesh axes over which rows are sharded; clients' numbers are then
            exchanged between devices.
        few: whether all numbers are already below 256: then they stay as they are.
    """
    if rows.client is None:
        return rows
    client = row_clients(rows)
    count, label = jnp.asarray(rows.count), jnp.asarray(rows.label)
    sent = (client >= 0) & (count > 0) & (label >= 0)
    if few:
        return replace(rows, client=jnp.where(sent, client, -1))
    senders = jnp.where(sent, client, -1)
    if axis_name is not None:
        senders = jax.lax.all_gather(senders, axis_name, tiled=True)
    place = jnp.arange(senders.shape[0])
    ordered, origin = jax.lax.sort((senders, place), num_keys=1)
    first = (ordered >= 0) & jnp.append(True, ordered[1:] != ordered[:-1])[: len(place)]
    rank = jnp.maximum(jnp.cumsum(first, dtype=jnp.int32) - 1, 0)
    numbers = rank = jnp.zeros_like(rank).at[origin].set(rank, unique_indices=True)
    if not isinstance(len(place), int) or len(place) > SAMPLE:
        mean = jax.lax.stop_gradient(jnp.where(sent[:, None], jnp.asarray(rows.mean), 0))
        count = jax.lax.stop_gradient(jnp.where(sent, count, 0))
        terms = count_keys(count, label, jnp), projections(mean, count, jnp)
        if axis_name is not None:
            terms = jax.lax.all_gather(terms, axis_name, tiled=True)
        keys, projected = (_sums(term, rank, jnp) for term in terms)
        numbers = sample_numbers(keys, projected, first.sum(dtype=jnp.int32), jnp)[rank]
    if axis_name is not None:
        own = jax.lax.axis_index(axis_name) * client.shape[0]
        numbers = jax.lax.dynamic_slice_in_dim(numbers, own, client.shape[0])
    return replace(rows, client=jnp.where(sent, numbers, -1))
