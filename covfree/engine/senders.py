"""Number the clients of a table of rows, or of messages, from 0.

Automatic shrinkage looks at a sample of at most 256 clients: those that get numbers below 256.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from covfree.core.row_types import RowTypes
from covfree.core.types import Rows
from covfree.estimators.automatic import BITS, SAMPLE, count_keys, projections, sample_numbers

# How many rows of a column are read at a time.
_BLOCK = 2**20


def senders(rows: Rows) -> np.ndarray:
    """Return the numbers of the clients that have rows, each once, sorted.

    The rows are read in blocks, as they may be a memory map.
    """
    if rows.client is None:
        return np.zeros(0, np.int32)
    found = [np.asarray(rows.client)[:0]]
    for start in range(0, len(rows.label), _BLOCK):
        columns = (rows.client, rows.count, rows.label)
        client, count, label = (np.asarray(x)[start : start + _BLOCK] for x in columns)
        found.append(np.unique(client[(client >= 0) & (count > 0) & (label >= 0)]))
    return np.unique(np.concatenate(found))


def numbers_of(rows: Rows, known: np.ndarray, types: RowTypes, part_rows: int) -> np.ndarray:
    """Give each client that has rows a new number from 0; return the new number of each client in ``known``.

    ``known`` are their original numbers, sorted. Automatic shrinkage looks at a sample of clients: those with
    new numbers below 256. With at most 256 clients, the new number is the position in ``known``. With more,
    `sample_numbers` chooses the sample. Means are read, ``part_rows`` rows at a time, only for clients that
    have the same count of each class as another client.
    """
    if len(known) <= SAMPLE:
        return np.arange(len(known), dtype=np.int32)
    keys, asked = np.zeros(len(known), np.uint32), np.ones(len(known), bool)
    projected = np.zeros((len(known), min(rows.mean.shape[1], BITS)), np.float32)
    for which, size in enumerate((_BLOCK, part_rows)):
        for start in range(0, len(rows.label) if asked.any() else 0, size):
            columns = (rows.client, rows.count, rows.label)
            client, count, label = (np.asarray(x)[start : start + size] for x in columns)
            place = np.minimum(np.searchsorted(known, client), len(known) - 1)
            used = np.flatnonzero((known[place] == client) & (count > 0) & (label >= 0) & asked[place])
            count = count[used].astype(types.count)
            if which:
                np.add.at(projected, place[used], projections(rows.mean[start + used], count, np))
            else:
                np.add.at(keys, place[used], count_keys(count, label[used], np))
        asked = repeated(keys)
    return sample_numbers(keys, projected, len(known), np)


def numbers_of_messages(
    counted: Sequence[tuple[np.ndarray, np.ndarray]], rows: Callable[[int], Rows], dim: int
) -> np.ndarray:
    """Number the clients that sent messages, from 0; return the number of each message's client.

    Automatic shrinkage looks at a sample of clients: those with numbers below 256. Up to 256 clients are
    numbered in the order of the messages. With more, `sample_numbers` chooses the sample.

    Args:
        counted: for each message, the labels and the counts of its rows.
        rows: reads the rows of the message with a given index; called only for messages that have the same
            count of each class as another message.
        dim: d.
    """
    if len(counted) <= SAMPLE:
        return np.arange(len(counted), dtype=np.int32)
    keys = np.array([count_keys(count, label, np).sum(dtype=np.uint32) for label, count in counted])
    projected = np.zeros((len(counted), min(dim, BITS)), np.float32)
    for place in np.flatnonzero(repeated(keys)):
        own = rows(int(place))
        used = (own.label >= 0) & (own.count > 0)
        projected[place] = projections(own.mean[used], own.count[used], np).sum(0)
    return sample_numbers(keys, projected, len(counted), np)


def repeated(keys: np.ndarray) -> np.ndarray:
    """Return, for each key, whether it occurs more than once."""
    _, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    return times[place] > 1
