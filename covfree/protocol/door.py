"""Check many messages, in memory or in files; select those that are valid and of one `Kind`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from covfree.core.types import Message, Rows, is_traced
from covfree.protocol.bounds import Limits, Size, sizes_of
from covfree.protocol.checks import Rules, as_received, check_message
from covfree.protocol.inbox import Inbox
from covfree.protocol.kinds import Kind, common_dim, unlike
from covfree.protocol.messages import digest
from covfree.protocol.site_report import SiteReport, judge_means
from covfree.protocol.sites_model import Means, class_means_of


class FoundMessage(NamedTuple):
    """A summary of a valid message, without its rows, kept in memory while other messages are checked.

    Attributes:
        receipt: the digest (hash) of the message, see `receipt_of`.
        kind: which parts and metadata the message has.
        size: counts and sums of squares of the message, from which bounds are derived.
        length: the number of rows.
        none: `Rows` of length 0 with the d and the data types of the message's rows.
    """

    receipt: str
    kind: Kind
    size: Size
    length: int
    none: Rows


class Checked(NamedTuple):
    """The result of `check_messages`.

    Attributes:
        found: for each client with a valid message, what is known about the message.
        rejected: for each client whose message is rejected, the reason.
        doubted: for each client of earlier rounds whose message would now be rejected, the reason.
        bounds: the bounds ``max_count`` and ``max_norm`` in words, see `Collected`.
    """

    found: dict[Any, FoundMessage]
    rejected: dict[Hashable, str]
    doubted: dict[Hashable, str]
    bounds: dict[str, str]


@dataclass(frozen=True)
class Collected:
    """What a server has collected so far: the sound messages merged into one, and why others were set aside.

    `save_collected` and `load_collected` write and read it as a file, so that a server can be restarted.

    Attributes:
        message: the sound messages merged into one. Rows are stacked, and ``message.rows.client[r]`` indexes
            the sender of row r in ``clients``. Matrices are added up in float64. Without a sound message, it
            has no rows, and no columns unless d is known.
        clients: the senders, in the order in which their messages came.
        rejected: for each client whose message was set aside, the reason.
        repeated: for each client that sent again after it was counted, what it sent, and why its first
            message counts.
        solved: whether the clients sent ridge solutions, as AFL's clients do.
        receipts: the digest (hash) of each counted client's message, which shows if a later one is the same.
        bounds: the ``max_count`` and ``max_norm`` of the last round in words, and where they come from. With
            ``judge_sites``, ``"sites"`` says how many sites were judged, and how many of them fail.
        doubted: for each client that was counted in an earlier round but now exceeds the bounds, or fails
            `diagnose_sites` on all messages together, the reason. To leave such a client out, `forget` it.
        rounding: a bound on the rounding error of ``message.matrix``, the sum of the clients' matrices, in
            Frobenius norm: each addition or subtraction adds 2⁻⁵² times the norm of its result. 0 if clients
            send only rows, which are stored and removed exactly. `certify` turns it into a bound on heads.
    """

    message: Message
    clients: tuple[Hashable, ...]
    rejected: Mapping[Hashable, str] = field(default_factory=dict)
    repeated: Mapping[Hashable, str] = field(default_factory=dict)
    solved: bool = False
    receipts: Mapping[Hashable, str] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    doubted: Mapping[Hashable, str] = field(default_factory=dict)
    rounding: float = 0.0

    @property
    def dim(self) -> int | None:
        """d, the number of features; None while no message has rows and d was not given."""
        return self.message.rows.mean.shape[1] or None


def check_messages(
    messages: Mapping[Any, Message] | Inbox,
    clients: Iterable[Any],
    rules: Rules,
    before: Collected | None = None,
) -> Checked:
    """Return which of the clients' messages are valid, and why the others are not.

    Messages are read and checked one by one, then compared with each other and with ``before``, the result of
    earlier rounds. A message is rejected if a check raises any exception, as strangers may send anything.

    Raises:
        TypeError: if arrays are traced.
        ValueError: if messages differ in d, or ``before`` has another kind of messages than ``rules``.
    """
    found: dict[Any, FoundMessage] = {}
    rejected: dict[Hashable, str] = {}
    owners = {} if before is None else {text: c for c, text in before.receipts.items() if "-" in text}
    for client in clients:
        message = None
        try:
            message = messages[client]
            received = check_message(message, rules, rules.num_examples.get(client))
            receipt = receipt_of(messages, client)
            if receipt in owners:
                raise ValueError(
                    f"message: expected each client's own, got a copy of what {owners[receipt]!r} sent"
                )
            (size,) = sizes_of(received)
            none = jax.tree.map(lambda leaf: leaf[:0].copy(), received.rows)
            found[client] = FoundMessage(receipt, Kind.of(message), size, len(received.rows.label), none)
        except Exception as error:
            if isinstance(message, Message) and is_traced(*jax.tree.leaves(message)):
                raise TypeError(
                    "messages: expected arrays with values, got traced ones, which cannot be checked; call "
                    "collect outside jit, vmap and grad"
                ) from error
            rejected[client] = reason_of(error)
    if rules.dim is None:
        common_dim(each.none.mean.shape[1] for each in found.values())
    # A message without rows adds nothing, so its kind does not matter.
    kinds = {client: each.kind for client, each in found.items() if each.length}
    if rules.class_names is not None:
        # The names were compared with ``class_names`` already; a message may name only the first few classes.
        kinds = {client: kind._replace(class_names=None) for client, kind in kinds.items()}
    earlier = None
    if before is not None and len(before.message.rows.label):
        earlier = Kind.of(before.message)._replace(solved=before.solved)
        if (reason := rules.difference(earlier)) is not None:
            raise ValueError(
                f"before: expected the result of earlier rounds with the same method and classes; {reason}"
            )
    others = unlike(kinds, earlier)
    sizes, old = {client: found[client].size for client in kinds if client not in others}, _sizes(before)
    limits = Limits([*old.values(), *sizes.values()], rules)
    others |= limits.exceeded(sizes)
    doubted, bounds = limits.exceeded(old), limits.report()
    sound = {client: each for client, each in found.items() if client not in others}
    if rules.judge_sites:
        report = _judged(messages, sound, before, rules)
        bounds["sites"] = report.summary
        others |= {client: reason for client, reason in report.failed.items() if client in sound}
        doubted = {client: text for client, text in report.failed.items() if client not in sound} | doubted
        sound = {client: each for client, each in sound.items() if client not in others}
    return Checked(sound, rejected | others, doubted, bounds)


def _judged(
    messages: Mapping[Any, Message] | Inbox, found: Iterable[Any], before: Collected | None, rules: Rules
) -> SiteReport:
    """Compare clients' class means with each other; return the report by `judge_means`: whom to distrust.

    Args:
        messages: the messages, by client.
        found: the clients whose messages have passed all earlier checks.
        before: the result of earlier rounds, whose clients are judged too; None for no earlier round.
        rules: has the names and the number of the classes.
    """
    clients: list[Hashable] = [] if before is None else [*before.clients]
    parts = [] if before is None else [class_means_of(before.message.rows, rules.num_classes)]
    for client in found:
        try:
            rows = as_received(messages[client]).rows
        except Exception:  # The file may have changed since the check; the next reader reports it.
            continue
        means = class_means_of(rows, rules.num_classes)
        parts.append(means._replace(site=np.full_like(means.site, len(clients))))
        clients.append(client)
    if not (parts := [part for part in parts if len(part.label)]):
        return SiteReport({}, False)
    means = Means(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return judge_means(means, clients, rules.num_classes, rules.class_names)


def _sizes(before: Collected | None) -> dict[Hashable, Size]:
    if before is None or not before.clients:
        return {}
    owner = np.asarray(before.message.rows.client)
    return dict(zip(before.clients, sizes_of(before.message, owner, len(before.clients)), strict=True))


def receipt_of(messages: Mapping[Any, Message] | Inbox, client: Any) -> str:
    """Return the digest (hash) of a client's message; for a file, followed by the random number in it."""
    return messages.receipts[client] if isinstance(messages, Inbox) else digest(messages[client])


def reason_of(error: Exception) -> str:
    """Return the text of an error, as the reason why a message was rejected."""
    text = str(error)
    plain = text and isinstance(error, (TypeError, ValueError, OSError))
    return text if plain else f"{type(error).__name__}: {text}"
