"""What a method costs: bytes from the clients to the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.refine.refined import Refined
from covfree.staged import Staged
from covfree.statistics import count_rows
from covfree.statistics.residuals import count_clients
from covfree.types import AnyArray, Message

FLOAT_BYTES = 4


class SentBytes(NamedTuple):
    """Bytes that clients send.

    Attributes:
        statistics: the floating-point statistics, which is what the papers count.
        counts: counts and labels beside them, as 32-bit integers: 8 bytes for each class mean or sum.
    """

    statistics: int
    counts: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.statistics + self.counts


def message_bytes(message: Message) -> SentBytes:
    """Count the bytes of one message from its arrays.

    Args:
        message: from `client_message`. Padding rows are not sent.

    >>> import covfree, jax.numpy as jnp
    >>> message_bytes(Message(covfree.Rows(jnp.ones((3, 10)), jnp.array([2, 0, 5]), jnp.array([0, -1, 1]))))
    SentBytes(statistics=80, counts=16)
    """
    rows = message.rows
    sketch = False if rows.sketch is None else np.asarray(rows.sketch)
    kept = (np.asarray(rows.count) > 0) & ((np.asarray(rows.label) >= 0) | sketch)
    number = int(kept.sum())
    # By shape: taking the rows out would compile a function for each number of them.
    tables = [rows.mean] if rows.covariance is None else [rows.mean, rows.covariance]
    size = number * sum(math.prod(table.shape[1:]) * table.dtype.itemsize for table in tables)
    return SentBytes(size + (0 if message.matrix is None else message.matrix.nbytes), 8 * number)


def sent_bytes(
    method: Method | Refined | Staged,
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> SentBytes:
    """Compute the bytes that all clients of a federation send, without making their messages.

    Equal to the sum of `message_bytes` over the clients' messages (float32), unless a transform of the method
    drops rows. A client without examples sends nothing. Of a refined method the rounds after the first are
    counted too, in each of which a client sends d·q numbers and two more; of a method of several rounds of
    sums, what a client sends in each.

    Args:
        method: the method, `covfree.refined` of one, or one such as `covfree.deepafl`.
        labels: classes of all examples; below 0 is padding. C of methods of several rounds is the largest
            plus 1.
        clients: their clients; below 0 is padding.
        dim: d of the features, before any map of them.
    """
    if isinstance(method, Refined):
        first = sent_bytes(method.method, labels, clients, dim=dim)
        return first._replace(statistics=first.statistics + _of_products(method, labels, clients, dim, 2))
    if isinstance(method, Staged):
        rounds = method.shapes(dim, _num_classes(labels))
        sums = [x for _, sent in rounds for x in sent]
        senders = count_clients(np.asarray(labels), np.asarray(clients))
        whole, floats = _numbers(sums), _numbers(x for x in sums if x.dtype.kind == "f")
        return SentBytes(FLOAT_BYTES * senders * floats, FLOAT_BYTES * senders * (whole - floats))
    check_method(method)
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim = mapped_dim(method, dim)
    if method.message is None:
        rows, floats = method.summary.floats(labels, clients, dim)
        return SentBytes(FLOAT_BYTES * floats, 8 * rows)
    rows, senders = count_rows(labels, clients), count_clients(labels, clients)
    matrices = method.message.num_matrices(num_rows=rows, num_clients=senders)
    return SentBytes(FLOAT_BYTES * (rows * dim + matrices * dim * dim), 8 * rows)


def received_bytes(
    method: Method | Refined | Staged,
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> int:
    """Compute the bytes that clients receive before the head is made: 0 for methods of one round.

    In each round of a refined method after the first, each client with examples receives d·q numbers, the
    directions; in each round of a method such as `covfree.deepafl` the server's state. The head itself is not
    counted, as in no method.

    Args:
        method: see `sent_bytes`.
        labels: see `sent_bytes`.
        clients: see `sent_bytes`.
        dim: see `sent_bytes`.

    >>> import covfree, numpy as np
    >>> labels, clients = np.arange(6) % 3, np.array([0, 0, 0, 1, 1, 1])
    >>> received_bytes(covfree.refined(covfree.fedcof(), 2), labels, clients, dim=50)
    1600
    """
    if isinstance(method, Refined):
        return _of_products(method, labels, clients, dim, 0)
    if isinstance(method, Staged):
        rounds = method.shapes(dim, _num_classes(labels))
        numbers = _numbers(x for state, _ in rounds for x in state)
        return FLOAT_BYTES * count_clients(np.asarray(labels), np.asarray(clients)) * numbers
    check_method(method)
    return 0


def _num_classes(labels: AnyArray) -> int:
    return int(np.max(labels, initial=0)) + 1


def _numbers(leaves: Iterable[Any]) -> int:
    """How many numbers arrays of these shapes hold."""
    return sum(math.prod(leaf.shape) for leaf in leaves)


def _of_products(method: Refined, labels: AnyArray, clients: AnyArray, dim: int, more: int) -> int:
    """Bytes of a d × q matrix, and of some numbers more, for each client and round after the first."""
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim = mapped_dim(method.method, dim)
    numbers = sum(dim * asked + more for asked in method.asked(dim, _num_classes(labels)))
    return FLOAT_BYTES * count_clients(labels, clients) * numbers


def mapped_dim(method: Method, dim: int) -> int:
    """Dimension of what a client summarises: of the features behind the method's map, if it has one."""
    return dim if method.feature_map is None else method.feature_map.num_features
