"""Define the messages of a secure sum, and the settings on which all parties agree."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covfree.core.checks import check_positive


class Refused(ValueError):
    """Raised if a client or the server rejects a message; the text says why."""


def check_enough(name: str, clients: int) -> None:
    """Raise ValueError unless there are at least 3 clients, so that a sum hides uploads from clients too."""
    if clients < 3:
        raise ValueError(
            f"{name}: expected at least 3, as each of two learns the other's upload from the sum, "
            f"got {clients}"
        )


@dataclass(frozen=True)
class Session:
    """The settings of one secure sum, on which all parties agree beforehand.

    Attributes:
        name: a text that no other sum has, such as the federation and the round. A client takes part in a
            session only once.
        identities: each client's Ed25519 public key, 32 bytes, by its number; at least three, as each of two
            would learn the other's upload from the sum.
        size: the number of words of an upload.
        neighbours: k, the number of other clients with which each client shares masks, an even number; None
            for all.
        threshold: t, how many of a client's neighbours must stay to the end, more than half of k. Each
            neighbour has a share of each of the client's two secrets (see `Sealed`), but reveals only one
            share, and any two sets of t neighbours overlap. So the server cannot rebuild both secrets unless
            2t − k neighbours collude with it.
        least: the least number of clients in a sum.
        seed: the seed with which neighbours are drawn; public, and not chosen by a single party.
    """

    name: str
    identities: dict[int, bytes]
    size: int
    threshold: int
    least: int
    neighbours: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        others, degree = len(self.identities) - 1, self.degree
        check_positive("size", self.size)
        check_enough("identities", others + 1)
        if not (degree == others or (2 <= degree < others and degree % 2 == 0)):
            raise ValueError(f"neighbours: expected an even number below {others}, or None, got {degree}")
        if not degree < 2 * self.threshold <= 2 * degree:
            raise ValueError(
                f"threshold: expected above half of {degree} neighbours and at most all, got {self.threshold}"
            )
        if not 2 <= self.least <= others + 1:
            raise ValueError(f"least: expected from 2 to {others + 1} clients, got {self.least}")

    @property
    def degree(self) -> int:
        """The number of a client's neighbours, the other clients with which it shares masks."""
        return len(self.identities) - 1 if self.neighbours is None else self.neighbours

    @property
    def quorum(self) -> int:
        """How many of the n clients must sign the same list of uploads: ⌈n·t/k⌉, more than half of them.

        Here k is each client's number of neighbours (`degree`), and t the ``threshold``, above k/2.

        Any two groups of this many clients have a member in common, and an honest client signs only one list.
        So the server cannot get two different lists signed, unless clients collude with it.
        """
        return -(-len(self.identities) * self.threshold // self.degree)

    def neighbours_of(self, client: int) -> list[int]:
        """Return the numbers of a client's k neighbours.

        Clients form a ring in random order; a client's neighbours are the k/2 next ones on either side, as in
        SecAgg+ (Bell et al. 2020).
        """
        numbers = sorted(self.identities)
        if self.degree == len(numbers) - 1:
            return [number for number in numbers if number != client]
        order = np.random.default_rng(self.seed).permutation(numbers)
        place, reach = int(np.flatnonzero(order == client)[0]), self.degree // 2
        steps = [step for step in range(-reach, reach + 1) if step]
        return sorted(int(order[(place + step) % len(numbers)]) for step in steps)

    def lacking(self, clients: Iterable[int], there: Collection[int]) -> list[int]:
        """Return the members of ``clients`` with fewer than ``threshold`` neighbours in ``there``."""
        present = set(there)
        return [n for n in clients if len(present.intersection(self.neighbours_of(n))) < self.threshold]

    def came_label(self, came: Iterable[int]) -> bytes:
        """Return the bytes that a client signs to confirm which uploads came."""
        numbers = ",".join(map(str, sorted(came)))
        return self.label("came", 0, 0) + b"\0" + hashlib.sha256(numbers.encode()).digest()

    def label(self, purpose: str, first: int, second: int) -> bytes:
        """Return bytes that name this session, a purpose such as "shares", and two clients in this order.

        Keys and signatures are made with these bytes, so that they are valid for nothing else.
        """
        return "\0".join(("covfree secure sum 2", self.name, purpose, str(first), str(second))).encode()


def session_named(
    name: str,
    identities: dict[int, bytes],
    size: int,
    *,
    least: int,
    threshold: int | None = None,
    neighbours: int | None = None,
) -> Session:
    """Make a sum's session; the default threshold is the smallest number above half of the neighbours.

    The seed follows from the name, so nobody but the author of the name can influence it.
    """
    if threshold is None:
        threshold = (len(identities) - 1 if neighbours is None else neighbours) // 2 + 1
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return Session(name, identities, size, threshold, least, neighbours, seed)


class Advert(NamedTuple):
    """A client's X25519 public keys for one session, and a commitment to the seed of its own mask.

    Attributes:
        sender: the client's number.
        sealing: public key; two clients' sealing keys give the key that encrypts shares between them.
        masking: public key; two clients' masking keys give the mask that cancels between their uploads.
        commitment: SHA-256 of the seed of the client's own mask.
        signature: signature of the other fields by the client's Ed25519 key.
    """

    sender: int
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes


class Sealed(NamedTuple):
    """Shares of one client's two secrets, the seed of its own mask and its masking key, for one neighbour.

    Attributes:
        sender: the number of the client whose secrets are shared.
        receiver: the number of the neighbour.
        box: both shares, encrypted so that only the neighbour can read them.
    """

    sender: int
    receiver: int
    box: bytes


class Masked(NamedTuple):
    """A client's masked upload.

    Attributes:
        sender: the client's number.
        words: the upload plus the client's masks, as integers modulo 2⁶⁴.
    """

    sender: int
    words: np.ndarray


class Agreed(NamedTuple):
    """Client ``sender``'s signature of the list of the clients whose uploads came."""

    sender: int
    signature: bytes


class Opened(NamedTuple):
    """The shares that a client reveals: for each neighbour one, of the neighbour's mask seed or masking key.

    Attributes:
        sender: the number of the client that reveals.
        seeds: shares of the mask seeds of neighbours whose uploads came, by the neighbour's number.
        keys: shares of the masking keys of neighbours whose uploads did not come, by number.
    """

    sender: int
    seeds: dict[int, bytes]
    keys: dict[int, bytes]
