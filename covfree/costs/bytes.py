"""What a method costs: bytes from the clients to the server."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from covfree.methods import Examples, Method
from covfree.methods.method import MessageKind, check_method
from covfree.statistics import count_rows
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


def formula_bytes(message: MessageKind, *, num_rows: int, num_clients: int, dim: int) -> int:
    """Compute the bytes of statistics by the papers' formulas.

    FedNCM and FedCOF send 4·M·d; Fed3R, FedCGS and AFL 4·(K·d² + M·d); FedCOF's oracle and CCVR 4·M·(d² + d).

    Args:
        message: a method's ``message``.
        num_rows: M, client-class pairs (times subsets) over all clients.
        num_clients: K.
        dim: d.

    Raises:
        ValueError: if the kind of message is unknown.

    Source: FedCOF (Goswami et al. 2024), section 3.2 and Table 3.

    >>> formula_bytes("rows", num_rows=2870, num_clients=100, dim=1280) / 1e6
    14.6944
    """
    matrices = {"rows": 0, "gram": num_clients, "solutions": num_clients, "covariances": num_rows}
    if message not in matrices:
        raise ValueError(f"message: expected one of {', '.join(matrices)}, got {message!r}")
    return FLOAT_BYTES * (num_rows * dim + matrices[message] * dim * dim)


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
    sent = [rows.mean[kept]] if rows.covariance is None else [rows.mean[kept], rows.covariance[kept]]
    if message.matrix is not None:
        sent.append(message.matrix)
    return SentBytes(sum(array.nbytes for array in sent), 8 * int(kept.sum()))


def sent_bytes(
    method: Method,
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> SentBytes:
    """Compute the bytes that all clients of a federation send, without making their messages.

    Equal to the sum of `message_bytes` over the clients' messages (float32), unless a transform of the method
    drops rows. A client without examples sends nothing.

    Args:
        method: the method.
        labels: classes of all examples; below 0 is padding.
        clients: their clients; below 0 is padding.
        dim: d of the features, before any map of them.
    """
    check_method(method)
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim = dim if method.feature_map is None else method.feature_map.num_features
    if not isinstance(method.summary, Examples):
        rows, floats = method.summary.floats(labels, clients, dim)
        return SentBytes(FLOAT_BYTES * floats, 8 * rows)
    rows, senders = count_rows(labels, clients), count_senders(labels, clients)
    return SentBytes(formula_bytes(method.message, num_rows=rows, num_clients=senders, dim=dim), 8 * rows)


def count_senders(labels: np.ndarray, clients: np.ndarray) -> int:
    """How many clients hold an example."""
    return len(np.unique(clients[(clients >= 0) & (labels >= 0)]))
