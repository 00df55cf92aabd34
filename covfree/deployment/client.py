"""A site of a federation, which knows no transport: it answers the server's bytes with bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covfree.core.checks import check
from covfree.core.types import AnyArray
from covfree.deployment.description import SERVER, Description, differences
from covfree.deployment.door import check_federation
from covfree.deployment.envelope import Opened, Refused, public_key, seal, unseal, write
from covfree.deployment.machine import SUFFIX, Machine, unflattened
from covfree.rounds.algorithm import Algorithm


class Client(Machine):
    """A site's side of a federation; see `docs/deployment.md`.

    `answer` gives the bytes that answer a broadcast of the server's. What the site remembers from round to
    round, and its last answer, are on the disk when it returns: killed at any point and made anew with the
    same folder, the site goes on, and gives the same bytes to the same broadcast.

    Attributes:
        site: the site's name.
        turn: the last round that was answered; −1 before the first.
    """

    def __init__(
        self,
        description: Description,
        site: str,
        folder: str | PathLike[str],
        key: Any,
        features: AnyArray,
        labels: AnyArray,
        *,
        uses: Mapping[str, Any] | None = None,
        algorithm: Algorithm | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Begin, or go on where an earlier process stopped.

        Args:
            description: the federation.
            site: the site's name in the description.
            folder: the site's own, which nobody else may write to.
            key: the site's private key, from `load_key`.
            features: [n, d], float32.
            labels: [n], classes by the description's numbers; below 0 is padding.
            uses: what made the features, from `read_site`; None vouches for what the description asks for.
            algorithm: the algorithm, if the description's name stands for one of your own.
            now: the clock, in seconds since 1970.

        Raises:
            ValueError: if the site, its key, its features or what made them is not what the description
                says; the message names all that differs.
        """
        if site not in description.sites:
            raise ValueError(f"site: expected one of {', '.join(description.sites)}, got {site!r}")
        if public_key(key) != description.sites[site]:
            raise ValueError(f"key: expected the private key of {site!r} in the description, got another")
        self.uses = dict(description.agreed if uses is None else uses)
        if unlike := differences(description.agreed, self.uses):
            raise ValueError(f"site {site}: {'; '.join(unlike)}")
        features, labels = np.asarray(features, np.float32), np.asarray(labels)
        check(features, labels, num_classes=len(description.class_names))
        if features.shape[1] != description.dim:
            raise ValueError(f"features: expected [n, {description.dim}], got {list(features.shape)}")
        if (count := int((labels >= 0).sum())) > description.max_examples:
            raise ValueError(f"labels: expected at most {description.max_examples} examples, got {count}")
        self.site, self._features, self._labels = site, features, labels
        self._number = list(description.sites).index(site)
        super().__init__(description, folder, key, algorithm, now)

    def answer(self, data: bytes) -> bytes:
        """Answer a broadcast; the same bytes again if it was answered before.

        Args:
            data: the message, from `Server.open` or anybody.

        Raises:
            Refused: if it is not signed by the server, of another federation, expired, or of a round that
                is over; the text says what differs.
        """
        about, arrays = self._read(data, "ask")
        turn, expires = about["turn"], about["expires"]
        if turn < self.turn:
            raise Refused(f"replayed: it opens round {turn}, but round {self.turn} was answered", SERVER)
        if turn == self.turn and self._asked["nonce"] == about["nonce"]:
            return self._answer
        if expires is not None and self._now() > expires:
            raise Refused(f"expired: round {turn} was to close {self._now() - expires:.0f} s ago", SERVER)
        if turn == self.turn:
            # Opened again: the same upload under the new opening's number.
            opened = unseal(self._answer, self.description.sites)
            upload, examples = opened.arrays, opened.about["examples"]
            before, after = self._before, self._after
        else:
            counted = arrays["counted"]
            if counted.shape != (len(self.description.sites),):
                raise Refused("counted: expected a round for each site", SERVER)
            before = self._after if counted[self._number] == self.turn >= 0 else self._before
            state = self._steps.skeleton(about["items"])
            sent = unflattened(self._steps.sent_form(state), arrays, "sent")
            own, after = self._steps.upload(self._number, turn, sent, before, self._features, self._labels)
            upload, examples = own.arrays(), own.examples
        reply = {
            "kind": "answer",
            "sender": self.site,
            "federation": self.description.identity,
            "uses": self.uses,
            "turn": turn,
            "nonce": about["nonce"],
            "expires": expires,
            "examples": examples,
        }
        answer = seal(self._key, reply, upload)
        kept = {
            f"{name}.{i}": np.asarray(leaf)
            for name, tree in (("before", before), ("after", after))
            for i, leaf in enumerate(jax.tree.leaves(tree))
        }
        kept["answer"] = np.frombuffer(answer, np.uint8)
        # One file, replaced as a whole: the answer and what goes with it.
        write(self._path, seal(self._key, {**reply, "kind": "kept"}, kept))
        self.turn, self._answer, self._asked = turn, answer, reply
        self._before, self._after = before, after
        return answer

    def finish(self, data: bytes) -> tuple[bytes, str | None]:
        """Read the last broadcast.

        Args:
            data: the message, from `Server.end` or anybody.

        Returns:
            The file that it brings, and why the federation stopped early; None if it did not.

        Raises:
            Refused: if it is not the server's, or no last broadcast.
        """
        about, arrays = self._read(data, "end")
        return arrays["file"].tobytes(), about["stopped"]

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.site}{SUFFIX}"

    def _read(self, data: bytes, kind: str) -> Opened:
        """Read a message of the server's, or raise unless it is of this federation and of the kind."""
        own = self.description
        if len(data) > own.max_bytes:
            raise Refused(f"message: expected at most {own.max_bytes} bytes, got {len(data)}")
        opened = unseal(data, {SERVER: own.server})
        about = opened.about
        check_federation(about, about.get("agreed"), own)
        if about.get("kind") != kind:
            raise Refused(f"kind: expected {kind!r}, got {about.get('kind')!r}", SERVER)
        return opened

    def _load(self) -> None:
        """Read what an earlier process left."""
        self.turn, self._answer, self._asked = -1, b"", dict[str, Any]()
        # What the site remembers if its last upload did not count, and if it did.
        self._before = self._after = self._steps.start()[1]
        if not self._path.exists():
            return
        about, arrays = unseal(self._path.read_bytes(), self.description.sites)
        self._before = unflattened(self._before, arrays, "before")
        self._after = unflattened(self._after, arrays, "after")
        self.turn, self._asked, self._answer = about["turn"], about, arrays["answer"].tobytes()
