"""The one door: which of many messages are sound and belong together, in memory or in files."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from covfree.core.types import Message, Rows
from covfree.protocol.bounds import Size, judge, sizes_of
from covfree.protocol.checks import CHECKS, Kind, Letter, Rules, common_dim, unlike
from covfree.protocol.inbox import Inbox
from covfree.protocol.messages import digest


class Found(NamedTuple):
    """What is kept of a sound message while the others are looked at.

    Attributes:
        receipt: its digest, see `receipt_of`.
        kind: which parts it has.
        size: what bounds are derived from.
        length: its rows.
        none: none of its rows, in their data types.
    """

    receipt: str
    kind: Kind
    size: Size
    length: int
    none: Rows


class Checked(NamedTuple):
    """The sound messages, the reason for each other, and how `bounds` judges them; see there."""

    found: dict[Any, Found]
    rejected: dict[Hashable, str]
    doubted: dict[Hashable, str]
    bounds: dict[str, str]


class Earlier(NamedTuple):
    """What was collected before, as far as new messages are held against it."""

    message: Message
    clients: tuple[Hashable, ...]
    solved: bool
    receipts: Mapping[Hashable, str]


def check_messages(
    messages: Mapping[Any, Message] | Inbox,
    clients: Iterable[Any],
    rules: Rules,
    before: Earlier | None = None,
) -> Checked:
    """Check messages one after the other, each read once and let go of, then against each other.

    Whatever goes wrong with one is the reason why it is set aside: what another may have sent has no end.

    Args:
        messages: by client; an `Inbox` reads them.
        clients: whose messages to look at.
        rules: what they are held against.
        before: those of earlier rounds.

    Raises:
        ValueError: if sound messages differ in d, and nothing says which is right.
    """
    found: dict[Any, Found] = {}
    rejected: dict[Hashable, str] = {}
    owners = {} if before is None else {text: c for c, text in before.receipts.items() if "-" in text}
    for client in clients:
        try:
            message = messages[client]
            letter = Letter(message, rules, rules.num_examples.get(client))
            for check in CHECKS:
                check(letter)
            receipt = receipt_of(messages, client)
            if receipt in owners:
                raise ValueError(
                    f"message: expected one of its own, got a copy of what {owners[receipt]!r} sent"
                )
            received = letter.received
            (size,) = sizes_of(received)
            none = jax.tree.map(lambda leaf: leaf[:0].copy(), received.rows)
            found[client] = Found(
                receipt, Kind.of(message, message.solved), size, len(received.rows.label), none
            )
        except Exception as error:
            rejected[client] = reason_of(error)
    if rules.dim is None:
        common_dim(each.none.mean.shape[1] for each in found.values())
    # A message without rows may hold any parts, as it adds nothing.
    kinds = {client: each.kind for client, each in found.items() if each.length}
    earlier = None
    if before is not None and len(before.message.rows.label):
        earlier = Kind.of(before.message, before.solved)
    others = unlike(kinds, earlier)
    sizes = {client: found[client].size for client in kinds if client not in others}
    judged = judge(sizes, _sizes(before), rules)
    others |= judged.rejected
    sound = {client: each for client, each in found.items() if client not in others}
    return Checked(sound, rejected | others, judged.doubted, judged.bounds)


def _sizes(before: Earlier | None) -> dict[Hashable, Size]:
    if before is None or not before.clients:
        return {}
    owner = np.asarray(before.message.rows.client)
    return dict(zip(before.clients, sizes_of(before.message, owner, len(before.clients)), strict=True))


def receipt_of(messages: Mapping[Any, Message] | Inbox, client: Any) -> str:
    """The digest of a client's message; of one in a file also what was drawn for that file."""
    return messages.receipts[client] if isinstance(messages, Inbox) else digest(messages[client])


def reason_of(error: Exception) -> str:
    """Why a message was set aside."""
    text = str(error)
    return (
        text
        if text and isinstance(error, (TypeError, ValueError, OSError))
        else f"{type(error).__name__}: {text}"
    )
