"""The server's entry point: check clients' messages and merge them, over any number of rounds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from covfree.core.checks import check_type
from covfree.core.row_types import exact_counts
from covfree.core.types import Message, Rows
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.protocol.checks import Bound, Rules, as_received, check_known
from covfree.protocol.door import Collected, check_messages, reason_of, receipt_of
from covfree.protocol.inbox import Inbox
from covfree.protocol.kinds import renumbered
from covfree.protocol.messages import SAID, check_class_names, check_extractor, rounding_of


def collect(
    messages: Mapping[Any, Message] | Inbox,
    *,
    num_classes: int,
    dim: int | None = None,
    method: Method[Any] | None = None,
    class_names: Sequence[str] | None = None,
    extractor: str | None = None,
    num_examples: Mapping[Any, int] | None = None,
    max_count: Bound = "derived",
    max_norm: Bound = "derived",
    judge_sites: bool = False,
    before: Collected | None = None,
) -> Collected:
    """Check the clients' messages, and merge the sound ones into one; bad ones are set aside with a reason.

    ``docs/server.md`` lists the checks, their tolerance for rounding and their cost. Pass ``dim``,
    ``method``, ``class_names`` and ``extractor`` if the server knows them. If one of the last three is not
    given, the majority of messages decides what it is; without ``dim``, all messages must have the same d.

    Clients may send in several rounds: pass the earlier result as ``before``. A client counts once, by its
    first sound message; ``repeated`` names clients that sent again. A client whose message was set aside may
    send again.

    Args:
        messages: one message for each client; an `Inbox` reads them from files when they are needed. A
            message without rows, from a client without examples, adds nothing.
        num_classes: C.
        dim: d; by default the d of ``before``, or the one that all messages share.
        method: the federation's method, which fixes the kind of message: its arrays and what they contain.
            By default messages must be of the kind of ``before``, or of most messages.
        class_names: [C], the names of the classes by their numbers, as in `client_message`. A message with
            other names is set aside. A message without names passes, and so does one with only the first
            names, from a client that does not know later classes. By default the names in ``before``, or in
            most messages. The names in ``before`` must come first, as new classes have higher numbers.
        extractor: `Extractor.fingerprint` of the features' extractor. A message with another fingerprint is
            set aside; one without passes. By default the fingerprint in ``before``, or in most messages.
        num_examples: for each client that announced it, its number of examples. If the counts of its message
            have another sum, the message was cut short or altered, and is set aside.
        max_count: the largest number of examples that a client may claim, which bounds its weight.
            ``"derived"``, the default, takes the bound from the counts of all clients if there are at least
            four; None sets no bound.
        max_norm: the largest norm of a feature vector, e.g. 1 for normalised features. ``"derived"``, the
            default, takes the bound of the method's feature map if it has one, else derives it from the norms
            in all messages if there are at least four; None sets no bound.
        judge_sites: whether to set aside sites that fail `diagnose_sites`. All sound messages are tested
            together, including those of ``before``. Sites of ``before`` that fail are not removed, but
            ``doubted`` names them. Fewer than five sites are not judged, and ``bounds["sites"]`` says so.
            This reads each message once more.
        before: the result of earlier rounds.

    Returns:
        The sound messages merged into one, for `solve_message`, and why each other message was set aside. If
        no message is sound, no error is raised here: ``clients`` is empty, and `solve_message` raises.

    Raises:
        TypeError: if an argument has another type, or a message is traced.
        ValueError: if ``dim`` is not given and sound messages differ in d, or ``dim`` is not that of
            ``before``; if ``before`` is of another method, or has other class names, another extractor or
            labels of ``num_classes`` or above; if a bound is below 0 or not finite; if ``num_examples`` names
            none of the senders; if the method's clients send sums in rounds instead of messages.

    >>> import covfree, jax.numpy as jnp
    >>> good = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> bad = Message(covfree.Rows(jnp.full((1, 2), jnp.nan), jnp.array([3]), jnp.array([0])))
    >>> first = collect({"a": good, "b": bad}, num_classes=1)
    >>> first.rejected
    {'b': 'mean: row 0 (class 0) holds nan at position 0; expected finite numbers'}
    >>> collect({"a": good, "b": good}, num_classes=1, before=first).message.rows.client.tolist()
    [0, 1]
    """
    if not isinstance(messages, Mapping):
        raise TypeError(
            "messages: expected a mapping from each client's name to its message, such as {'a': message}, or "
            f"an Inbox; got {type(messages).__name__}"
        )
    if before is not None:
        check_type("before", before, Collected)
    if method is not None:
        check_method(method)
    names = check_class_names(class_names, num_classes)
    check_extractor(extractor)
    before = Collected(_nothing(dim), ()) if before is None else _grown(before, names, num_classes)
    names = before.message.class_names if names is None else names
    dim = _dim_of(before, dim)
    announced = num_examples or {}
    rules = Rules(num_classes, dim, method, names, extractor, announced, max_count, max_norm, judge_sites)
    counted = set(before.clients)
    unreadable = messages.unreadable if isinstance(messages, Inbox) else {}
    rules.check_announced([*messages, *unreadable, *before.clients])
    checked = check_messages(
        messages, [client for client in messages if client not in counted], rules, before
    )
    rejected = {c: reason for c, reason in unreadable.items() if c not in counted} | checked.rejected
    parts = [replace(before.message, matrix=None)]
    receipts, matrix, rounding = dict[Hashable, str](), before.message.matrix, before.rounding
    for client, found in checked.found.items():
        try:
            message = as_received(messages[client])
        except Exception as error:  # The file may have changed since the check.
            rejected[client] = reason_of(error)
            continue
        owner = np.full(len(message.rows.label), len(before.clients) + len(receipts), np.int32)
        receipts[client] = found.receipt
        if message.matrix is not None:
            # Add in float64, so that many clients' rounding stays small; and one by one, as all matrices at
            # once would be K·d² numbers.
            matrix = message.matrix + (np.zeros(np.shape(message.matrix)) if matrix is None else matrix)
            rounding += rounding_of(matrix)
        parts.append(replace(message, rows=replace(message.rows, client=owner), matrix=None))
    again = {c: _again(messages, c, before.receipts.get(c)) for c in messages if c in counted}
    again |= {c: _broken(reason) for c, reason in unreadable.items() if c in counted}
    solved = any(checked.found[client].kind.solved for client in receipts if checked.found[client].length)
    made = merged(parts)
    return Collected(
        replace(made, matrix=matrix, class_names=made.class_names if names is None else names),
        (*before.clients, *receipts),
        {client: reason for client, reason in before.rejected.items() if client not in receipts} | rejected,
        {**before.repeated, **{c: text for c, text in again.items() if text is not None}},
        before.solved if len(before.message.rows.count) else solved,
        {**before.receipts, **receipts},
        checked.bounds,
        checked.doubted,
        rounding,
    )


def _grown(before: Collected, names: tuple[str, ...] | None, num_classes: int) -> Collected:
    """Replace the class names in ``before`` by the longer list ``names``, and return the result.

    If either has no names, ``before`` is returned as it is.

    Raises:
        ValueError: if the names do not begin with the names in ``before``, or are missing for new classes; or
            if ``before`` has a label that is not below ``num_classes``.
    """
    check_known(before.message.rows, num_classes, "the messages before")
    own = before.message.class_names
    if own is None:
        return before
    if names is None and len(own) != num_classes:
        raise ValueError(
            f"class_names: expected names of all {num_classes} classes, as before names only "
            f"{len(own)}; got None"
        )
    if names is None:
        return before
    if (reason := renumbered(own, names)) is not None:
        raise ValueError(f"class_names: expected to begin with the class names of before; {reason}")
    return replace(before, message=replace(before.message, class_names=names))


def _dim_of(before: Collected, dim: int | None) -> int | None:
    """Return d: ``dim``, or else the d of ``before``; None if both are unknown."""
    if None not in (dim, before.dim) and dim != before.dim:
        raise ValueError(f"dim: expected {before.dim}, that of the messages before; got {dim}")
    return before.dim if dim is None else dim


def _again(messages: Mapping[Any, Message] | Inbox, client: Any, counted: str | None) -> str | None:
    """Describe a further message of a client that was counted before; the first message counts.

    ``counted`` is the receipt (a hash) of the first message. The text says whether the client sent the same
    message again, another one, or an unusable one. Return None if an `Inbox` still has the first one's file.
    """
    try:
        receipt = receipt_of(messages, client)
    except Exception as error:  # A second message may be anything.
        return _broken(reason_of(error))
    if receipt == counted and isinstance(messages, Inbox):
        return None
    if counted is not None and receipt.partition("-")[0] == counted.partition("-")[0]:
        return "sent the same message again; a client counts once, so the first counts"
    return (
        "sent another message; the first counts, as heads may have been solved from it; to use the other, "
        "forget the client and collect again"
    )


def _broken(reason: str) -> str:
    return f"sent what was set aside ({reason}); the first counts"


def _nothing(dim: int | None) -> Message:
    """Make a message without rows, whose means have d = ``dim`` columns."""
    none = np.zeros(0, np.int32)
    return Message(Rows(np.zeros((0, dim or 0), np.float32), none, none, none))


def merged(messages: Sequence[Message]) -> Message:
    """Concatenate all messages' rows into one message, without a matrix.

    Each metadata field comes from the first message that has it.
    """
    # Skip messages that add nothing: those of clients without examples, and an empty ``before``.
    known = [message for message in messages if message.rows.mean.shape[1]] or messages
    messages = [message for message in known if len(message.rows.count)] or known[:1]
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(message.rows for message in messages))
    rows = replace(rows, count=exact_counts([np.asarray(message.rows.count) for message in messages]))
    said: dict[str, Any] = {
        name: next((value for message in messages if (value := getattr(message, name)) is not None), None)
        for name in SAID
    }
    return Message(rows, **said)
