"""Remove a client, or one class of a client, from what a server has collected."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from covfree.core.checks import check_type
from covfree.core.row_types import summable_again
from covfree.core.types import Message
from covfree.protocol.checks import as_received
from covfree.protocol.door import Collected
from covfree.protocol.messages import digest, rounding_of, select_rows


def forget(
    collected: Collected,
    client: Hashable,
    *,
    label: int | None = None,
    message: Message | None = None,
) -> Collected:
    """Return what a server has collected, minus one client or one class of a client.

    The client's rows are removed. If clients send a matrix, the collected matrix is a sum over clients, from
    which the matrix of ``message`` is subtracted. The difference equals a sum without the client up to
    `Collected.rounding`, which `certify` turns into a bound on the head. If clients send only rows, the
    merged message is the same, to the bit, as if the server had never had the client's message.

    Args:
        collected: what the server has collected.
        client: the client whose statistics are removed. It may send again.
        label: the class to remove; None for all classes. If clients send a matrix, forget the client and let
            it send again without the class.
        message: the client's message, bit for bit as it was sent; needed if it holds a matrix.

    Returns:
        What was collected, without the client or class.

    Raises:
        ValueError: if the client or the class is not known; if clients send a matrix and ``message`` is
            missing or not what the client sent; if one class is to be removed, but a matrix or residual
            directions (`Rows.sketch`) mix the classes.

    >>> import covfree, jax.numpy as jnp
    >>> from covfree.protocol.server import collect
    >>> sent = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> both = collect({"a": sent, "b": sent}, num_classes=1)
    >>> left = forget(both, "a")
    >>> left.clients, left.message.rows.count.tolist()
    (('b',), [3])
    """
    check_type("collected", collected, Collected)
    if message is not None:
        check_type("message", message, Message)
    if client not in collected.clients:
        raise ValueError(f"client: expected one that was collected, got {client!r}")
    index, rows, matrix = collected.clients.index(client), collected.message.rows, collected.message.matrix
    mine = np.asarray(rows.client) == index
    if label is not None:
        mine = _of_class(collected, client, mine, label)
    elif matrix is not None and mine.any():
        own = _sent_by(collected, client, message)
        # Without any other client the sum is exactly 0; a difference would leave rounding.
        matrix = np.zeros_like(matrix) if mine.all() else np.asarray(matrix) - own
        rounding = 0.0 if mine.all() else collected.rounding + rounding_of(matrix)
        collected = replace(collected, rounding=rounding)
    rows, clients = select_rows(rows, ~mine), collected.clients
    rows = replace(rows, count=summable_again(rows.count))
    if label is None:
        owner = np.asarray(rows.client)
        rows = replace(rows, client=owner - (owner > index))
        clients = clients[:index] + clients[index + 1 :]
        repeated, receipts, doubted = (
            {c: text for c, text in texts.items() if c != client}
            for texts in (collected.repeated, collected.receipts, collected.doubted)
        )
        collected = replace(collected, repeated=repeated, receipts=receipts, doubted=doubted)
    return replace(collected, message=replace(collected.message, rows=rows, matrix=matrix), clients=clients)


def _of_class(collected: Collected, client: Hashable, mine: np.ndarray, label: int) -> np.ndarray:
    """Return a mask of all collected rows: True for what ``client`` sent for class ``label``.

    ``mine`` is the mask of all rows of the client.

    Raises:
        ValueError: if the client sent no row of this class; or if it sent a matrix or residual directions,
            from which no single class can be removed.
    """
    rows = collected.message.rows
    directions = rows.sketch is not None and np.asarray(rows.sketch)[mine].any()
    if collected.message.matrix is not None or directions:
        raise ValueError(
            "label: expected None, as the client sent sums over all its classes; forget the whole client, "
            f"and let it send again without the class; got {label}"
        )
    labels = np.asarray(rows.label)
    if not (mine & (labels == label)).any():
        held = sorted(set(labels[mine].tolist()))
        raise ValueError(f"label: expected a class that client {client!r} holds, one of {held}, got {label}")
    return mine & (labels == label)


def _sent_by(collected: Collected, client: Hashable, message: Message | None) -> np.ndarray:
    """Return the matrix in a client's message.

    Raises:
        ValueError: if the message or its matrix is missing, or it is not the message that was collected.
    """
    if message is None or message.matrix is None:
        got = "None" if message is None else "one without a matrix"
        raise ValueError(
            f"message: expected the client's message, to subtract its matrix from the sum; got {got}"
        )
    expected, got = collected.receipts.get(client, "none").partition("-")[0], digest(message)
    if got != expected:
        raise ValueError(
            f"message: expected the one that the client sent, whose digest is {expected}; got {got}"
        )
    return np.asarray(as_received(message).matrix)
