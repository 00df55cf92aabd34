"""What passes between clients and the server of a secure sum, and what is the same for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covfree.core.checks import check_positive


class Refused(ValueError):
    """A message that a client or the server does not act on; the text says why."""


@dataclass(frozen=True)
class Session:
    """What all parties of one secure sum agree on beforehand.

    Attributes:
        name: tells this sum from every other: the federation, the round and the step. A client takes part in
            a session once.
        identities: each client's Ed25519 public key, 32 bytes, by its number.
        size: the number of words of an upload.
        neighbours: k, with how many others each client shares masks, even; None for all.
        threshold: t, how many neighbours must stay to the end, more than half of k. As a client gives away
            only one of its two shares of a neighbour, and two sets of t neighbours overlap, the server cannot
            have both of a client's secrets unless 2t − k neighbours work with it.
        least: the fewest clients whose sum may be seen.
        seed: of the graph of neighbours; public, and drawn by nobody alone.
    """

    name: str
    identities: dict[int, bytes]
    size: int
    threshold: int
    least: int
    neighbours: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        others = len(self.identities) - 1
        degree = others if self.neighbours is None else self.neighbours
        check_positive("size", self.size)
        if not (degree == others or (2 <= degree < others and degree % 2 == 0)) or others < 1:
            raise ValueError(f"neighbours: expected an even number below {others}, or None, got {degree}")
        if not degree < 2 * self.threshold <= 2 * degree:
            raise ValueError(
                f"threshold: expected above half of {degree} neighbours and at most all, got {self.threshold}"
            )
        if not 2 <= self.least <= others + 1:
            raise ValueError(f"least: expected from 2 to {others + 1} clients, got {self.least}")

    @property
    def quorum(self) -> int:
        """How many clients must agree on whose uploads came: ⌈n·t / k⌉ of n, so above half.

        Two sets of so many overlap, and a client agrees once: a server cannot have two answers.
        """
        others = len(self.identities) - 1
        degree = others if self.neighbours is None else self.neighbours
        return -(-(others + 1) * self.threshold // degree)

    def neighbours_of(self, client: int) -> list[int]:
        """The numbers of a client's neighbours, by a graph in which all have k: a ring in a random order.

        Each is tied to the k/2 next on either side, as in SecAgg+ (Bell et al. 2020).
        """
        numbers = sorted(self.identities)
        if self.neighbours is None or self.neighbours == len(numbers) - 1:
            return [number for number in numbers if number != client]
        order = np.random.default_rng(self.seed).permutation(numbers)
        place, reach = int(np.flatnonzero(order == client)[0]), self.neighbours // 2
        steps = [step for step in range(-reach, reach + 1) if step]
        return sorted(int(order[(place + step) % len(numbers)]) for step in steps)

    def lacking(self, clients: Iterable[int], there: Collection[int]) -> list[int]:
        """Return those of ``clients`` that have fewer than ``threshold`` neighbours in ``there``."""
        present = set(there)
        return [n for n in clients if len(present.intersection(self.neighbours_of(n))) < self.threshold]

    def came_label(self, came: Iterable[int]) -> bytes:
        """Bytes that say whose uploads came, for a client to sign."""
        numbers = ",".join(map(str, sorted(came)))
        return self.label("came", 0, 0) + b"\0" + hashlib.sha256(numbers.encode()).digest()

    def label(self, purpose: str, first: int, second: int) -> bytes:
        """Bytes that bind a key to this session, its purpose and a pair of clients, whose order matters."""
        return "\0".join(("covfree secure sum 2", self.name, purpose, str(first), str(second))).encode()


class Advert(NamedTuple):
    """A client's keys for one session: of X25519, to seal shares and to make masks, and a commitment.

    Attributes:
        sender: the client's number.
        sealing: public key for shares.
        masking: public key for pairs' masks.
        commitment: SHA-256 of the client's own mask's seed.
        signature: by the client's identity.
    """

    sender: int
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes


class Sealed(NamedTuple):
    """Shares of a client's two secrets for one neighbour, which no one else can read."""

    sender: int
    receiver: int
    box: bytes


class Masked(NamedTuple):
    """A client's upload under its masks."""

    sender: int
    words: np.ndarray


class Agreed(NamedTuple):
    """A client's signature of the numbers of those whose uploads came."""

    sender: int
    signature: bytes


class Opened(NamedTuple):
    """A client's shares of its neighbours' secrets, one of each neighbour.

    Attributes:
        sender: the client's number.
        seeds: shares of the own masks' seeds of those whose uploads came, by number.
        keys: shares of the masking keys of those whose uploads did not come, by number.
    """

    sender: int
    seeds: dict[int, bytes]
    keys: dict[int, bytes]
