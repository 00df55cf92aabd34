"""The server's door: clients' messages in one, checked, over any number of rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_type
from covfree.core.row_types import count_sum, summable
from covfree.core.types import Message, Rows
from covfree.protocol.received import Bounds, common_dim, sort_out


class Receipt(NamedTuple):
    """What tells a client's message from another that it may send later.

    Attributes:
        checksum: of the message's numbers.
        file: of the file that it came in, see `MessageFile.mark`; None if it came in none.
        identity: of that file, see `MessageFile.identity`.
    """

    checksum: str
    file: str | None = None
    identity: str | None = None


@dataclass(frozen=True)
class Collected:
    """What a server has collected so far: the sound messages in one, and which were set aside.

    Attributes:
        message: the sound messages in one. Rows stand one below the other, and ``message.rows.client[r]``
            indexes the sender of row r in ``clients``. Matrices are added up, in float64. Without any sound
            message it has no rows, and d is 0 if nothing says what it is.
        clients: the senders, in the order in which their messages came.
        rejected: the reason for each client whose message was set aside.
        repeated: clients that sent again after they had been counted: what they sent, and why the first
            message counts.
        solved: whether the clients sent solutions, as AFL's do.
        late: when the message came of each client that missed the deadline of a `MessageFolder`. It was not
            read; `collect_files` with a later deadline collects it. Clients that count, and those whose file
            is gone, are not named.
        receipts: of each client that counts, so that a message sent again is known as such.
    """

    message: Message
    clients: tuple[Hashable, ...]
    rejected: Mapping[Hashable, str] = field(default_factory=dict)
    repeated: Mapping[Hashable, str] = field(default_factory=dict)
    solved: bool = False
    late: Mapping[Hashable, datetime] = field(default_factory=dict)
    receipts: Mapping[Hashable, Receipt] = field(default_factory=dict)

    @property
    def dim(self) -> int | None:
        """d; None if nothing was collected that says what it is."""
        return self.message.rows.mean.shape[1] or None


def collect(
    messages: Mapping[Any, Message],
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Any, int] | None = None,
    max_count: int | float | None = None,
    max_norm: int | float | None = None,
    before: Collected | None = None,
) -> Collected:
    """Check the clients' messages and put the sound ones together; bad ones are set aside and named.

    ``docs/server.md`` lists the checks, their tolerance for rounding and their cost.

    Clients may come over several rounds: pass the earlier result as ``before``. A client counts once, however
    often it sends: its first sound message does, and ``repeated`` names who sent again. A client whose
    message was set aside may send again.

    Args:
        messages: one message for each client. A message without rows (of a client without examples) adds
            nothing.
        num_classes: C.
        dim: d; by default that of ``before``, or that which all messages have.
        num_examples: the number of examples that a client announced, for those that did. A message whose
            counts have another sum was cut short or altered, and is set aside.
        max_count: most examples that a client may claim, which bounds its weight; any number by default.
        max_norm: largest norm of a feature vector, e.g. 1 for normalised features; any by default.
        before: the result of earlier rounds.

    Returns:
        The sound messages in one, for `solve_message`, and the reason for each that was set aside. That
        nobody sent anything sound is no error: ``clients`` is empty then, and `solve_message` says so.

    Raises:
        TypeError: if ``messages`` or ``before`` have another type, or a bound is no number.
        ValueError: if messages differ in their number of features and ``dim`` is not given, or ``dim`` is not
            that of ``before``;
            if a bound is below 0 or not finite; if ``num_examples`` names none of the senders.

    >>> import covfree, jax.numpy as jnp
    >>> good = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> bad = Message(covfree.Rows(jnp.full((1, 2), jnp.nan), jnp.array([3]), jnp.array([0])))
    >>> first = collect({"a": good, "b": bad}, num_classes=1)
    >>> first.rejected
    {'b': 'mean: row 0 (class 0) holds nan at position 0; expected finite numbers'}
    >>> collect({"a": good, "b": good}, num_classes=1, before=first).message.rows.client.tolist()
    [0, 1]
    """
    check_type("messages", messages, Mapping)
    if before is not None:
        check_type("before", before, Collected)
    before = Collected(_nothing(dim), ()) if before is None else before
    dim = dim_of(before, dim)
    bounds = Bounds(num_classes, dim, num_examples or {}, max_count, max_norm)
    counted = set(before.clients)
    bounds.check_announced({*messages, *counted})
    again = {c: _again(before.receipts.get(c), message) for c, message in messages.items() if c in counted}
    new = {client: message for client, message in messages.items() if client not in counted}
    if dim is None:
        bounds = replace(bounds, dim=common_dim(new.values()))
    # What was collected holds means, whatever was sent.
    sound, reasons = sort_out(new, bounds, replace(before.message, solved=before.solved))
    parts = [before.message]
    for index, message in enumerate(sound.values(), len(before.clients)):
        owner = np.full(np.shape(message.rows.label), index, np.int32)
        parts.append(replace(message, rows=replace(message.rows, client=owner)))
    solved = any(messages[client].solved for client in sound if len(messages[client].rows.count))
    # A client without examples has nothing to add; nor has a server that nobody has sent anything.
    known = [part for part in parts if part.rows.mean.shape[1]] or parts
    parts = [part for part in known if len(part.rows.count)] or known[:1]
    return Collected(
        _merged(parts),
        (*before.clients, *sound),
        {client: reason for client, reason in before.rejected.items() if client not in sound} | reasons,
        {**before.repeated, **again},
        before.solved if len(before.message.rows.count) else solved,
        {client: time for client, time in before.late.items() if client not in sound},
        {**before.receipts, **{client: Receipt(checksum(messages[client])) for client in sound}},
    )


def dim_of(before: Collected | None, dim: int | None) -> int | None:
    """d: that which is given, else that of what was collected before; None if neither says what it is.

    Raises:
        ValueError: if the two differ.
    """
    known = None if before is None else before.dim
    if None not in (dim, known) and dim != known:
        raise ValueError(f"dim: expected {known}, that of the messages before; got {dim}")
    return known if dim is None else dim


def checksum(message: Message) -> str:
    """A checksum of all that a message holds: values, shapes and data types."""
    leaves, structure = jax.tree.flatten(message)
    state = hashlib.blake2b(str(structure).encode(), digest_size=16)
    for leaf in map(np.asarray, leaves):
        state.update(f"{leaf.dtype}{leaf.shape}".encode())
        state.update(np.ascontiguousarray(leaf).tobytes())
    return state.hexdigest()


def _again(receipt: Receipt | None, message: Message) -> str:
    """What a client sent that had been counted, and which of its messages counts."""
    # Without a receipt, or if it is no message, nothing can be said of what it holds.
    same = receipt is not None and isinstance(message, Message) and checksum(message) == receipt.checksum
    if same:
        return "sent the same message again; a client counts once, so the first counts"
    return (
        "sent another message; the first counts, as heads may have been solved from it: forget the client to "
        "let the other count"
    )


def _nothing(dim: int | None) -> Message:
    """A message without rows."""
    none = np.zeros(0, np.int32)
    return Message(Rows(np.zeros((0, dim or 0), np.float32), none, none, none))


def _merged(messages: Sequence[Message]) -> Message:
    """All rows, and the sum of the matrices: in float64, so that rounding does not grow with the clients."""
    total = sum(count_sum(message.rows.count) for message in messages)
    parts = [replace(message.rows, count=summable(message.rows.count, total)) for message in messages]
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    # An integer beside floats would make wider floats of both.
    rows = replace(rows, count=rows.count.astype(jnp.result_type(*(part.count.dtype for part in parts))))
    sends = next((message.sends for message in messages if message.sends is not None), None)
    matrix: np.ndarray | None = None
    # One at a time: K matrices at once would be K·d² numbers.
    for message in messages:
        if message.matrix is not None:
            matrix = np.zeros(np.shape(message.matrix)) if matrix is None else matrix
            matrix += message.matrix
    return Message(rows, matrix, sends=sends)
