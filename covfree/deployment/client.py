"""Run a site of a federation: it answers the server's messages. All messages are bytes, for any transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from covfree import secure
from covfree.core.checks import check
from covfree.core.forms import zeros_of
from covfree.core.types import AnyArray
from covfree.deployment.description import Description
from covfree.deployment.differences import differences
from covfree.deployment.door import Left, check_federation
from covfree.deployment.envelope import SERVER, Refused, Unsealed, check_own, seal, unseal, write
from covfree.deployment.machine import Machine, flattened, unflattened
from covfree.deployment.steps import Arrays
from covfree.deployment.sums import answer
from covfree.engine.checkpoint import digest
from covfree.rounds.algorithm import Algorithm
from covfree.secure import STEPS


class _Kept(NamedTuple):
    """The state that a site stores on disk between two answers."""

    # The client's memory (what the algorithm lets it keep between rounds) before and after its last upload,
    # which it sent in ``turn``. The next round starts from ``after`` if that upload counted, else ``before``.
    before: Any
    after: Any
    turn: int = -1
    # The saved `covfree.secure.Client` of an unfinished secure sum.
    secret: bytes = b""
    # The numbers of the sites in the last list of uploaders that this site signed.
    came: Any = ()
    # The round whose secure sum this site left, and why.
    gone: tuple[int, str] = (-1, "")


class Client(Machine):
    """A site's side of a federation; see `docs/deployment.md`.

    `answer` returns the bytes that answer a broadcast of the server. When `answer` returns, the site's last
    answer and its state are on disk. So the process may be killed at any time: a new process with the same
    folder goes on, and answers the same broadcast with the same bytes.

    Attributes:
        site: the site's name.
        turn: the last turn (one step of a round, counted from 0) that was answered; −1 before the first.
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
        """Start, or resume where an earlier process stopped.

        Args:
            description: the federation.
            site: the site's name in the description.
            folder: the site's own folder; nobody else may write to it.
            key: the site's private key, from `load_key`.
            features: [n, d], float32; or the images of `load_images` if a network is trained.
            labels: [n], indices of the description's ``class_names``; below 0 is padding.
            uses: extractor settings, d and class names of the data, from `read_site`; None asserts that they
                are ``description.agreed``.
            algorithm: the algorithm, if a network is trained (see `Description.make_algorithm`) or you use
                one of your own; None for the one that the description names.
            now: the clock, in seconds since 1970.

        Raises:
            ValueError: if the site, its key, its data or ``uses`` do not fit the description, or the folder
                is in use, belongs to another federation, or has answers from other examples.
        """
        check_own(description.sites, site, key)
        self.uses = dict(description.agreed if uses is None else uses)
        if unlike := differences(description.agreed, self.uses):
            raise ValueError(f"site {site}: {'; '.join(unlike)}")
        like = description.example
        features = np.asarray(features, np.float32 if description.train == "head" else None)
        if features.shape[1:] != like.shape[1:] or features.dtype != like.dtype:
            got = f"{features.dtype}{list(features.shape)}"
            raise ValueError(f"features: expected {like.dtype}[n, {str([*like.shape[1:]])[1:]}, got {got}")
        labels = np.asarray(labels)
        # Every value of an image (uint8) is valid, so only the labels are checked.
        values = features if description.train == "head" else np.zeros((len(features), 1), np.float32)
        check(values, labels, num_classes=len(description.class_names))
        if (count := int((labels >= 0).sum())) > description.max_examples:
            raise ValueError(f"labels: expected at most {description.max_examples} examples, got {count}")
        self.site, self._features, self._labels, self._count = site, features, labels, count
        self._number = list(description.sites).index(site)
        # Integers of another type are the same labels.
        self._digest = digest([features, labels.astype(np.int64)])
        super().__init__(description, folder, site, key, algorithm, now)

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a broadcast; a broadcast that was answered before gets the same bytes again.

        Args:
            data: the message, from `Server.open` or anybody.

        Raises:
            Left: if this site takes no further part in a round's secure sum. Send the error's ``answer``.
            Refused: if the message is not signed by the server, is of another federation or of a round that
                is over, has expired, or says that the server left this site out. The error's text says which.
        """
        about, arrays = self._read(data, "ask")
        turn, expires = about.get("turn"), about["expires"]
        if (reason := about["left_out"].get(self.site)) is not None:
            raise Refused(f"left out by the server: {reason}", SERVER)
        if type(turn) is not int or not 0 <= turn < self._turns:
            raise Refused(f"turn: expected one of the {self._turns} of this federation, got {turn!r}", SERVER)
        if turn < self.turn:
            raise Refused(f"replayed: it opens round {turn}, but round {self.turn} was answered", SERVER)
        if turn == self.turn and self._asked["nonce"] == about["nonce"]:
            return self._answer
        if expires is not None and self._now() > expires:
            raise Refused(f"expired: round {turn} was to close {self._now() - expires:.0f} s ago", SERVER)
        reply = self._reply(about)
        if turn == self.turn:
            # The round was opened again: send the same content with the new opening's nonce.
            opened = unseal(self._answer, self.description.sites)
            content, kept = opened.arrays, self._kept
            reply["examples"] = opened.about["examples"]
        elif self.description.sums is None:
            content, kept = self._upload(turn, about, arrays)
        else:
            content, kept = self._step(turn, about, arrays)
        self._keep(reply, seal(self._key, reply, content), kept)
        return self._answer

    def _reply(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of the answer to a broadcast with metadata ``asked``."""
        return {
            "kind": "answer",
            "sender": self.site,
            "federation": self.description.identity,
            "uses": self.uses,
            **{name: asked[name] for name in ("turn", "nonce", "expires")},
            # In a secure sum, the number of examples is hidden too.
            "examples": self._count if self.description.sums is None else 0,
        }

    def _leaving(self, asked: Mapping[str, Any], text: str) -> Left:
        """Make the error with which the site leaves a secure sum; ``text`` says why, to the site alone."""
        reply = {**self._reply(asked), "left": True}
        return Left(text, asked["turn"], seal(self._key, reply, {}))

    def _upload(self, turn: int, about: Mapping[str, Any], arrays: Arrays) -> tuple[Arrays, _Kept]:
        """Return the upload that answers a broadcast, and the site's state after it."""
        counted = arrays.get("counted")
        if counted is None or counted.shape != (len(self.description.sites),):
            got = None if counted is None else f"shape {list(counted.shape)}"
            wanted = f"shape [{len(self.description.sites)}], the last turn that counted for each site"
            raise Refused(f"counted: expected {wanted}, got {got}", SERVER)
        old = self._kept
        before = old.after if counted[self._number] == old.turn >= 0 else old.before
        number, _ = self.description.place(turn)
        # Refuse the state of another round: a server that sent an earlier one again would learn that round's
        # statistics twice.
        if len(about["items"]) != number:
            raise Refused(f"items: expected those of {number} rounds, got {len(about['items'])}", SERVER)
        try:
            state = self._steps.skeleton(about["items"])
        except ValueError as error:
            raise Refused(f"items: {error}", SERVER) from error
        sent = unflattened(zeros_of(self._steps.broadcast, state), arrays, "sent")
        own, after = self._steps.upload(self._number, number, sent, before, self._features, self._labels)
        return own, old._replace(before=before, after=after, turn=turn)

    def _step(self, turn: int, about: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[Any, _Kept]:
        """Return the arrays that answer one step of a secure sum, and the site's new state.

        Raises:
            Left: if this site did not answer the step before, or any error prevents its answer.
            Refused: if the broadcast does not say how long an upload is.
        """
        number, step = self.description.place(turn)
        size, kept = about.get("words"), self._kept
        if type(size) is not int or size < 1:
            raise Refused(
                f"words: expected the number of words of an upload, at least 1, got {size!r}", SERVER
            )
        own = self.description.session(number, size), self._number, self._key
        if step == STEPS[0]:
            client = secure.Client(*own)
        elif turn != self.turn + 1 or not kept.secret:
            text = (
                f"{self.description.named(turn)}: expected to have answered the step before; this site has "
                "no part in this round's sum and waits for the next"
            )
            raise self._leaving(about, kept.gone[1] if kept.gone[0] == number else text)
        else:
            client = secure.Client.restored(*own, kept.secret)

        words = None
        try:
            if step == "mask":
                upload, kept = self._upload(turn, about, arrays)
                words = self.description.words.encode(list(upload.values()))
                if len(words) != size:
                    raise secure.Refused(
                        f"words: expected {len(words)}, the words of this site's upload, got {size}"
                    )
            if step == "agree":
                came = tuple(np.ravel(arrays.get("came", ())).tolist())
                if kept.came and kept.came != came and self._algorithm.same_clients:
                    raise secure.Refused(
                        f"came: expected the same sites as in the sum before, {kept.came}, got {came}"
                    )
                kept = kept._replace(came=came)
            content = answer(step, client, self._number, arrays, words)
        except Exception as error:
            # After any error take no further part in this round: nobody may probe what the site would answer.
            text = f"{self.description.named(turn)}: {error}; this site takes no further part in this sum"
            if self._asked:
                self._keep(self._asked, self._answer, self._kept._replace(secret=b"", gone=(number, text)))
            raise self._leaving(about, text) from error
        return content, kept._replace(secret=b"" if step == STEPS[-1] else client.saved())

    def _keep(self, reply: Mapping[str, Any], answer: bytes, kept: _Kept) -> None:
        """Write an answer, its metadata ``reply`` and the state after it to one file, replaced atomically."""
        arrays = flattened(kept.before, "before") | flattened(kept.after, "after")
        arrays |= {"answer": np.frombuffer(answer, np.uint8), "secret": np.frombuffer(kept.secret, np.uint8)}
        arrays["came"] = np.asarray(kept.came, np.int32)
        about = {**reply, "kind": "kept", "computed": kept.turn, "gone": kept.gone, "digest": self._digest}
        write(self._path, seal(self._key, about, arrays))
        self.turn, self._answer, self._asked, self._kept = reply["turn"], answer, dict(reply), kept

    def finish(self, data: bytes) -> tuple[bytes, str | None]:
        """Check and read the server's last broadcast.

        Args:
            data: the message, from `Server.end` or anybody.

        Returns:
            The file in the broadcast (the head), and the reason why the federation stopped early, or None.

        Raises:
            Refused: if the message is not signed by the server, or is not the last broadcast.
        """
        about, arrays = self._read(data, "end")
        return arrays["file"].tobytes(), about["stopped"]

    def _read(self, data: bytes, kind: str) -> Unsealed:
        """Return the content of a message; raise Refused unless it is the server's and of this ``kind``."""
        own = self.description
        if len(data) > own.max_bytes:
            raise Refused(f"message: expected at most {own.max_bytes} bytes, got {len(data)}")
        opened = unseal(data, {SERVER: own.server})
        about = opened.about
        check_federation(about, about.get("agreed"), own)
        if about.get("kind") != kind:
            raise Refused(f"kind: expected {kind!r}, got {about.get('kind')!r}", SERVER)
        self._check_fields(opened, kind)
        return opened

    def _check_fields(self, opened: Unsealed, kind: str) -> None:
        """Raise Refused unless a signed message of this kind has all fields, with valid types."""
        about, most = opened.about, self.description.max_examples * len(self.description.sites)

        def rows(found: Any) -> bool:
            return isinstance(found, list) and all(type(n) is int and 0 <= n <= most for n in found)

        expires, items = about.get("expires"), about.get("items")
        seconds = expires is None or (type(expires) in (int, float) and abs(expires) < 1e15)
        few = isinstance(items, list) and len(items) <= self._turns and all(map(rows, items))
        wanted = {
            "expires": ("seconds or None", seconds),
            "left_out": ("reasons by site", isinstance(about.get("left_out"), dict)),
            "nonce": ("text", isinstance(about.get("nonce"), str)),
            "items": (f"at most {self._turns} lists of at most {most} rows", few),
        }
        if kind == "end":
            wanted = {"stopped": ("a reason or None", isinstance(about.get("stopped"), str | None))}
            if "file" not in opened.arrays:
                raise Refused("file: expected the file of the head in the last message, got none", SERVER)
        for name, (what, fits) in wanted.items():
            if name not in about or not fits:
                raise Refused(f"{name}: expected {what}, got {str(about.get(name))[:80]!r}", SERVER)

    def _load(self) -> None:
        """Load the state that an earlier process wrote; without one, start anew."""
        self.turn, self._answer, self._asked = -1, b"", dict[str, Any]()
        memory = self._steps.start()[1]
        self._kept = _Kept(memory, memory)
        if not self._path.exists():
            return
        about, arrays = unseal(self._path.read_bytes(), self.description.sites)
        if about.get("digest", self._digest) != self._digest:  # a draft of covfree 0.1.0 wrote none
            raise ValueError(
                f"features: expected the examples of this site's answers, kept in {self.folder}, got other "
                "features or labels; give those again, or make a new federation"
            )
        before, after = (unflattened(memory, arrays, name) for name in ("before", "after"))
        came = tuple(arrays["came"].tolist())
        number, why = about["gone"]
        secret = arrays["secret"].tobytes()
        self._kept = _Kept(before, after, about["computed"], secret, came, (number, why))
        self.turn, self._asked, self._answer = about["turn"], about, arrays["answer"].tobytes()
