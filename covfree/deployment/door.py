"""Check that a message belongs to the federation, and on the server that class statistics are credible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from covfree.core.types import Message
from covfree.deployment.description import Description
from covfree.deployment.differences import differences
from covfree.deployment.envelope import SERVER, Refused, seal
from covfree.protocol.checks import Rules
from covfree.protocol.door import check_messages
from covfree.rounds.algorithm import Algorithm


class TooFew(RuntimeError):
    """Raised by a server if a round has too few valid answers, and by `join` if no broadcast came in time.

    After the server's error the round is not lost: call `Server.open` again, and it takes more answers.
    """


class Stopped(RuntimeError):
    """Raised if the server stopped before there was a result; the text is the reason.

    The server may be started again.
    """


class Left(Refused):
    """The error of a site that leaves a round's secure sum; its text is shown only at this site.

    Attributes:
        turn: the turn (one step of a round) that the site does not answer.
        answer: a message to the server that says so, without a number or a reason. If it is not sent, the
            server waits for the site until the deadline.
    """

    def __init__(self, text: str, turn: int, answer: bytes) -> None:
        super().__init__(text, SERVER)
        self.turn, self.answer = turn, answer


class Receipt(NamedTuple):
    """The server's verdict on a message: whether it counts, and if not, why.

    Attributes:
        site: the site that the message names as its sender; None if it names none. If the message was set
            aside, the name may be false.
        reason: why the message was set aside; None if it counts.
    """

    site: str | None
    reason: str | None


def check_federation(about: Mapping[str, Any], theirs: Any, description: Description) -> None:
    """Raise Refused if a message is of another federation, or its sender uses other settings than agreed.

    ``about`` is the message's metadata, ``theirs`` the sender's settings; ``description.agreed`` has ours.
    """
    texts = differences(description.agreed, theirs if isinstance(theirs, dict) else {})
    if (found := about.get("federation")) != description.identity:
        texts = [f"federation: expected {description.identity[:12]}…, got {str(found)[:12]}…", *texts]
    if texts:
        raise Refused("; ".join(texts), about["sender"])


def stopping(description: Description, key: Any, reason: str) -> bytes:
    """Make the signed message by which the server says why the federation stops before its last round.

    Args:
        description: the federation.
        key: the server's private key.
        reason: the text that is shown to the running server and to all sites.
    """
    about = {"kind": "stop", "sender": SERVER, "federation": description.identity, "reason": reason}
    return seal(key, about, {})


class _Messages(dict[str, Message]):
    """Sites' messages by name; each is read on access, as all may not fit in memory."""

    def __init__(self, read: Callable[[str], Message]) -> None:
        self._read = read

    def __missing__(self, site: str) -> Message:
        return self._read(site)


def judge(
    sites: list[str], read: Callable[[str], Message], algorithm: Algorithm, description: Description
) -> tuple[dict[str, str], str | None]:
    """Check the class statistics that ``sites`` uploaded; return which sites to set aside, and why.

    The checks are those of `covfree.collect`. ``read`` returns a site's statistics as a message.

    Returns:
        For each site to set aside, the reason. And a text that says how many sites were judged by their class
        means, and how many failed; None if the description does not ask to judge sites.
    """
    method = algorithm.params.method
    # If clients send ridge solutions, as AFL's do, their matrices contain γI: bound no norms then, not even
    # by the description's ``max_norm``.
    kind = Rules(2, method=method).kind if method.one_shot else None
    norm: Any = "derived" if description.max_norm is None else description.max_norm
    rules = Rules(
        len(description.class_names),
        max_count=description.max_examples,
        class_names=description.class_names,
        max_norm=None if kind is not None and kind.solved else norm,
        judge_sites=description.judge_sites,
    )
    found = check_messages(_Messages(read), sites, rules)
    return {str(site): reason for site, reason in found.rejected.items()}, found.bounds.get("sites")
