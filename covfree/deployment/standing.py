"""Load a federation's progress from the server's folder: closed rounds, and answers to the open round."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.core.atomic import remove_abandoned
from covfree.deployment.envelope import SERVER, unseal
from covfree.deployment.machine import SUFFIX, Machine, unflattened
from covfree.deployment.named import candidates_in
from covfree.deployment.sums import Sums
from covfree.heads.file import save_head
from covfree.rounds.adding import Parts
from covfree.secure import STEPS


class Choice(NamedTuple):
    """What sites chose among candidates, by examples that they kept aside; ``str`` gives a line of text.

    Attributes:
        taken: the chosen candidate's name.
        means: each candidate's mean error or loss, by its name; NaN without examples.
        by: what was counted: ``"errors"`` or ``"losses"``.
        counted: the number of examples kept aside.
        sites: the number of sites that took part, also those that kept no example aside.
    """

    taken: str
    means: dict[str, float]
    by: str
    counted: int
    sites: int

    def __str__(self) -> str:
        """Return a line of text: how many sites took part, their choice, and candidates' errors or losses.

        If no site counted, or several candidates are equal, the line says that the first one was taken.
        """
        if not self.counted:
            return f"no site counted {self.by}, so the first candidate was taken: {self.taken}"
        shown = ", ".join(
            f"{name} {100 * mean:.1f} %" if self.by == "errors" else f"{name} {mean:.3f}"
            for name, mean in self.means.items()
        )
        kept = f"{self.by} on {self.counted:,} examples kept aside"
        ties = [*self.means.values()].count(self.means[self.taken])
        tied = f", the first of {ties} with equal {self.by}" if ties > 1 else ""
        return f"{self.sites} sites took part and chose {self.taken}{tied}; {kept}: {shown}"


class Standing(Machine):
    """The server's state, loaded from its folder.

    Attributes:
        turn: the number, from 0, of the open round, or of the next round if none is open. With secure sums,
            each step of a round counts as a round here, see `Description.place`.
        history: a record for each closed round: which sites' uploads were used, which were set aside at its
            end and why, how many sites were judged by their class means, and how many bytes were sent.
        stopped: why the federation ended before its last round; None if it did not.
        taken: for each site whose answer to the open round was taken, by name, the number of its examples; 0
            in secure sums.
    """

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the federation ended before its last round."""
        return self.stopped is not None or self.turn >= self._turns

    @property
    def expires(self) -> float | None:
        """When the open round closes, in seconds since 1970; None if none is open, or without deadline."""
        return None if self._asked is None else self._asked["expires"]

    @property
    def is_over(self) -> bool:
        """Whether the open round is past its deadline."""
        return self.expires is not None and self._now() > self.expires

    @property
    def left_out(self) -> dict[str, str]:
        """The sites whose later uploads do not count, each with the reason."""
        late = "all rounds need the sites of the first, and this one was not among them"
        gone = {site: late for site in self._numbers if self._same and site not in self._same}
        return gone | {site: why for record in self.history for site, why in record["rejected"].items()}

    @property
    def missing(self) -> list[str]:
        """The sites whose answers to the open round may still come: not those that left or were left out."""
        gone = {*self.taken, *self.left_out, *self._left}
        return [site for site in self._there if site not in gone]

    @property
    def result(self) -> Any:
        """The algorithm's result so far, such as a head; None if there is none yet."""
        return self._steps.result(self._state)

    @property
    def choice(self) -> Choice | None:
        """What sites chose among an algorithm's candidates, such as methods, and each candidate's errors.

        None if the algorithm has no candidates (see `covfree.select`), or before sites could choose.
        """
        try:
            told = self._steps.report(self._state)
            if "taken" not in told or self._counted.max() < 0:
                return None
            by = "errors" if "errors" in told else "losses"
            found, names = np.asarray(told[by]).tolist(), candidates_in(self.description.algorithm)
            if len(names) != len(found):  # an algorithm of the user's own
                names = [f"candidate {i}" for i in range(len(found))]
            counted = int(told["counted"])
            sites = int((self._counted == self._counted.max()).sum()) if counted else 0
            means = dict(zip(names, found, strict=True))
            choice = Choice(names[int(told["taken"])], means, by, counted, sites)
            str(choice)  # raises an error if the choice cannot be printed later
            return choice
        except Exception:  # a user's own algorithm may report anything, and must not lose its head for it
            return None

    def head_file(self) -> bytes:
        """Return the bytes of the head's file, which also says what sites chose, if they had a choice."""
        own, choice = self.description, self.choice
        origin = choice and {"federation": own.identity, "taken": choice.taken, "sites": choice.sites}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "head.npz"
            save_head(self.result, path, class_names=own.class_names, dim=own.dim, origin=origin)
            return path.read_bytes()

    @property
    def counted(self) -> list[str]:
        """The sites with at least one upload in the result; uploads that only count errors are not in it."""
        own, rounds = self.description, len(self._items)
        if len(candidates_in(own.algorithm)) > 1 and rounds == own.num_rounds:
            rounds -= 1  # in the last round sites only chose among the candidates
        turns = range(rounds)
        if own.sums is not None:
            turns = range(STEPS.index("mask"), rounds * len(STEPS), len(STEPS))
        found = {site for turn in turns for site in self.history[turn]["sites"]}
        return [site for site in self._numbers if site in found]

    @property
    def _there(self) -> list[str]:
        """The sites from which the open turn takes answers."""
        # In a secure sum, only sites that answered the previous step go on.
        return self.history[-1]["sites"] if self._step in STEPS[1:] else [*self._numbers]

    @property
    def _step(self) -> str:
        return self.description.place(self.turn)[1]

    @property
    def _same(self) -> set[str]:
        """The names of the sites that must answer now, as all rounds need the sites of the first round.

        Empty if any site may answer: in the first round, without secure sums, or if the algorithm lets sites
        change between rounds.
        """
        later = self._step in STEPS and self.turn >= len(STEPS)
        return (
            set(self.history[STEPS.index("mask")]["sites"])
            if later and self._algorithm.same_clients
            else set()
        )

    def _about(self, kind: str, expires: float | None) -> dict[str, Any]:
        return {
            "kind": kind,
            "sender": SERVER,
            "federation": self.description.identity,
            "agreed": self.description.agreed,
            "turn": self.turn,
            "nonce": secrets.token_hex(16),
            "expires": expires,
            # For each closed round, how many rows all sites together sent for each table of the uploads. From
            # these numbers a site derives the shapes of the server's state, see `Steps.skeleton`.
            "items": self._items,
            "left_out": self.left_out,
        }

    def _file(self, sender: str, turn: int | None = None) -> Path:
        return self.folder / f"round-{self.turn if turn is None else turn:05d}" / f"{sender}{SUFFIX}"

    def _load(self) -> None:
        """Load from the folder the state after closed rounds, and the answers to the open round."""
        self._numbers = {site: number for number, site in enumerate(self.description.sites)}
        self._sums: Sums | None = None
        self.turn, self.stopped, self._items = 0, None, list[list[int]]()
        self.history = list[dict[str, Any]]()
        # The last turn whose total includes each site's upload. It tells a site whether its last upload was
        # used, and so whether to go on with its memory after that upload or before it.
        self._counted = np.full(len(self._numbers), -1, np.int32)
        self._form: Parts | None = None
        self._state, _ = self._steps.start()
        own = {SERVER: self.description.server}
        if self._path.exists():
            about, arrays = unseal(self._path.read_bytes(), own)
            self.turn, self.stopped = about["turn"], about["stopped"]
            self.history, self._items = about["history"], about["items"]
            self._counted = arrays["counted"]
            self._state = unflattened(self._steps.skeleton(self._items), arrays, "state")
        self._asked: dict[str, Any] | None = None
        self.taken: dict[str, int] = {}
        # Sites that said that they do not answer the open turn. Not on disk: asked again, they say so again.
        self._left = set[str]()
        asked = self._file(SERVER)
        if self.finished or not asked.parent.exists():
            return
        remove_abandoned(asked.parent)
        if asked.exists():  # `Server.close` removes it if sites left
            self._asked = unseal(asked.read_bytes(), own).about
        for site in self._numbers:
            if (file := self._file(site)).exists():
                self.taken[site] = unseal(file.read_bytes(), self.description.sites).about["examples"]
