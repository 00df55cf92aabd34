"""Run a client of a secure sum: mask its upload, then reveal a share of one secret of each neighbour."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from covfree.core.optional import optional
from covfree.secure import shamir
from covfree.secure.messages import Advert, Agreed, Masked, Opened, Refused, Sealed, Session
from covfree.secure.words import Words, mask

# The steps of a secure sum. A client that leaves before a step sends nothing in it or later.
STEPS = ("advertise", "share", "mask", "agree", "unmask")
_PRIMITIVES = "cryptography.hazmat.primitives"

F = TypeVar("F", bound=Callable[..., Any])


def _in_order(method: F) -> F:
    """Let the method of a step run only once, after all earlier steps; an error in it ends the session."""
    number = STEPS.index(method.__name__)

    @wraps(method)
    def step(self: Client, *arguments: Any, **named: Any) -> Any:
        if self._step != number:
            after = STEPS[self._step - 1] if self._step else "the start"
            ended = "" if self._seed else ", after which the client has ended"
            raise Refused(f"{STEPS[number]}: expected once, in its order; the last step was {after}{ended}")
        self._step = number + 1
        try:
            return method(self, *arguments, **named)
        except Exception:
            self._end()
            raise

    return cast(F, step)


class Client:
    """One client in one session. Call the methods in order; each step can be tried only once.

    After an error in a step, such as a refusal, the client takes no further step, so that nobody can probe
    what it would reveal. After such an error, and after the last step, the client has deleted all secrets of
    the session. A call out of order raises `Refused`, but changes nothing.

    Args:
        session: the settings on which all parties agree.
        number: the client's own number.
        identity: its Ed25519 private key, an ``Ed25519PrivateKey`` of ``cryptography``.

    Raises:
        ValueError: if the session has another public key for this number.

    Source: Bonawitz et al. (2017), Practical secure aggregation for privacy-preserving machine learning;
    neighbours as in Bell et al. (2020), Secure single-server aggregation with (poly)logarithmic overhead.
    """

    def __init__(self, session: Session, number: int, identity: Any) -> None:
        if session.identities.get(number) != public_of(identity):
            raise ValueError(f"identity: expected the key of client {number} in the session, got another")
        self._session, self._number, self._identity = session, number, identity
        self._sealing, self._masking = private_key(), private_key()
        self._seed, self._step = secrets.token_bytes(32), 0
        self._adverts: dict[int, Advert] = {}
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._came: list[int] = []

    @_in_order
    def advertise(self) -> Advert:
        """Step 1: return the client's public keys for this session, signed."""
        parts = (public_of(self._sealing), public_of(self._masking), hashlib.sha256(self._seed).digest())
        signature = self._identity.sign(_signed(self._session, self._number, *parts))
        return Advert(self._number, *parts, signature)

    @_in_order
    def share(self, adverts: Iterable[Advert]) -> list[Sealed]:
        """Step 2: return, encrypted for each neighbour, shares of two secrets.

        One is the seed of the client's own mask, the other its masking key, from which the masks that it
        shares with neighbours are made. Any ``Session.threshold`` shares of a secret rebuild it.

        Raises:
            Refused: if fewer neighbours than the threshold advertised, or an advert is duplicate or forged.
        """
        neighbours = set(self._session.neighbours_of(self._number))
        for advert in adverts:
            if advert.sender in neighbours:
                if advert.sender in self._adverts:
                    raise Refused(f"adverts: expected one of client {advert.sender}, got two")
                check_advert(self._session, advert)
                self._adverts[advert.sender] = advert
        self._need(len(self._adverts), "neighbours that advertised")
        threshold = self._session.threshold
        seeds = shamir.split(self._seed, threshold, self._adverts)
        keys = shamir.split(self._masking.private_bytes_raw(), threshold, self._adverts)
        boxes = []
        for other in self._adverts:
            cipher, nonce, label = self._cipher(self._number, other)
            box = cipher.encrypt(nonce, seeds[other] + keys[other], label)
            boxes.append(Sealed(self._number, other, box))
        return boxes

    @_in_order
    def mask(self, sealed: Iterable[Sealed], words: Words) -> Masked:
        """Step 3: return the upload plus masks: the client's own, and one for each sender in ``sealed``.

        The sender's upload has the same mask with the opposite sign, so the two masks cancel in the sum.

        Args:
            sealed: the shares that neighbours sent.
            words: [size] the upload, by `FixedPoint.encode`.

        Raises:
            Refused: if fewer neighbours than the threshold shared, or shares are duplicate, forged or from
                another session.
            ValueError: if the upload has another size or data type.
        """
        if words.shape != (self._session.size,) or words.dtype != np.uint64:
            raise ValueError(
                f"words: expected uint64 [{self._session.size}], got {words.dtype} {words.shape}"
            )
        for each in sealed:
            if each.receiver != self._number or each.sender not in self._adverts:
                raise Refused(f"shares: expected those of a neighbour for this client, got {each.sender}'s")
            if each.sender in self._shares:
                raise Refused(f"shares: expected one of client {each.sender}, got two")
            self._shares[each.sender] = self._opened(each)
        self._need(len(self._shares), "neighbours that shared")
        total = words + mask(self._seed, len(words))
        for other in self._shares:
            public = self._adverts[other].masking
            key = pair_key(self._session, "mask", self._masking, public, self._number, other)
            pair = mask(key, len(words))
            total = total + pair if self._number < other else total - pair
        return Masked(self._number, total)

    @_in_order
    def agree(self, came: Collection[int]) -> Agreed:
        """Step 4: return a signature of the list of clients whose uploads came.

        All clients must sign the same list.

        Args:
            came: the numbers of all clients whose uploads the server has.

        Raises:
            Refused: if the clients are too few, this client is not among them, or one of them is unknown or
                is a neighbour that sent no shares.
        """
        clients = set(came)
        if self._number not in clients:
            raise Refused(f"came: expected this client, {self._number}, among them; it has sent its upload")
        if unknown := clients - set(self._session.identities):
            raise Refused(f"came: expected clients of the session, got {sorted(unknown)}")
        if len(clients) < self._session.least:
            raise Refused(f"came: expected at least {self._session.least} clients, got {len(clients)}")
        self._need(len(clients & set(self._shares)), "neighbours whose uploads came")
        if strange := clients & set(self._session.neighbours_of(self._number)) - set(self._shares):
            raise Refused(
                f"came: expected only neighbours that sent their shares, got also {sorted(strange)}"
            )
        self._came = sorted(map(int, clients))
        return Agreed(self._number, self._identity.sign(self._session.came_label(clients)))

    @_in_order
    def unmask(self, agreed: Iterable[Agreed]) -> Opened:
        """Step 5: return a share of one secret of each neighbour that sent shares.

        The secret is the seed of the neighbour's own mask if the neighbour's upload came, else its masking
        key. With the shares, the server removes from the sum each client's own mask, and the masks that were
        shared with clients whose uploads did not come.

        Args:
            agreed: the signatures of clients that agreed in step 4.

        Raises:
            Refused: if fewer than `Session.quorum` clients signed the same list as this client: the server
                may have sent others another list.
        """
        clients = set(self._came)
        signers = set[int]()
        for own in agreed:
            # Checking a signature takes 0.1 ms or more, so stop once there are enough.
            if len(signers) < self._session.quorum and signed_came(self._session, clients, own):
                signers.add(own.sender)
        if len(signers) < self._session.quorum:
            raise Refused(
                f"agreed: expected at least {self._session.quorum} clients that were told of the same "
                f"uploads, got {len(signers)}"
            )
        seeds = {other: own for other, (own, _) in self._shares.items() if other in clients}
        keys = {other: own for other, (_, own) in self._shares.items() if other not in clients}
        self._end()
        return Opened(self._number, seeds, keys)

    def saved(self) -> bytes:
        """Return the client's state, for `restored`. It contains secrets, so nobody else may read it."""
        keys = (self._sealing.private_bytes_raw(), self._masking.private_bytes_raw(), self._seed)
        adverts = [[own.sender, *(part.hex() for part in own[1:])] for own in self._adverts.values()]
        shares = [[number, *(part.hex() for part in own)] for number, own in self._shares.items()]
        parts = [self._step, [key.hex() for key in keys], adverts, shares, self._came]
        return json.dumps(parts).encode()

    @classmethod
    def restored(cls, session: Session, number: int, identity: Any, saved: bytes) -> Client:
        """Rebuild the client from the bytes of `saved`, with the same session, number and identity."""
        client = cls(session, number, identity)
        client._step, keys, adverts, shares, client._came = json.loads(saved)
        sealing, masking, client._seed = map(bytes.fromhex, keys)
        client._sealing, client._masking = private_key(sealing), private_key(masking)
        for sender, *parts in adverts:
            client._adverts[sender] = Advert(sender, *map(bytes.fromhex, parts))
        for other, seed, key in shares:
            client._shares[other] = bytes.fromhex(seed), bytes.fromhex(key)
        return client

    def _end(self) -> None:
        """Forget all secrets of the session, and take no further step."""
        self._step, self._seed, self._shares = len(STEPS), b"", {}
        self._sealing, self._masking = private_key(), private_key()

    def _need(self, count: int, what: str) -> None:
        if count < self._session.threshold:
            raise Refused(f"expected at least {self._session.threshold} {what}, got {count}")

    def _cipher(self, sender: int, receiver: int) -> tuple[Any, bytes, bytes]:
        """Return cipher, nonce and label for shares; one of ``sender`` and ``receiver`` is this client."""
        label = self._session.label("shares", sender, receiver)
        public = self._adverts[sender if receiver == self._number else receiver].sealing
        key = pair_key(self._session, "shares", self._sealing, public, sender, receiver)
        cipher = optional(f"{_PRIMITIVES}.ciphers.aead", "secure").ChaCha20Poly1305(key)
        # The two clients use one key in both directions, for which nonces must differ: the label names the
        # sender.
        return cipher, hashlib.sha256(label).digest()[:12], label

    def _opened(self, sealed: Sealed) -> tuple[bytes, bytes]:
        cipher, nonce, label = self._cipher(sealed.sender, self._number)
        try:
            plain = cipher.decrypt(nonce, sealed.box, label)
        except optional("cryptography.exceptions", "secure").InvalidTag:
            raise Refused(
                f"shares: expected those that client {sealed.sender} encrypted in this session, got a box "
                "that cannot be decrypted: it was altered, or is of another session"
            ) from None
        if len(plain) != 2 * shamir.SHARE:
            raise Refused(
                f"shares: expected {2 * shamir.SHARE} bytes of client {sealed.sender}, got {len(plain)}"
            )
        return plain[: shamir.SHARE], plain[shamir.SHARE :]


