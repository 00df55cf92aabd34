"""Run a method in closed form over rounds in which clients arrive; each client sends its statistics once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

import covfree
from covfree.data import FeatureSet
from covfree.methods import Method
from covfree.studies.result import Record
from covfree.studies.timing import timed


def arrivals(
    method: Method[Any],
    data: FeatureSet,
    clients: np.ndarray,
    schedule: np.ndarray,
    *,
    seed: int,
    extractor: int | float = 0,
    measured: Callable[[int], bool] = lambda number: True,
) -> Iterator[tuple[Record, Any]]:
    """Yield a record and a head for each round.

    The record is a dict of the round's number (from 1), its costs and, if it was measured, its ``accuracy``.
    The head is the latest one, from all clients that had sent when it was made; None before the first one.

    A client sends its statistics in its first round, and nothing later. The server adds them to its sums. In
    measured rounds, it solves for the head again if clients with examples have come since the last head.

    Args:
        method: a method. If it is not `Method.one_shot`, earlier clients would have to send again whenever
            new clients arrive; those bytes and operations are not counted.
        data: training and test examples.
        clients: the client of each training example.
        schedule: [rounds, clients drawn] the clients of each round; −1 fills up rounds with fewer clients.
        seed: the seed of the method's draws.
        extractor: operations of the feature extractor on one example; the clients' operations include them.
        measured: ``measured(number)`` tells whether a head is made and tested in the round with this number
            (from 1). The last round is always measured.
    """
    labels, dim = np.asarray(data.train_labels), data.train_features.shape[1]
    came = np.zeros(int(max(clients.max(), schedule.max())) + 1, bool)
    head, accuracy, stale, before = None, 0.0, False, (0, 0, 0.0)

    def made(here: np.ndarray) -> Any:
        key = jax.random.key(seed)
        return covfree.fit(method, data.train_features, labels, here, num_classes=data.num_classes, key=key)

    for number, drawn in enumerate(schedule, start=1):
        new = [client for client in drawn if client >= 0 and not came[client]]
        came[new] = True
        # Mark absent clients' examples as padding (−1), so that all rounds share a compiled function.
        here, seconds = np.where((clients >= 0) & came[clients], clients, -1), 0.0
        senders = len(np.unique(clients[np.isin(clients, new)]))
        stale |= senders > 0
        is_measured = measured(number) or number == len(schedule)
        if is_measured and stale:
            head, seconds = timed(partial(made, here))
            accuracy, stale = float(covfree.evaluate(head, data.test_features, data.test_labels)), False
        now = (
            covfree.sent_bytes(method, labels, here, dim=dim).statistics,
            covfree.received_bytes(method, labels, here, dim=dim),
            covfree.client_flops(method, labels, here, dim=dim) + extractor * int((here >= 0).sum()),
        )
        up, down, flops = (total - earlier for total, earlier in zip(now, before, strict=True))
        record: Record = {"round": number, "clients": senders, "bytes_up": up, "bytes_down": down}
        record |= {"flops": flops, "seconds": seconds} | ({"accuracy": accuracy} if is_measured else {})
        yield record, head
        before = now
