"""The server's door: clients' messages in one, checked, over any number of rounds; and what it may forget."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from covfree.checks import check_type
from covfree.protocol.messages import select_rows
from covfree.protocol.received import Bounds, common_dim, sort_out, sound_message
from covfree.protocol.squares import rounding, unit_diagonal
from covfree.row_types import count_sum, summable
from covfree.types import Message, Rows


@dataclass(frozen=True)
class Collected:
    """What a server has collected so far: the sound messages in one, and which were set aside.

    Attributes:
        message: the sound messages in one. Rows stand one below the other, and ``message.rows.client[r]``
            indexes the sender of row r in ``clients``. Matrices are added up, in float64.
        clients: the senders, in the order in which their messages came.
        rejected: the reason for each client whose message was set aside.
        repeated: clients that sent again after they had been counted. Their later messages are ignored.
        solved: whether the clients sent solutions, as AFL's do.
    """

    message: Message
    clients: tuple[Hashable, ...]
    rejected: Mapping[Hashable, str] = field(default_factory=dict)
    repeated: tuple[Hashable, ...] = ()
    solved: bool = False


def collect(
    messages: Mapping[Hashable, Message],
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Hashable, int] | None = None,
    max_count: int | float | None = None,
    max_norm: int | float | None = None,
    before: Collected | None = None,
) -> Collected:
    """Check the clients' messages and put the sound ones together; bad ones are set aside and named.

    ``docs/server.md`` lists the checks, their tolerance for rounding and their cost.

    Clients may come over several rounds: pass the earlier result as ``before``. A client counts once, however
    often it sends, so the result does not depend on the order or on the split into rounds. A client whose
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
        The sound messages in one, for `solve_message`, and the reason for each that was set aside.

    Raises:
        TypeError: if ``messages`` or ``before`` have another type, or a bound is no number.
        ValueError: if no message is sound and none was before (it names the first reasons); if messages
            differ in their number of features and ``dim`` is not given, or ``dim`` is not that of ``before``;
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
    rejected = {} if before is None else dict(before.rejected)
    known = () if before is None else before.clients
    seen = set(known)
    new = {client: message for client, message in messages.items() if client not in seen}
    again = set() if before is None else set(before.repeated)
    repeated = (*(before.repeated if before else ()), *(c for c in messages if c in seen and c not in again))
    known_dim = None if before is None else before.message.rows.mean.shape[1]
    if None not in (dim, known_dim) and dim != known_dim:
        raise ValueError(f"dim: expected {known_dim}, that of the messages before; got {dim}")
    bounds = Bounds(num_classes, known_dim if dim is None else dim, num_examples or {}, max_count, max_norm)
    bounds.check_announced({*messages, *known})
    if bounds.dim is None:
        bounds = replace(bounds, dim=common_dim(new.values()))
    # What was collected holds means, whatever was sent.
    received = None if before is None else replace(before.message, solved=before.solved)
    sound, reasons = sort_out(new, bounds, received)
    rejected = {client: reason for client, reason in rejected.items() if client not in sound} | reasons
    clients = (*known, *sound)
    if not clients:
        reasons = "; ".join(f"client {client!r}: {reason}" for client, reason in list(rejected.items())[:3])
        raise ValueError(f"messages: expected a sound message, got none among {len(messages)}. {reasons}")
    parts = [] if before is None else [before.message]
    for index, message in enumerate(sound.values(), len(known)):
        owner = np.full(np.shape(message.rows.label), index, np.int32)
        parts.append(replace(message, rows=replace(message.rows, client=owner)))
    # A client without examples has nothing to add.
    parts = [part for part in parts if len(part.rows.count)] or parts[:1]
    solved = any(messages[client].solved for client in sound if len(messages[client].rows.count))
    if received is not None and len(received.rows.count):
        solved = received.solved
    return Collected(_merged(parts), clients, rejected, repeated, solved)


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
            matrix or sketches mix its classes; if the matrix is larger than that of all clients together.
            Nothing is removed then.

    >>> import covfree, jax.numpy as jnp
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
        if not mine.all():
            _check_rest(matrix, own, count_sum(rows.count))
    rows, clients = select_rows(rows, ~mine), collected.clients
    if label is None:
        owner = np.asarray(rows.client)
        rows = replace(rows, client=owner - (owner > index))
        clients = clients[:index] + clients[index + 1 :]
        collected = replace(collected, repeated=tuple(c for c in collected.repeated if c != client))
    return replace(collected, message=Message(rows, matrix), clients=clients)


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


def _merged(messages: Sequence[Message]) -> Message:
    """All rows, and the sum of the matrices: in float64, so that rounding does not grow with the clients."""
    total = sum(count_sum(message.rows.count) for message in messages)
    parts = [replace(message.rows, count=summable(message.rows.count, total)) for message in messages]
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    # An integer beside floats would make wider floats of both.
    rows = replace(rows, count=rows.count.astype(jnp.result_type(*(part.count.dtype for part in parts))))
    matrix: np.ndarray | None = None
    # One at a time: K matrices at once would be K·d² numbers.
    for message in messages:
        if message.matrix is not None:
            matrix = np.zeros(np.shape(message.matrix)) if matrix is None else matrix
            matrix += message.matrix
    return Message(rows, matrix)
