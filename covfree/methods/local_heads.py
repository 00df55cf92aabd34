"""Let each client train a softmax head of its own, and send the head's columns as rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_strength
from covfree.core.types import Rows
from covfree.heads import softmax_head
from covfree.methods.rounds import bound
from covfree.methods.summaries import own_rows
from covfree.methods.summary import Summary
from covfree.statistics import count_rows
from covfree.statistics.directions import count_clients, senders_of
from covfree.statistics.groups import as_examples
from covfree.statistics.rows import client_sizes, deal_rows, rows_of

# The largest number of steps of a client's training.
_STEPS = 100


def send_heads(l2: float = 1e-3) -> Summary:
    """Make a summary with a row for each class c of a client k: the column [w_kc, b_kc] of its softmax head.

    Each client trains `softmax_head` on its own examples and classes. The rows are not means of features:
    they have d + 1 numbers, and cannot be used to estimate covariances.

    Args:
        l2: weight of the penalty, see `softmax_head`.
    """
    check_strength("l2", l2)
    make = bound(_columns, l2=l2)
    message = bound(own_rows, make=make, sizes=_own_sizes)
    return Summary("LocalHeads", make, _sizes, _flops, message=message)


def _sizes(labels: Any, clients: Any) -> tuple[int, ...]:
    """Return the numbers of rows and clients, and the largest numbers of examples and classes of a client."""
    classes, examples = client_sizes(labels, clients)
    largest = int(examples.max(initial=1)), int(classes.max(initial=1))
    return count_rows(labels, clients), max(1, count_clients(labels, clients)), *largest


def _own_sizes(labels: Any, num_classes: int) -> tuple[int, ...]:
    size = max(1, labels.shape[0])
    return min(size, num_classes), 1, size, min(size, num_classes)


def _flops(labels: Any, clients: Any, dim: int) -> int:
    """Return an upper bound on the operations of all clients.

    A client with n examples of C classes takes at most 100 steps of 8·n·d·C operations; none if C = 1.
    """
    classes, examples = (sizes.astype(float) for sizes in client_sizes(labels, clients))
    trained = 8 * _STEPS * examples * dim * np.where(classes > 1, classes, 0)
    return int(trained.sum()) + len(labels) * dim


def _columns(
    features: Any, labels: Any, clients: Any, sizes: tuple[int, ...], key: Any, *, l2: float
) -> Rows:
    """Train a head for each client, and return its weights and bias for each class as a row.

    Rows are sorted by client and class. ``sizes`` are from `_sizes`.
    """
    num_rows, num_clients, client_size, client_classes = sizes
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    row = deal_rows(labels, clients, 1, 2, None)
    rows = rows_of(features, labels, clients, row, num_rows)
    if not len(labels):
        return replace(rows, mean=jnp.zeros((num_rows, features.shape[1] + 1), rows.mean.dtype))
    senders = senders_of(clients, row, rows, num_clients, client_size)
    # A client's rows are adjacent, so the index of the first locates all of them.
    first = jax.ops.segment_min(jnp.where(row >= 0, row, num_rows), senders.slot, num_clients)
    order, start = jnp.argsort(senders.slot), jnp.cumsum(senders.size) - senders.size
    place, column = (jnp.arange(n, dtype=jnp.int32) for n in (client_size, client_classes))

    def trained(begin: jax.Array, size: jax.Array, first: jax.Array) -> jax.Array:
        mine = order.at[begin + place].get(mode="clip")
        label = jnp.where(place < size, row[mine] - first, -1)
        head = softmax_head(features[mine], label, client_classes, l2=l2, num_steps=_STEPS)
        return jnp.concatenate([head.weight.T, head.bias[:, None]], axis=1)

    def add(columns: jax.Array, own: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        begin, size, first, held = own
        # The bound on the number of clients may be far too large: skip slots without a client.
        nothing = jnp.zeros((client_classes, columns.shape[1]), columns.dtype)
        head = jax.lax.cond(size > 0, trained, lambda *_: nothing, begin, size, first)
        target = jnp.where(column < held, first + column, num_rows)
        return columns.at[target].set(head, mode="drop"), None

    columns = jnp.zeros((num_rows, features.shape[1] + 1), rows.mean.dtype)
    own = (start, senders.size, first, senders.size - senders.hidden)
    return replace(rows, mean=jax.lax.scan(add, columns, own)[0])
