"""Run the steps of `covfree.secure` between machines, which exchange them as messages of arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from covfree import secure
from covfree.core.checks import check_positive
from covfree.deployment.steps import Arrays
from covfree.secure import STEPS, Advert, Agreed, Opened, Sealed, Session
from covfree.secure.shamir import SHARE
from covfree.secure.words import Words

# The tables in messages: for each, its columns of integers, and the lengths in bytes of the other parts of a
# row. A box has two shares and the cipher's tag.
_TABLES = {
    "advert": (("sender",), (32, 32, 32, 64)),
    "box": (("sender", "receiver"), (2 * SHARE + 16,)),
    "agreed": (("sender",), (64,)),
    "seed": (("seed_of",), (SHARE,)),
    "key": (("key_of",), (SHARE,)),
}


def answer(
    step: str, client: secure.Client, number: int, asked: Arrays, words: Words | None
) -> dict[str, np.ndarray]:
    """Return the arrays with which a site answers the broadcast of one step.

    Args:
        step: the step's name, one of `covfree.secure.STEPS`.
        client: the site's side of the secure sum.
        number: the site's number.
        asked: the arrays of the broadcast.
        words: the site's upload as words, in the step "mask"; else None.

    Raises:
        Refused: (of `covfree.secure`) if the site must not answer, or the broadcast has wrong arrays.
    """
    if step == "advertise":
        return _arrays("advert", [client.advertise()])
    if step == "share":
        return _arrays("box", client.share(Advert(*row) for row in _rows("advert", asked)))
    if step == "mask":
        boxes = (Sealed(*row) for row in _rows("box", asked))
        own = [box for box in boxes if box.receiver == number]
        assert words is not None
        return {"words": client.mask(own, words).words}
    if step == "agree":
        return _arrays("agreed", [client.agree(_numbers(asked, "came"))])
    opened = client.unmask(Agreed(*row) for row in _rows("agreed", asked))
    return _arrays("seed", opened.seeds.items()) | _arrays("key", opened.keys.items())


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
            return _arrays("advert", self._server.adverts)
        if step == "mask":
            own = self._server
            return _arrays("box", [box for site in sorted(own.shared) for box in own.shares_for(site)])
        if step == "agree":
            return {"came": np.array(self._server.came(), np.int32)}
        return _arrays("agreed", self._server.agreed) if step == "unmask" else {}

    def take(self, step: str, site: int, arrays: Arrays) -> None:
        """Check and store a site's answer to a step.

        Raises:
            Refused: (of `covfree.secure`) if ``arrays`` are no answer to this step; nothing changes then.
        """
        if step == "advertise":
            self._server.take_advert(Advert(*_row_of("advert", arrays, site)))
        elif step == "share":
            self._server.take_shares(site, [Sealed(*row) for row in _rows("box", arrays)])
        elif step == "mask":
            self._server.take_upload(secure.Masked(site, arrays.get("words", np.zeros(0))))
        elif step == "agree":
            self._server.take_agreed(Agreed(*_row_of("agreed", arrays, site)))
        else:
            self._server.take_opened(Opened(site, dict(_rows("seed", arrays)), dict(_rows("key", arrays))))

    def too_few(self, step: str, sites: Collection[int]) -> str:
        """Return a text that says which answers are needed; "" if the answers of ``sites`` are enough."""
        own, needed = self.session, self.session.least
        # From the step "mask" on a quorum must answer, as it must sign the list of uploads. If each site
        # shares masks with all others, every step needs a quorum. It has t + 1 sites: one, and t =
        # ``threshold`` of its neighbours.
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


def _arrays(name: str, rows: Collection[tuple[Any, ...]]) -> dict[str, np.ndarray]:
    """Make the arrays of a table of `_TABLES`: one of bytes with the table's name, and one for each column.

    A row has the columns' integers, then its parts of bytes.
    """
    columns, widths = _TABLES[name]
    content = b"".join(part for row in rows for part in row[len(columns) :])
    numbers = {each: np.array([row[i] for row in rows], np.int32) for i, each in enumerate(columns)}
    return {name: np.frombuffer(content, np.uint8).reshape(-1, sum(widths))} | numbers


def _rows(name: str, arrays: Arrays) -> list[tuple[Any, ...]]:
    """Read the rows of a table that `_arrays` made; ``arrays`` are those of a message, by name.

    Raises:
        Refused: if an array is missing, or has another shape or data type.
    """
    columns, widths = _TABLES[name]
    rows, width = arrays.get(name), sum(widths)
    if rows is None or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        got = None if rows is None else f"{rows.dtype}{list(rows.shape)}"
        raise secure.Refused(f"{name}: expected uint8 [rows, {width}], got {got}")
    numbers = [_numbers(arrays, each) for each in columns]
    if any(len(column) != len(rows) for column in numbers):
        got = [len(column) for column in numbers]
        raise secure.Refused(
            f"{name}: expected {len(rows)} numbers, as rows, in {', '.join(columns)}, got {got}"
        )
    cuts = [slice(*each) for each in pairwise((0, *accumulate(widths)))]
    parts = ([row[cut].tobytes() for cut in cuts] for row in rows)
    return [(*own, *row) for *own, row in zip(*numbers, parts, strict=True)]


def _row_of(name: str, arrays: Arrays, site: int) -> tuple[Any, ...]:
    """Return the row of a table; raise Refused unless it is the only one, and its sender is ``site``."""
    rows = _rows(name, arrays)
    if [row[0] for row in rows] != [site]:
        got = [row[0] for row in rows]
        raise secure.Refused(f"{name}: expected exactly one, of client {site}, got those of clients {got}")
    return rows[0]


def _numbers(arrays: Arrays, name: str) -> list[int]:
    found = arrays.get(name)
    if found is None or found.dtype != np.int32 or found.ndim != 1:
        got = None if found is None else f"{found.dtype}{list(found.shape)}"
        raise secure.Refused(f"{name}: expected int32 [rows], got {got}")
    return found.tolist()
