"""The one door: which of many messages are sound and belong together, in memory or in files."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Collected:
    """What a server has collected so far: the sound messages in one, and which were set aside.

    `save_collected` and `load_collected` keep it in a file, so that a server may start again.

    Attributes:
        message: the sound messages in one. Rows stand one below the other, and ``message.rows.client[r]``
            indexes the sender of row r in ``clients``. Matrices are added up, in float64. Without any sound
            message it has no rows, and d is 0 if nothing says what it is.
        clients: the senders, in the order in which their messages came.
        rejected: the reason for each client whose message was set aside.
        repeated: clients that sent again after they had been counted: what they sent, and why the first
            message counts.
        solved: whether the clients sent solutions, as AFL's do.
        receipts: of each client that counts the digest of its message, so that it is known again.
        bounds: which ``max_count`` and ``max_norm`` held in the last round, and where they come from.
        doubted: clients that counted when they were too few to derive bounds from, and are beyond them now.
            To leave one out, `forget` it.
    """

    message: Message
    clients: tuple[Hashable, ...]
    rejected: Mapping[Hashable, str] = field(default_factory=dict)
    repeated: Mapping[Hashable, str] = field(default_factory=dict)
    solved: bool = False
    receipts: Mapping[Hashable, str] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    doubted: Mapping[Hashable, str] = field(default_factory=dict)

    @property
    def dim(self) -> int | None:
        """d; None if nothing was collected that says what it is."""
        return self.message.rows.mean.shape[1] or None


def check_messages(
    messages: Mapping[Any, Message] | Inbox,
    clients: Iterable[Any],
    rules: Rules,
    before: Collected | None = None,
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


def _sizes(before: Collected | None) -> dict[Hashable, Size]:
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
