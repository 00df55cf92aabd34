"""The server's door: clients' messages in one, checked, over any number of rounds; and what it may forget."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from covfree.checks import check_positive
from covfree.messages import select_rows
from covfree.received import most_frequent_dim, sort_out
from covfree.types import Message


@dataclass(frozen=True)
class Collected:
    """What a server could use of the messages so far, and what it set aside.

    Attributes:
        message: the sound messages in one: rows one below the other, with ``client`` the place in ``clients``
            of whose they are; matrices added up.
        clients: whose messages these are, in the order in which they came.
        rejected: for each client whose message was set aside, why.
    """

    message: Message
    clients: tuple[Hashable, ...]
    rejected: Mapping[Hashable, str] = field(default_factory=dict)


def collect(
    messages: Mapping[Hashable, Message],
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Hashable, int] | None = None,
    before: Collected | None = None,
) -> Collected:
    """Put the clients' messages together; a bad one is set aside and named, the others count.

    Clients may come over several rounds: pass on what was collected ``before``. A client counts once, however
    often it sends, so that any order and any split into rounds gives the same; one whose message was set
    aside may send again.

    Args:
        messages: by client. Those without a row (a client without examples) add nothing.
        num_classes: C.
        dim: d; by default that of ``before``, or of most messages.
        num_examples: how many examples each client says that it has, where it says so; a message whose
            counts do not sum to it was cut short or altered.
        before: what earlier rounds gave.

    Returns:
        The sound messages in one, for `solve_message`, and the reason for each that was set aside.

    Raises:
        ValueError: if no message is sound and none was before; it names the first reasons.

    >>> import covfree, jax.numpy as jnp
    >>> good = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> bad = Message(covfree.Rows(jnp.full((1, 2), jnp.nan), jnp.array([3]), jnp.array([0])))
    >>> first = collect({"a": good, "b": bad}, num_classes=1)
    >>> first.rejected
    {'b': 'mean: row 0 (class 0) holds nan at position 0; expected finite numbers'}
    >>> collect({"a": good, "b": good}, num_classes=1, before=first).message.rows.client.tolist()
    [0, 1]
    """
    check_positive("num_classes", num_classes)
    rejected = {} if before is None else dict(before.rejected)
    known = () if before is None else before.clients
    new = {client: message for client, message in messages.items() if client not in known}
    if dim is None:
        dim = most_frequent_dim(new.values()) if before is None else before.message.rows.mean.shape[1]
    sound, reasons = sort_out(
        new, num_classes, dim, num_examples or {}, None if before is None else before.message
    )
    rejected = {client: reason for client, reason in rejected.items() if client not in sound} | reasons
    clients = (*known, *sound)
    if not clients:
        reasons = "; ".join(f"client {client!r}: {reason}" for client, reason in list(rejected.items())[:3])
        raise ValueError(f"messages: expected a sound message, got none among {len(messages)}. {reasons}")
    parts = [] if before is None else [before.message]
    for index, message in enumerate(sound.values(), len(known)):
        message = _with_means(message)
        owner = np.full(np.shape(message.rows.label), index, np.int32)
        parts.append(replace(message, rows=replace(message.rows, client=owner)))
    # A client without examples has nothing to add.
    parts = [part for part in parts if len(part.rows.count)] or parts[:1]
    return Collected(_merged(parts), clients, rejected)


def forget(
    collected: Collected,
    client: Hashable,
    *,
    label: int | None = None,
    message: Message | None = None,
) -> Collected:
    """Take a client, or one class of it, out again, as if it had never been sent.

    Rows are removed. A matrix is a sum over clients, from which that of the message is subtracted; what is
    left differs by the rounding of the sum.

    Args:
        collected: what the server has.
        client: whose statistics to remove. The client may send again.
        label: the class to remove; all of them by default.
        message: what is to be removed, where the method sends a matrix: as the client sent it; with a
            ``label``, as it sends the examples of that class alone.

    Returns:
        What is left.

    Raises:
        ValueError: if the client is not known; if a matrix is to be removed and no message came; if a class
            of a client is to be removed whose matrix or sketches mix its classes.

    >>> import covfree, jax.numpy as jnp
    >>> sent = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> both = collect({"a": sent, "b": sent}, num_classes=1)
    >>> left = forget(both, "a")
    >>> left.clients, left.message.rows.count.tolist()
    (('b',), [3])
    """
    if client not in collected.clients:
        raise ValueError(f"client: expected one that was collected, got {client!r}")
    index, rows = collected.clients.index(client), collected.message.rows
    owner = np.asarray(rows.client)
    mine = owner == index
    if label is not None:
        if (message is not None and message.solved) or (
            rows.sketch is not None and np.asarray(rows.sketch)[mine].any()
        ):
            raise ValueError(
                "label: expected none, as what the client sent mixes its classes; forget the client, and "
                "let it send again without the class"
            )
        mine &= np.asarray(rows.label) == label
    matrix = collected.message.matrix
    if matrix is not None and mine.any():
        if message is None or message.matrix is None:
            raise ValueError(
                "message: expected what the client sent, as its matrix was added to others; got none"
            )
        matrix = np.asarray(matrix) - np.asarray(message.matrix)
    rows, clients = select_rows(rows, ~mine), collected.clients
    if label is None:
        owner = np.asarray(rows.client)
        rows = replace(rows, client=owner - (owner > index))
        clients = clients[:index] + clients[index + 1 :]
    return Collected(Message(rows, matrix), clients, collected.rejected)


def _with_means(message: Message) -> Message:
    """Class means in the place of the columns of a ridge solution: C W = Xᵀ Y, the class sums."""
    if not message.solved:
        return message
    rows = message.rows
    sums = np.asarray(rows.mean) @ np.asarray(message.matrix)
    count = np.maximum(np.asarray(rows.count), 1)[:, None].astype(sums.dtype)
    return replace(message, rows=replace(rows, mean=sums / count), solved=False)


def _merged(messages: Sequence[Message]) -> Message:
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(message.rows for message in messages))
    total = None
    # One at a time: K matrices at once would be K·d² numbers.
    for message in messages:
        if message.matrix is not None:
            total = message.matrix if total is None else np.add(total, message.matrix)
    return Message(rows, total)
