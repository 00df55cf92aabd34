"""What a server may forget: a client, or one class of it, as if it had never been sent."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_type
from covfree.core.row_types import count_sum
from covfree.core.types import Message, Rows
from covfree.protocol.messages import select_rows
from covfree.protocol.received import Bounds, sound_message
from covfree.protocol.server import Collected
from covfree.protocol.squares import rounding, unit_diagonal


def forget(
    collected: Collected,
    client: Hashable,
    *,
    label: int | None = None,
    message: Message | None = None,
) -> Collected:
    """Remove a client, or one class of it, from what was collected, as if it had never been sent.

    The client's rows are removed. The collected matrix is a sum over clients, from which the matrix of
    ``message`` is subtracted. The result equals a sum without the client, but for rounding.

    Args:
        collected: what the server has.
        client: whose statistics to remove. The client may send again.
        label: the class to remove; all of them by default.
        message: the message to remove, needed if the method sends a matrix: as the client sent it. With a
            ``label``, the message that the client makes of its examples of that class alone.

    Returns:
        What is left.

    Raises:
        ValueError: if the client or the class is not known; if the method sends a matrix and ``message`` is
            missing or has other rows than the client's; if one class is to be removed, but the client's
            matrix or residual directions mix its classes; if the matrix is larger than that of all clients
            together, or, of the only client, another. Nothing is removed then.

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
    index, rows = collected.clients.index(client), collected.message.rows
    owner = np.asarray(rows.client)
    mine = owner == index
    if label is not None:
        if collected.solved or (rows.sketch is not None and np.asarray(rows.sketch)[mine].any()):
            raise ValueError(
                "label: expected none, as what the client sent mixes its classes; forget the client, and "
                "let it send again without the class"
            )
        held = np.asarray(rows.label)[mine]
        mine &= np.asarray(rows.label) == label
        if not mine.any():
            raise ValueError(
                f"label: expected a class that client {client!r} holds, one of {sorted(set(held.tolist()))}, "
                f"got {label}"
            )
    matrix = collected.message.matrix
    if matrix is not None and mine.any():
        if message is None or message.matrix is None:
            raise ValueError(
                "message: expected what the client sent, as its matrix was added to others; got none"
            )
        own = _matrix_of(message, select_rows(rows, mine), collected.solved)
        matrix = np.asarray(matrix) - own
        check = _check_nothing if mine.all() else _check_rest
        check(matrix, own, count_sum(rows.count))
    rows, clients = select_rows(rows, ~mine), collected.clients
    if label is None:
        owner = np.asarray(rows.client)
        rows = replace(rows, client=owner - (owner > index))
        clients = clients[:index] + clients[index + 1 :]
        repeated = {c: reason for c, reason in collected.repeated.items() if c != client}
        receipts = {c: receipt for c, receipt in collected.receipts.items() if c != client}
        collected = replace(collected, repeated=repeated, receipts=receipts)
    return replace(collected, message=replace(collected.message, rows=rows, matrix=matrix), clients=clients)


def _matrix_of(message: Message, stored: Rows, solved: bool) -> np.ndarray:
    """The matrix of a message, or raise unless its rows are those that were stored.

    A client may compute it anew. A class sum is off by ``tolerance``·√(N_c a_ii) at most, see `rounding`.
    """
    if message.solved != solved:
        raise ValueError(f"message: expected solved = {solved} as the client sent it, got {message.solved}")
    dim = stored.mean.shape[1]
    sound = sound_message(message, Bounds(np.iinfo(np.int32).max, dim))
    rows, matrix = sound.rows, np.asarray(sound.matrix)
    for name in ("label", "count"):
        expected, got = np.asarray(getattr(stored, name)), getattr(rows, name)
        if not np.array_equal(got.astype(expected.dtype), expected):
            raise ValueError(
                f"message: expected the rows that the client sent, with {name} {expected.tolist()}; "
                f"got {got.tolist()}"
            )
    tolerance = 4 * rounding(count_sum(stored.count), np.asarray(message.rows.mean).dtype)
    count = np.maximum(np.asarray(stored.count, np.float64), 1)
    allowed = tolerance * np.sqrt(np.diagonal(matrix).astype(np.float64) / count[:, None])
    off = np.abs(np.asarray(rows.mean, np.float64) - stored.mean) > allowed
    if off.any():
        row, column = (int(place) for place in np.argwhere(off)[0])
        raise ValueError(
            f"message: expected the rows that the client sent, whose mean of class {stored.label[row]} holds "
            f"{stored.mean[row, column]} at position {column}; got {rows.mean[row, column]}"
        )
    return matrix


def _check_nothing(rest: np.ndarray, own: np.ndarray, num_examples: float) -> None:
    """Raise unless the only client's matrix leaves nothing of the sum, but for rounding."""
    size = np.sqrt(np.diagonal(own).astype(np.float64))
    allowed = 4 * rounding(num_examples, jnp.dtype(jnp.bfloat16)) * size[:, None] * size
    if (np.abs(rest) > allowed).any():
        i, j = (int(place) for place in np.argwhere(np.abs(rest) > allowed)[0])
        raise ValueError(
            f"message: expected the matrix that the client sent, which holds {rest[i, j] + own[i, j]} at "
            f"{(i, j)}; got {own[i, j]}"
        )


def _check_rest(rest: np.ndarray, own: np.ndarray, num_examples: float) -> None:
    """Raise unless what a matrix leaves of a sum of matrices is a sum of squares.

    A client that computed its matrix anew leaves an error of τ·√(a_ii a_jj) at most, with A = ``own``, which
    τ a_ii more on the diagonal make up for: √(a_ii a_jj) is then the most that they add off it. The others
    may have sent theirs in half precision.
    """
    tolerance = 4 * rounding(num_examples, jnp.dtype(jnp.bfloat16))
    try:
        slack = tolerance * np.diagonal(own).astype(np.float64)
        unit_diagonal("what is left of the sum", rest + np.diag(slack), num_examples, tolerance)
    except ValueError as error:
        raise ValueError(f"message: expected the matrix that the client sent; {error}") from error