def pair_key(session: Session, purpose: str, private: Any, public: bytes, one: int, other: int) -> bytes:
    """Return the secret key that clients ``one`` and ``other`` share: X25519, then HKDF with SHA-256.

    ``private`` is one client's X25519 key, ``public`` the other's. Another purpose gives another key.
    """
    hashes, kdf = (optional(f"{_PRIMITIVES}.{name}", "secure") for name in ("hashes", "kdf.hkdf"))
    try:
        shared = private.exchange(_x25519().X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refused(
            "advert: expected X25519 keys that give a shared secret, got an invalid one of "
            f"client {one} or {other}"
        ) from error
    label = session.label(purpose, min(one, other), max(one, other))
    return kdf.HKDF(hashes.SHA256(), 32, None, label).derive(shared)


def check_advert(session: Session, advert: Advert) -> None:
    """Check that an advert belongs to this session and is signed by the client that it names.

    Raises:
        Refused: if the sender is not in the session, or the signature is wrong.
    """
    if advert.sender not in session.identities:
        raise Refused(f"advert: expected one of the session's clients, got {advert.sender}")
    content = _signed(session, advert.sender, advert.sealing, advert.masking, advert.commitment)
    if not _verified(session, advert.sender, advert.signature, content):
        raise Refused(f"advert: the signature of client {advert.sender} is wrong")


def signed_came(session: Session, came: Collection[int], agreed: Agreed) -> bool:
    """Return whether ``agreed`` is a valid signature of the list ``came`` by a client that is in the list.

    The list has the numbers of the clients whose uploads came.
    """
    content = session.came_label(came)
    return agreed.sender in came and _verified(session, agreed.sender, agreed.signature, content)


def _verified(session: Session, client: int, signature: bytes, content: bytes) -> bool:
    keys = optional(f"{_PRIMITIVES}.asymmetric.ed25519", "secure")
    try:
        keys.Ed25519PublicKey.from_public_bytes(session.identities[client]).verify(signature, content)
    except optional("cryptography.exceptions", "secure").InvalidSignature:
        return False
    return True


def _signed(session: Session, number: int, *parts: bytes) -> bytes:
    return session.label("advert", number, number) + b"\0" + b"".join(parts)


def private_key(own: bytes | None = None) -> Any:
    """Return the X25519 private key with the bytes ``own``; a new key if None."""
    keys = _x25519().X25519PrivateKey
    return keys.generate() if own is None else keys.from_private_bytes(own)


def public_of(private: Any) -> bytes:
    """Return the public key of a private key."""
    return private.public_key().public_bytes_raw()


def _x25519() -> Any:
    return optional(f"{_PRIMITIVES}.asymmetric.x25519", "secure")
