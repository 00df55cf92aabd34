"""Run the steps of `covfree.secure` between machines, which exchange them as messages of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from covfree import secure
from covfree.core.checks import check_positive
from covfree.secure import STEPS, Advert, Agreed, Opened, Sealed, Session
from covfree.secure.shamir import SHARE
from covfree.secure.words import Words

Arrays = Mapping[str, np.ndarray]
Part = TypeVar("Part", Advert, Agreed)
# Offsets in an advert's bytes where its sealing key, masking key, commitment and signature end; the length of
# a box (two shares and the cipher's tag), and that of a signature.
_ADVERT, _BOX, _SIGNATURE = (32, 64, 96, 160), 2 * SHARE + 16, 64


def answer(
    step: str, client: secure.Client, number: int, asked: Arrays, words: Callable[[], Words]
) -> dict[str, np.ndarray]:
    """Return the arrays with which a site answers the broadcast of one step.

    Args:
        step: the step's name, one of `covfree.secure.STEPS`.
        client: the site's side of the secure sum.
        number: the site's number.
        asked: the arrays of the broadcast.
        words: function that returns the site's upload as words; called in the step "mask" only.

    Raises:
        Refused: (of `covfree.secure`) if the site must not answer, or the broadcast has wrong arrays.
    """
    if step == "advertise":
        return _adverts([client.advertise()])
    if step == "share":
        return _boxes(client.share(_adverts_of(asked)))
    if step == "mask":
        own = [box for box in _boxes_of(asked) if box.receiver == number]
        return {"words": client.mask(own, words()).words}
    if step == "agree":
        return _agreed([client.agree(_numbers(asked, "came"))])
    opened = client.unmask(_agreed_of(asked))
    return _opened(opened.seeds, "seed") | _opened(opened.keys, "key")


@dataclass(frozen=True)
class SecureSums:
    """The settings of secure sums. `Description.fewest` is the least number of uploads in a sum.

    Attributes:
        bound: the largest absolute value of a number in an upload; see `covfree.secure.FixedPoint`. None only
            in a private federation, whose uploads are integers.
        neighbours: the number of other sites with which each site shares masks, an even number; None for all.
        threshold: how many of a site's neighbours must stay to the end; None for the smallest number above
            half.
        holders: for a method: a class is summed only if at least this many sites, 3 or more, have it, see
            `covfree.secure.common_classes`. None sums every class.

    Raises:
        TypeError: if ``neighbours``, ``threshold`` or ``holders`` is no integer.
        ValueError: if ``bound`` is no number, or an integer is below 1.
    """

    bound: float | int | None = None
    neighbours: int | None = None
    threshold: int | None = None
    holders: int | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and type(self.bound) not in (int, float):
            raise ValueError(f"bound: expected a number, got {self.bound!r}")
        for name in ("neighbours", "threshold", "holders"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))


class Sums:
    """The server in one round's secure sum: makes what sites receive in each step, and takes their answers.

    What it makes and takes are dicts of NumPy arrays; the steps are `covfree.secure.STEPS`.

    Attributes:
        session: the round's session.
    """

    def __init__(self, own: Session, names: Sequence[str]) -> None:
        """Begin a secure sum in the session ``own``; ``names`` are the sites' names, ordered by number."""
        self.session, self._names, self._server = own, names, secure.Server(own)

    def asks(self, step: str) -> dict[str, np.ndarray]:
        """Return what the server sends to the sites in a step of a secure sum, as a dict of named arrays.

        In ``"share"`` these are the sites' public keys, for example. The dict is empty in the first step.
        """
        if step == "share":
            return _adverts(self._server.adverts)
        if step == "mask":
            own = self._server
            return _boxes([box for site in sorted(own.shared) for box in own.shares_for(site)])
        if step == "agree":
            return {"came": np.array(self._server.came(), np.int32)}
        return _agreed(self._server.agreed) if step == "unmask" else {}

    def take(self, step: str, site: int, arrays: Arrays) -> None:
        """Check and store a site's answer to a step.

        Raises:
            Refused: (of `covfree.secure`) if ``arrays`` are no answer to this step; nothing changes then.
        """
        if step == "advertise":
            self._server.take_advert(_one("advert", _adverts_of(arrays), site))
        elif step == "share":
            self._server.take_shares(site, _boxes_of(arrays))
        elif step == "mask":
            self._server.take_upload(secure.Masked(site, arrays.get("words", np.zeros(0))))
        elif step == "agree":
            self._server.take_agreed(_one("agreed", _agreed_of(arrays), site))
        else:
            self._server.take_opened(Opened(site, _shares_of(arrays, "seed"), _shares_of(arrays, "key")))

    def too_few(self, step: str, sites: Collection[int]) -> str:
        """Return a text that says which answers are needed; "" if the answers of ``sites`` are enough."""
        own, needed = self.session, self.session.least
        # From the step "mask" on a quorum must answer, as it must sign the list of uploads. If each site
        # shares masks with all others, every step needs it: it is t + 1, a site and t = ``threshold`` others.
        if step in STEPS[2:] or own.degree == len(own.identities) - 1:
            needed = max(needed, own.quorum)
        if len(sites) < needed:
            return f"answers of {needed} sites at least, got {len(sites)}"
        masked = list(sites)
        if step in STEPS[2:]:
            came = sites if step == "mask" else self._server.came()
            # If a site left after sharing masks, its neighbours' uploads contain these masks. To remove them,
            # the server needs answers of the site's neighbours too.
            left = self._server.shared.difference(came)
            tied = [site for site in left if set(own.neighbours_of(site)).intersection(came)]
            masked = [*came, *tied]
        short = [self._names[site] for site in own.lacking(masked, sites)]
        neighbours = f"{own.threshold} of the {own.degree} sites that share masks with"
        return f"answers of {neighbours} each of {', '.join(short)}" if short else ""

    def total(self) -> Words:
        """Return the sum, as words, of all uploads that came; see `covfree.secure.Server.total`."""
        return self._server.total()


