"""Numbers of the clients of a table or of messages, on the host; as `numbered` gives them in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from covfree.core.row_types import RowTypes
from covfree.core.types import Rows
from covfree.estimators.automatic import SAMPLE, count_keys, fair_numbers, mean_keys, order_of

# Rows whose columns are read at a time.
_BLOCK = 2**20


def senders(rows: Rows) -> np.ndarray:
    """List the clients that have rows, in order; read in blocks, as the table may be a memory map."""
    if rows.client is None:
        return np.zeros(0, np.int32)
    found = [np.asarray(rows.client)[:0]]
    for start in range(0, len(rows.label), _BLOCK):
        columns = (rows.client, rows.count, rows.label)
        client, count, label = (np.asarray(x)[start : start + _BLOCK] for x in columns)
        found.append(np.unique(client[(client >= 0) & (count > 0) & (label >= 0)]))
    return np.unique(np.concatenate(found))


def numbers_of(rows: Rows, known: np.ndarray, types: RowTypes, part_rows: int) -> np.ndarray:
    """Number the clients of a table. Means are read only of clients whose counts do not tell them apart.

    Args:
        rows: a table of NumPy arrays or memory maps.
        known: its `senders`.
        types: the data types in which rows are summed.
        part_rows: rows of which means may be in memory.
    """
    if len(known) <= SAMPLE:
        return np.arange(len(known), dtype=np.int32)
    keys, asked = np.zeros((2, len(known)), np.uint32), np.ones(len(known), bool)
    for which, size in enumerate((_BLOCK, part_rows)):
        for start in range(0, len(rows.label) if asked.any() else 0, size):
            columns = (rows.client, rows.count, rows.label)
            client, count, label = (np.asarray(x)[start : start + size] for x in columns)
            place = np.minimum(np.searchsorted(known, client), len(known) - 1)
            used = np.flatnonzero((known[place] == client) & (count > 0) & (label >= 0) & asked[place])
            if which:
                with np.errstate(over="ignore"):
                    terms = mean_keys(np.asarray(rows.mean)[start + used].astype(types.mean), np)
            else:
                terms = count_keys(count[used].astype(types.count), label[used], np)
            np.add.at(keys[which], place[used], terms)
        asked = _repeated(keys[0])
    return fair_numbers(order_of(keys), len(known))


def numbers_of_messages(
    counted: Sequence[tuple[np.ndarray, np.ndarray]], rows: Callable[[int], Rows]
) -> np.ndarray:
    """Number the clients of messages. Rows are read only of those whose counts do not tell them apart.

    Args:
        counted: labels and counts of each client's rows.
        rows: returns the rows of the client at a place of ``counted``.
    """
    if len(counted) <= SAMPLE:
        return np.arange(len(counted), dtype=np.int32)
    keys = np.zeros((2, len(counted)), np.uint32)
    for place, (label, count) in enumerate(counted):
        keys[0, place] = count_keys(count, label, np).sum(dtype=np.uint32)
    for place in np.flatnonzero(_repeated(keys[0])):
        own = rows(int(place))
        keys[1, place] = mean_keys(own.mean[(own.label >= 0) & (own.count > 0)], np).sum(dtype=np.uint32)
    return fair_numbers(order_of(keys), len(counted))


def _repeated(keys: np.ndarray) -> np.ndarray:
    """Whether each key occurs more than once."""
    _, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    return times[place] > 1
