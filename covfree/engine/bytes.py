"""The communication cost of a method: the bytes that clients send and receive."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from covfree.core.types import AnyArray, Message, PRNGKey, Rows
from covfree.engine.shapes import Passed, passed
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.statistics.directions import count_clients

FLOAT_BYTES = 4


class SentBytes(NamedTuple):
    """How many bytes clients send.

    Attributes:
        statistics: bytes of floating-point numbers, such as class means. Only these are counted in papers.
        counts: bytes of the counts and labels sent with them, as 32-bit integers: 8 for each class mean or
            sum.
    """

    statistics: int
    counts: int

    @property
    def total(self) -> int:
        """The bytes of statistics and counts together."""
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
    return _of_messages(_floats(message), num_rows=int(kept.sum()), num_clients=1)


def _floats(message: Message) -> tuple[Any, Any]:
    """Return a message's floats: the columns with an entry for each row (means, covariances); its matrix."""
    return (message.rows.mean, message.rows.covariance), message.matrix


@jax.jit  # never run: `eval_shape` traces a jitted function only once for each method
def _floats_of_one(method: Method[Any], features: jax.Array, labels: jax.Array, key: PRNGKey) -> Any:
    # In a sweep, hyperparameters are arrays of values. Shapes do not depend on the value: take the first.
    params = jax.tree.map(lambda leaf: jnp.ravel(leaf)[0], method.params)
    return _floats(replace(method, params=params).made(features, labels, 1, key))


def _of_messages(floats: tuple[Any, Any], *, num_rows: int, num_clients: int) -> SentBytes:
    """Count the bytes of clients' messages from the shapes of the floats in one of them."""
    columns, once = map(jax.tree.leaves, floats)
    row = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in columns)
    other = sum(math.prod(x.shape) * x.dtype.itemsize for x in once)
    return SentBytes(num_rows * row + num_clients * other, 8 * num_rows)


def sent_bytes(
    method: Method[Any],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> SentBytes:
    """Compute how many bytes all clients of a federation send, without making their messages.

    A message has the size that `message_bytes` gives in float32. Sums that clients upload in later rounds, or
    instead of a message, are added: in each round of `covfree.refined` with q directions a client sends d·q +
    2 numbers. A client without examples sends nothing.

    The result is too large if a transform drops rows, or if `covfree.select` keeps all examples of a row
    aside: such rows are not sent, but they are counted.

    Args:
        method: the method.
        labels: classes of all examples; below 0 is padding. For methods of several rounds, C is the largest
            label plus 1.
        clients: the client of each example; below 0 is padding.
        dim: d, the dimension of the features before any feature map.
    """
    check_method(method)
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim, senders = mapped_dim(method, dim), count_clients(labels, clients)
    uploads = [x for each in of_rounds(method, labels, clients, dim) for x in each.upload.leaves]
    floats, whole = _numbers(x for x in uploads if x.dtype.kind == "f"), _numbers(uploads)
    rounds = SentBytes(FLOAT_BYTES * senders * floats, FLOAT_BYTES * senders * (whole - floats))
    if not method.message_rounds:
        return rounds
    part = replace(method.client_part(), params=method.params, feature_map=None)
    one = jax.ShapeDtypeStruct((1, dim), np.float32), jax.ShapeDtypeStruct((1,), np.int32)
    floats = jax.eval_shape(_floats_of_one, part, *one, jax.random.key(0))
    number = method.summary.num_rows(labels, clients, dim)
    own = _of_messages(floats, num_rows=number, num_clients=senders)
    return SentBytes(own.statistics + rounds.statistics, own.counts + rounds.counts)


def received_bytes(
    method: Method[Any],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> int:
    """Compute the bytes that clients receive before the head is made: 0 for methods of one round.

    In each round after the first, a client with examples receives d·q numbers (q directions) in a refined
    method, and the server's state in a method such as `covfree.deepafl`. The final head is never counted.

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
    check_method(method)
    senders = count_clients(np.asarray(labels), np.asarray(clients))
    rounds = of_rounds(method, labels, clients, mapped_dim(method, dim))
    return FLOAT_BYTES * senders * _numbers(x for each in rounds for x in each.sent.leaves)


def _numbers(leaves: Iterable[Any]) -> int:
    """Count the numbers in all ``leaves``, which are arrays or descriptions of arrays with a ``shape``."""
    return sum(math.prod(leaf.shape) for leaf in leaves)


def of_rounds(method: Method[Any], labels: AnyArray, clients: AnyArray, dim: int) -> list[Passed]:
    """Return the shapes of what clients receive and upload in each round, as a list of `Passed`.

    The list leaves out the first `Method.message_rounds` rounds. The server computes these alone, from one
    message of each client, whose bytes are not part of this list.

    Args:
        method: see `sent_bytes`.
        labels: see `sent_bytes`.
        clients: see `sent_bytes`.
        dim: d after the method's feature map.
    """
    num_classes = int(np.max(labels, initial=0)) + 1

    def all_rows() -> Rows:
        one = jnp.zeros((1, dim)), jnp.zeros(1, jnp.int32)
        rows = method.summary.one_client(*one, num_classes, jax.random.key(0))
        rows = jax.tree.map(lambda x: jnp.resize(x, (max(1, number), *x.shape[1:])), rows)
        return replace(rows, client=jnp.zeros_like(rows.label)) if method.whole_clients else rows

    # A round may broadcast a head that contains all clients' rows, so make as many rows as they send.
    number = method.summary.num_rows(np.asarray(labels), np.asarray(clients), dim)
    return passed(method, all_rows, num_classes, start=method.message_rounds)


def mapped_dim(method: Method[Any], dim: int) -> int:
    """Return the dimension of the features that a client summarises, after the method's feature map."""
    return dim if method.feature_map is None else method.feature_map.num_features