def _one(name: str, parts: Sequence[Part], site: int) -> Part:
    """Return the message in ``parts``; raise Refused unless it is the only one and from client ``site``."""
    if [each.sender for each in parts] != [site]:
        got = [each.sender for each in parts]
        raise secure.Refused(f"{name}: expected exactly one, of client {site}, got those of clients {got}")
    return parts[0]


def _table(arrays: Arrays, name: str, width: int, *numbers: str) -> list[tuple[Any, ...]]:
    """Read a table from a message's arrays: for each row its integers and its bytes.

    Args:
        arrays: the message's arrays, by name.
        name: the array of bytes, uint8 [rows, ``width``].
        width: the number of bytes of a row.
        numbers: the names of arrays of integers, each int32 [rows], e.g. the numbers of the senders.

    Raises:
        Refused: if an array is missing, or has another shape or data type.
    """
    rows = arrays.get(name)
    if rows is None or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        got = None if rows is None else f"{rows.dtype}{list(rows.shape)}"
        raise secure.Refused(f"{name}: expected uint8 [rows, {width}], got {got}")
    columns = [_numbers(arrays, each) for each in numbers]
    if any(len(column) != len(rows) for column in columns):
        got = [len(column) for column in columns]
        raise secure.Refused(
            f"{name}: expected {len(rows)} numbers, as rows, in {', '.join(numbers)}, got {got}"
        )
    return list(zip(*columns, (row.tobytes() for row in rows), strict=True))


def _numbers(arrays: Arrays, name: str) -> list[int]:
    found = arrays.get(name)
    if found is None or found.dtype != np.int32 or found.ndim != 1:
        got = None if found is None else f"{found.dtype}{list(found.shape)}"
        raise secure.Refused(f"{name}: expected int32 [rows], got {got}")
    return found.tolist()


def _arrays(name: str, width: int, rows: Iterable[bytes], **numbers: Iterable[int]) -> dict[str, np.ndarray]:
    """Make the arrays of a table that `_table` reads."""
    body = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width)
    return {name: body} | {each: np.array([*own], np.int32) for each, own in numbers.items()}


def _adverts(adverts: Collection[Advert]) -> dict[str, np.ndarray]:
    rows = (b"".join(own[1:]) for own in adverts)
    return _arrays("advert", _ADVERT[-1], rows, sender=(own.sender for own in adverts))


def _adverts_of(arrays: Arrays) -> list[Advert]:
    cuts = [slice(*each) for each in pairwise((0, *_ADVERT))]
    rows = _table(arrays, "advert", _ADVERT[-1], "sender")
    return [Advert(sender, *(row[cut] for cut in cuts)) for sender, row in rows]


def _boxes(boxes: list[Sealed]) -> dict[str, np.ndarray]:
    senders, receivers, rows = zip(*boxes, strict=True) if boxes else ((), (), ())
    return _arrays("box", _BOX, rows, sender=senders, receiver=receivers)


def _boxes_of(arrays: Arrays) -> list[Sealed]:
    return [Sealed(*row) for row in _table(arrays, "box", _BOX, "sender", "receiver")]


def _agreed(agreed: Collection[Agreed]) -> dict[str, np.ndarray]:
    rows = (own.signature for own in agreed)
    return _arrays("agreed", _SIGNATURE, rows, sender=(own.sender for own in agreed))


def _agreed_of(arrays: Arrays) -> list[Agreed]:
    return [Agreed(*row) for row in _table(arrays, "agreed", _SIGNATURE, "sender")]


def _opened(shares: Mapping[int, bytes], name: str) -> dict[str, np.ndarray]:
    return _arrays(name, SHARE, shares.values(), **{f"{name}_of": shares})


def _shares_of(arrays: Arrays, name: str) -> dict[int, bytes]:
    return {owner: row for owner, row in _table(arrays, name, SHARE, f"{name}_of")}
