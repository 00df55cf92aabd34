"""Run the server of a federation: it makes and reads messages as bytes, and keeps its state on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import jax
import numpy as np

from covfree.core.types import Message
from covfree.deployment.description import Description
from covfree.deployment.door import Receipt, TooFew, check_federation, judge, stopping
from covfree.deployment.envelope import SERVER, Refused, Unsealed, public_key, seal, unseal, write
from covfree.deployment.machine import flattened
from covfree.deployment.standing import Standing
from covfree.deployment.steps import Arrays, Steps
from covfree.deployment.sums import Sums
from covfree.protocol.door import reason_of
from covfree.rounds.adding import Parts
from covfree.rounds.algorithm import Algorithm
from covfree.rounds.from_method import Sent
from covfree.secure import STEPS
from covfree.secure.holders import nothing_left

_LEFT = "left: the site takes no further part in this sum; its own command says why"
_LEFT_AGAIN = "doubled: the same message again, or late: this site has no part in this sum"


class Server(Standing):
    """The server's side of a federation; see `docs/deployment.md`.

    `open` returns the bytes to send to all sites, `take` takes a site's answer, `close` computes the next
    state. When all rounds are done, `finished` is true and `result` is the head. Every call returns only when
    its effect is on disk. So the process may be killed at any time: a new process with the same folder goes
    on, and the result is the same to the bit.
    """

    def __init__(
        self,
        description: Description,
        folder: str | PathLike[str],
        key: Any,
        *,
        algorithm: Algorithm | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start, or resume where an earlier server stopped.

        Args:
            description: the federation.
            folder: the server's own folder; nobody else may write to it.
            key: the server's private key, from `load_key`.
            algorithm: see `Client`.
            now: the clock, in seconds since 1970.

        Raises:
            ValueError: if the key is not the description's, or the folder is in use or belongs to another
                federation.
        """
        if public_key(key) != description.server:
            raise ValueError("key: expected the private key of the description's server, got another")
        super().__init__(description, folder, SERVER, key, algorithm, now)

    def open(self) -> bytes:
        """Open the round and return its broadcast; while the round is open, return the same broadcast.

        If a round had too few answers at its deadline, or because sites left its sum, it is opened again;
        answers already taken stay.
        """
        if self.finished:
            raise ValueError(
                f"open: expected a federation with rounds to come, got {self.description.num_rounds} done"
            )
        path = self._file(SERVER)
        if self._asked is not None and not self.is_over:
            return path.read_bytes()
        limit = self.description.deadline
        about = self._about("ask", None if limit is None else self._now() + limit)
        arrays = dict[str, Any]()
        if self._step in ("answer", "mask"):
            arrays = flattened(self._steps.broadcast(self._state), "sent")
        if self.description.sums is not None:
            sums = self._round_sums()
            arrays, about = arrays | sums.asks(self._step), {**about, "words": sums.session.size}
        data = seal(self._key, about, arrays | {"counted": self._counted})
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, data)
        self._asked, self._left = about, set()
        return data

    def take(self, data: bytes) -> Receipt:
        """Check a site's answer; write it to disk, or set it aside with a reason.

        Args:
            data: the message, from anybody.

        Returns:
            The site, and the reason if the answer was set aside.
        """
        site = None
        if not self.finished:
            self._expected()  # errors here come from the algorithm, not from the message
        try:
            if len(data) > (most := self.most_bytes):
                raise Refused(f"message: expected at most {most} bytes, got {len(data)}")
            opened = unseal(data, self.description.sites)
            site = opened.about["sender"]
            self._check(opened, site, data)
            if opened.about.get("left") is True:
                again = site in self._left or site not in self._there
                self._left.add(site)
                raise Refused(_LEFT_AGAIN if again else _LEFT, site)
            if self.description.sums is None:
                self._plain.check(opened.arrays, self._expected())
            else:
                self._round_sums().take(self._step, self._numbers[site], opened.arrays)
        except Refused as error:
            return self._aside(error.sender, str(error))
        except Exception as error:  # no list of exceptions covers everything that strangers send
            return self._aside(site, reason_of(error))
        write(self._file(site), data)
        self.taken[site] = 0 if self.description.sums else opened.about["examples"]
        # The site may have left by another process, with another folder: this answer counts all the same.
        self._left.discard(site)
        return Receipt(site, None)

    @property
    def most_bytes(self) -> int:
        """The largest size in bytes of an answer that is read; honest answers are far smaller."""
        if self.finished:
            return self.description.max_bytes
        form = self._expected()
        # A generous limit: eight times the plain upload, as masks make a 64-bit word of each number; 1 KiB a
        # site for the shares; and 1 MiB.
        upload = 8 * sum(x.nbytes for own in (form.sums, *form.tables) for x in own)
        return min(self.description.max_bytes, upload + 2**10 * len(self.description.sites) + 2**20)

    def close(self) -> None:
        """Close the round with the answers taken so far, and compute the next state.

        The order of the answers does not matter.

        Raises:
            TooFew: if too few sites have valid answers. The round can still take more: call `open` again,
                before any `take` or `close`.
            ValueError: if no round is open.
        """
        if self._asked is None:
            raise ValueError("close: expected an open round; call open")
        sites = sorted(self.taken)
        rejected, judged = dict[str, str](), None
        if isinstance(self._expected().upload(), Sent):
            rejected, judged = judge(sites, self._message, self._algorithm, self.description)
        sites = [site for site in sites if site not in rejected]
        for site, reason in rejected.items():
            self._aside(site, reason)
        if too_few := self._too_few(sites):
            for site in rejected:
                # Forget the site's answer, so that it may send another.
                self._file(site).unlink(missing_ok=True)
                del self.taken[site]
            out = "".join(f"; left out: {site}: {why}" for site, why in (self.left_out | rejected).items())
            missing = ", ".join(self.missing)
            if left := sorted(self._left & {*self._there}):
                bound, why = None if self.description.sums is None else self.description.sums.bound, ""
                if self._step == "mask" and bound is not None:
                    why = (
                        f"if a number of its upload is above bound={bound:g} of --sums (a larger bound needs "
                        "a new federation), or "
                    )
                out += (
                    f"; left this sum: {', '.join(left)}: ask these sites what their command said; a site "
                    f"leaves {why}if it was started with another --state: start it with its own"
                )
                # Forget this opening, on disk too: the next one has another nonce, so that sites' messages to
                # this one do not end it.
                self._file(SERVER).unlink(missing_ok=True)
                self._asked, self._left = None, set()
            raise TooFew(
                f"{self.description.named(self.turn)}: expected {too_few}"
                f"{missing and f'; missing: {missing}'}{out}"
            )
        sizes = {site: self._file(site).stat().st_size for site in (*sites, SERVER)}
        record: dict[str, Any] = {
            "round": self.turn,
            "sites": sites,
            "rejected": rejected,
            "judged": judged,
            "bytes_up": sum(sizes[site] for site in sites),
            "bytes_down": sizes[SERVER] * len(self._numbers),
        }
        total, who, when = self._total(sites)
        state, finite = (self._state, True) if total is None else self._steps.serve(self._state, total)
        counted, turn, items, stopped = self._counted.copy(), self.turn + 1, self._items, None
        if not finite:
            state, turn = self._state, self.turn
            stopped = f"round {turn}: the state is not finite; the result is that of the state before"
        elif reason := nothing_left(self._algorithm.params, state):
            state, turn = self._state, self.turn
            stopped = f"{self.description.named(turn)}: {reason}"
        elif total is not None:
            counted[[self._numbers[site] for site in who]] = when
            items = [*items, [len(table[-1]) for table in Parts.of(total).tables]]
        history = [*self.history, record]
        # Write one file, replaced atomically: once it is there, the round is closed.
        about = {**self._about("state", None), "turn": turn, "items": items, "history": history}
        about["stopped"] = stopped
        write(self._path, seal(self._key, about, flattened(state, "state") | {"counted": counted}))
        self._state, self.turn, self._counted, self._items = state, turn, counted, items
        self.history, self.stopped = history, stopped
        self._asked, self.taken, self._left = None, {}, set()
        if total is not None:
            self._form, self._sums = None, None

    def _too_few(self, sites: list[str]) -> str:
        """Return a text that says which answers are needed; "" if the answers of ``sites`` are enough."""
        if self.description.sums is not None:
            if first := self._same.difference(sites):
                return f"the same sites as in the first round, so {', '.join(sorted(first))} too"
            return self._round_sums().too_few(self._step, [self._numbers[site] for site in sites])
        fewest = self.description.fewest
        return "" if len(sites) >= fewest else f"answers of {fewest} sites at least, got {len(sites)}"

    def _total(self, sites: list[str]) -> tuple[Any, list[str], int]:
        """Return the sum of uploads, the sites whose uploads it includes, and the turn in which these came.

        Before the last step of a secure sum, the sum is None and there are no sites.
        """
        form, names = self._expected(), list(self._numbers)
        if self.description.sums is None:
            examples = {self._numbers[site]: self.taken[site] for site in sites}
            total = self._plain.total(examples, lambda number: self._read(names[number]), form)
            return total, sites, self.turn
        if self._step != STEPS[-1]:
            return None, [], self.turn
        sums = self.description.words.decode(self._round_sums().total(), form.sums)
        masked = self.turn - len(STEPS) + 1 + STEPS.index("mask")
        came = self.history[masked]["sites"]
        return Parts(sums, [], form.structure).upload(), came, masked

    def _round_sums(self) -> Sums:
        """Return the server of this round's secure sum: a `Sums`, which takes the answers of the sites.

        In a new round or a new process, it is made from the answers to this round that are on disk.
        """
        if self._sums is None:
            number, first = self.turn // len(STEPS), self.turn // len(STEPS) * len(STEPS)
            form = self._expected()
            if form.tables:
                raise ValueError(f"algorithm: expected uploads that are sums, got {self._algorithm.name!r}")
            size = sum(part.size for part in form.sums)
            sums = Sums(self.description.session(number, size), list(self._numbers))
            for turn in range(first, self.turn + 1):
                for site in self.taken if turn == self.turn else self.history[turn]["sites"]:
                    arrays = unseal(self._file(site, turn).read_bytes(), self.description.sites).arrays
                    sums.take(STEPS[turn - first], self._numbers[site], arrays)
            self._sums = sums
        return self._sums

    def end(self, content: bytes) -> bytes:
        """Make the last broadcast: it says that all is done, and carries ``content``, the head's file."""
        about = {**self._about("end", None), "stopped": self.stopped, "nonce": "", "counted": self.counted}
        return seal(self._key, about, {"file": np.frombuffer(content, np.uint8)})

    def standing(self, aside: Mapping[str, str]) -> bytes:
        """Make the message that says which round is open, and which sites' answers were taken.

        It carries ``aside`` too: for each other site, why its answer was set aside.
        """
        if self._asked is None:
            raise ValueError("standing: expected an open round; call open")
        about = {**self._asked, "kind": "round", "taken": sorted(self.taken), "aside": dict(aside)}
        return seal(self._key, about, {})

    def stop(self, reason: str) -> bytes:
        """Make the message that tells sites that the federation stops before its end, and why."""
        return stopping(self.description, self._key, reason)

    def _read(self, site: str) -> Arrays:
        """Return the upload in a site's stored answer to the open round."""
        arrays = unseal(self._file(site).read_bytes(), self.description.sites).arrays
        self._plain.check(arrays, self._expected())
        return arrays

    def _expected(self) -> Parts:
        if self._form is None:
            self._form = self._steps.form(self._state)
        return self._form

    def _check(self, opened: Unsealed, site: str, data: bytes) -> None:
        """Raise Refused unless a site's signed message is its first answer to the open round, in time."""
        about, most = opened.about, self.description.max_examples
        check_federation(about, about.get("uses"), self.description)
        if about.get("kind") != "answer":
            raise Refused(f"kind: expected an answer, got {about.get('kind')!r}", site)
        examples, turn = about.get("examples"), about.get("turn")
        if type(examples) is not int or not 0 <= examples <= most:
            raise Refused(f"examples: expected at most {most}, got {examples!r}", site)
        if self.finished or self._asked is None or turn != self.turn:
            closed = type(turn) is int and turn < self.turn
            raise Refused(f"late: round {turn} {'is closed' if closed else 'is not open'}", site)
        if (reason := self.left_out.get(site)) is not None:
            raise Refused(f"left out: {reason}", site)
        if site in self.taken:
            same = self._file(site).read_bytes() == data
            raise Refused("doubled: the same message again" if same else "doubled: the first counts", site)
        if about.get("nonce") != self._asked["nonce"]:
            raise Refused("late: it answers an earlier opening of this round", site)
        if self.is_over:
            raise Refused("expired: the round was to close before it came", site)

    @property
    def _plain(self) -> Steps:
        # A private method has `PrivateSteps`, but no plain uploads.
        assert isinstance(self._steps, Steps)
        return self._steps

    def _message(self, site: str) -> Message:
        """Return the class statistics in a site's stored answer as a `Message`."""
        examples = {self._numbers[site]: self.taken[site]}
        sent = self._plain.total(examples, lambda _: self._read(site), self._expected())
        return jax.tree.map(np.asarray, Message(sent.rows.items, sent.matrix))

    def _aside(self, site: str | None, reason: str) -> Receipt:
        line = {"time": self._now(), "round": self.turn, "site": site, "reason": reason}
        with (self.folder / "aside.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
        return Receipt(site, reason)
