"""Run the server of a secure sum: relay encrypted shares, add masked uploads, and remove the masks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

import numpy as np

from covfree.secure import shamir
from covfree.secure.client import check_advert, pair_key, private_key, public_of, signed_came
from covfree.secure.messages import Advert, Agreed, Masked, Opened, Refused, Sealed, Session
from covfree.secure.words import Words, mask


class Server:
    """The server in one session. It learns the sum and who took part, but no honest client's single upload.

    Duplicate messages and wrong signatures raise `Refused`, and change nothing.

    Args:
        session: the settings on which all parties agree.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._adverts: dict[int, Advert] = {}
        self._shared: set[int] = set()
        self._boxes: defaultdict[int, list[Sealed]] = defaultdict(list)
        self._uploads: set[int] = set()
        self._total = np.zeros(session.size, np.uint64)
        self._agreed: dict[int, Agreed] = {}
        self._opened: dict[int, Opened] = {}

    def take_advert(self, advert: Advert) -> None:
        """Step 1: check and store a client's public keys."""
        check_advert(self._session, advert)
        # A public key of small order, with which X25519 always gives 0, would stop all who use it.
        for public in (advert.sealing, advert.masking):
            pair_key(self._session, "check", private_key(), public, advert.sender, advert.sender)
        self._once(advert.sender, self._adverts)
        self._adverts[advert.sender] = advert

    @property
    def adverts(self) -> list[Advert]:
        """The adverts (`Advert`: a client's public keys) that clients have sent in step 1."""
        return list(self._adverts.values())

    @property
    def shared(self) -> frozenset[int]:
        """The numbers of the clients that have sent shares for their neighbours."""
        return frozenset(self._shared)

    def adverts_for(self, client: int) -> list[Advert]:
        """Return the adverts (`Advert`: a client's public keys) of a client's neighbours."""
        return [
            self._adverts[other] for other in self._session.neighbours_of(client) if other in self._adverts
        ]

    def take_shares(self, client: int, sealed: Iterable[Sealed]) -> None:
        """Step 2: check and store a client's encrypted shares for its neighbours."""
        boxes = list(sealed)
        self._known(client, self._adverts, "advertised")
        self._once(client, self._shared)
        receivers = [each.receiver for each in boxes if each.sender == client]
        expected = {advert.sender for advert in self.adverts_for(client)}
        if len(receivers) != len(boxes) or set(receivers) != expected or len(expected) != len(boxes):
            raise Refused(f"shares: expected one of client {client} for each of {sorted(expected)}")
        self._shared.add(client)
        for each in boxes:
            self._boxes[each.receiver].append(each)

    def shares_for(self, client: int) -> list[Sealed]:
        """Return the encrypted shares that a client's neighbours have sent it."""
        return self._boxes[client]

    def take_upload(self, masked: Masked) -> None:
        """Step 3: check a masked upload and add it to the sum."""
        self._known(masked.sender, self._shared, "shared")
        self._once(masked.sender, self._uploads)
        words = np.asarray(masked.words)
        if words.shape != self._total.shape or words.dtype != np.uint64:
            raise Refused(f"upload: expected uint64 [{len(self._total)}], got {words.dtype} {words.shape}")
        self._uploads.add(masked.sender)
        self._total += words

    def came(self) -> list[int]:
        """Return the numbers of the clients whose uploads came, for step 4.

        Raises:
            Refused: if there are fewer of them than the session's ``least``.
        """
        if len(self._uploads) < self._session.least:
            raise Refused(f"expected at least {self._session.least} uploads, got {len(self._uploads)}")
        return sorted(self._uploads)

    def take_agreed(self, agreed: Agreed) -> None:
        """Step 4: check and store a client's signature of `came`, the list of the clients that uploaded."""
        self._known(agreed.sender, self._uploads, "sent its upload")
        self._once(agreed.sender, self._agreed)
        if not signed_came(self._session, self._uploads, agreed):
            raise Refused(f"agreed: the signature of client {agreed.sender} is wrong")
        self._agreed[agreed.sender] = agreed

    @property
    def agreed(self) -> list[Agreed]:
        """The signatures that clients have sent in step 4; clients receive them in step 5."""
        return list(self._agreed.values())

    def take_opened(self, opened: Opened) -> None:
        """Step 5: store the shares that a client reveals."""
        self._known(opened.sender, self._agreed, "agreed")
        self._once(opened.sender, self._opened)
        self._opened[opened.sender] = opened

    def total(self) -> Words:
        """Return the sum of the uploads that came, modulo 2⁶⁴, without their masks.

        Raises:
            Refused: if too few uploads or too few shares of a secret came, or a rebuilt secret does not match
                its owner's advert.
        """
        total = self._total.copy()
        for client in self.came():
            total -= mask(self._rebuilt(client, "seeds"), len(total))
        for client in sorted(self._shared - self._uploads):
            masked = [other for other in self._session.neighbours_of(client) if other in self._uploads]
            if not masked:
                continue
            key = private_key(self._rebuilt(client, "keys"))
            for other in masked:
                public = self._adverts[other].masking
                pair = mask(pair_key(self._session, "mask", key, public, client, other), len(total))
                # Remove this mask from the upload of ``other``. Of two clients with a common mask, the one
                # with the lower number has added it, and the other has subtracted it.
                total = total - pair if other < client else total + pair
        return total

    def _rebuilt(self, client: int, kind: Literal["seeds", "keys"]) -> bytes:
        """Rebuild a client's mask seed or masking key from t true shares of it, t the session's threshold.

        As some shares may be false, several choices of t shares are tried, until the secret fits the advert.
        """
        given = ((holder, getattr(opened, kind)) for holder, opened in self._opened.items())
        own = {holder: shares[client] for holder, shares in given if client in shares}
        advert, least = self._adverts[client], self._session.threshold
        if len(own) < least:
            raise Refused(f"shares: expected at least {least} of client {client}, got {len(own)}")
        around = [*own.items(), *own.items()]
        for start in range(len(own)):
            # Use only t shares: any t will do, and the cost grows with the square of their number.
            with suppress(ValueError):
                secret = shamir.rebuild(dict(around[start : start + least]))
                if kind == "seeds" and hashlib.sha256(secret).digest() == advert.commitment:
                    return secret
                if kind == "keys" and public_of(private_key(secret)) == advert.masking:
                    return secret
        raise Refused(
            f"shares: those of client {client} do not give the secret that its advert commits it to"
        )

    def _once(self, client: int, taken: Iterable[int]) -> None:
        if client in taken:
            raise Refused(f"expected one message of client {client} in a step, got another")

    def _known(self, client: int, earlier: Iterable[int], did: str) -> None:
        if client not in earlier:
            raise Refused(f"expected a client that had {did}, got {client}")
