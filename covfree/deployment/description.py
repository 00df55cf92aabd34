"""Describe a federation: everything on which its machines must agree, in a small JSON file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covfree.core.atomic import replacing
from covfree.core.checks import check_above_zero, check_choice, check_positive, check_type
from covfree.deployment.envelope import check_keys
from covfree.deployment.named import algorithm_named, method_named
from covfree.deployment.private import Exact, PrivateSums
from covfree.deployment.sums import SecureSums
from covfree.privacy import Private, PrivateUpdates, Promise
from covfree.privacy.accounting import UNMASKED
from covfree.protocol.messages import check_class_names
from covfree.rounds.algorithm import Algorithm
from covfree.rounds.from_method import as_algorithm, sends_messages
from covfree.secure import STEPS, FixedPoint, Session, common_classes
from covfree.secure.messages import check_enough, session_named
from covfree.secure.words import Encoding

_VERSION = 1
_PARTS: dict[str, Any] = {"sums": SecureSums, "private": PrivateSums}
_CHANGED = "it was changed, or is of another version of covfree: ask the server's side for its file"


@dataclass(frozen=True)
class Description:
    """The settings of a federation, in a file that its author writes and all machines read.

    Attributes:
        algorithm: the name of a method or of an algorithm of `covfree.finetune`, perhaps with arguments, such
            as ``"fedcof-refined:rounds=3"`` or ``"fedadam"``, which trains from a linear head of zeros. If
            methods are joined by "or" (``"fedcof-or-fedncm"``), sites choose one, as `covfree.select` does.
        class_names: [C], the names of the classes, in the order of their labels.
        dim: d, the number of features of an example, before any feature map of the method.
        sites: the public key of each site, by its name; see `new_key`. A site's number is its index among the
            sorted names.
        server: the server's public key, whose signature opens each round.
        extractor: the settings with which features are made, as ``covfree extract`` writes them to a file of
            features: ``backbone``, ``weights`` (a SHA-256), ``preprocessing``, ``computed_in`` and ``dtype``.
            Empty if sites have features from elsewhere; then only d and class names are checked.
        rounds: the number of rounds if the algorithm has no fixed number; else None.
        deadline: the most seconds for which a round stays open for answers; None waits for all sites.
        fewest: the least number of sites whose answers close a round.
        max_examples: the largest number of examples of a site. Sites that pad their data (so that those of
            similar size share a compilation) pad to at most this number.
        max_norm: the largest norm of a feature vector; None for a bound derived from all messages, as in
            `covfree.collect`.
        max_bytes: the largest size of a message, in bytes.
        train: what an algorithm of `covfree.finetune` trains: the ``"head"`` on features; or, on images, the
            extractor's network (``"backbone"``) or ``"all"``.
        judge_sites: whether to leave out sites whose class means fail `covfree.diagnose_sites`.
        seed: the seed of the algorithm's random draws.
        sums: the settings of secure sums, in which the server sees only the sum of the sites' uploads. They
            need an algorithm whose uploads add up, and three sites or more; each round then takes the steps
            of `covfree.secure`. None if the server sees each upload.
        private: the privacy promise, if sites add noise to what they upload; it needs ``sums``. None without
            noise.
        run: a text that distinguishes federations with equal settings, such as the date or random characters.

    Raises:
        TypeError: if a field has another type.
        ValueError: if a value is out of its range, or the algorithm is unknown.
    """

    algorithm: str
    class_names: tuple[str, ...]
    dim: int
    sites: Mapping[str, str]
    server: str
    extractor: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    deadline: float | int | None = None
    fewest: int = 1
    max_examples: int = 100_000
    max_norm: float | int | None = None
    max_bytes: int = 2**30
    train: str = "head"
    judge_sites: bool = False
    seed: int = 0
    run: str = ""
    sums: SecureSums | None = None
    private: PrivateSums | None = None

    def __post_init__(self) -> None:
        names = tuple(self.class_names)
        object.__setattr__(self, "class_names", check_class_names(names, len(names)))
        object.__setattr__(self, "sites", dict(sorted(self.sites.items())))
        # Convert as a JSON file would: tuples become lists.
        object.__setattr__(self, "extractor", json.loads(json.dumps(dict(self.extractor))))
        for name in ("dim", "fewest", "max_examples", "max_bytes"):
            check_positive(name, getattr(self, name))
        for name in ("deadline", "max_norm"):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and 0 < value < math.inf):
                raise ValueError(f"{name}: expected a number above 0 or None, got {value!r}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: expected an integer from 0 to 2**32 - 1, got {self.seed!r}")
        check_keys(self.sites, self.server)
        if not names:
            raise ValueError("class_names: expected at least one class, got none")
        if self.fewest > len(self.sites):
            raise ValueError(
                f"fewest: expected at most {len(self.sites)}, the number of sites, got {self.fewest}"
            )
        check_choice("train", self.train, ("head", "backbone", "all"))
        if self.private is not None:
            if self.sums is None:
                raise ValueError(
                    "private: expected sums beside it, as noise is added inside secure sums; got sums=None"
                )
            if self.sums.neighbours not in (None, len(self.sites) - 1):
                raise ValueError(
                    "sums: neighbours: expected None with private (each site shares masks with all others), "
                    f"as the server could learn sums of fewer sites otherwise, got {self.sums.neighbours}"
                )
            if self.sums.holders is not None:
                raise ValueError(
                    f"sums: holders: expected None with private, whose noise hides each site, got "
                    f"{self.sums.holders}"
                )
        made = self._made(None)
        if self.train != "head" and "preprocessing" not in self.extractor:
            raise ValueError(f"train: expected 'head' without a network in extractor, got {self.train!r}")
        if (made.rounds is None) != (self.rounds is not None):
            wanted = "a number" if made.rounds is None else f"None, as it takes {made.rounds}"
            raise ValueError(f"rounds: expected {wanted} for {self.algorithm!r}, got {self.rounds!r}")
        if self.rounds is not None:
            check_positive("rounds", self.rounds)
        check_type("judge_sites", self.judge_sites, bool)
        if self.judge_sites and (self.sums is not None or not sends_messages(made)):
            raise ValueError(
                f"judge_sites: expected an algorithm whose sites send class means, as all of them do in the "
                f"first round of fedcof; got {self.algorithm!r}, whose sites send sums alone"
            )
        self.promise  # noqa: B018
        if self.sums is not None:
            try:
                check_enough("sites", len(self.sites))
                if self.sums.holders is not None and self.sums.holders > len(self.sites):
                    raise ValueError(
                        f"holders: expected at most the number of sites, {len(self.sites)}, got "
                        f"{self.sums.holders}"
                    )
                if self.sums.bound is not None:
                    check_above_zero("bound", self.sums.bound)
                self.session(0, 1)
                self.words  # noqa: B018
            except ValueError as error:
                raise ValueError(f"sums: {error}") from error

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of the description; every message contains it, to name its federation."""
        text = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return self.rounds or self.make_algorithm().rounds or 0

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of a round's steps; in each step the server asks all sites, and sites answer."""
        return ("answer",) if self.sums is None else STEPS

    def place(self, turn: int) -> tuple[int, str]:
        """Return the round to which a turn belongs, from 0, and the name of the turn's step.

        A turn is one step of one round. Turns are numbered from 0, through all rounds.
        """
        number, step = divmod(turn, len(self.steps))
        return number, self.steps[step]

    def named(self, turn: int) -> str:
        """Describe a turn in words, such as ``"round 2 of 3, step mask"``."""
        number, step = self.place(turn)
        return f"round {number + 1} of {self.num_rounds}" + ("" if self.sums is None else f", step {step}")

    @cached_property
    def words(self) -> Encoding:
        """The encoding of an upload's numbers as words (integers modulo 2⁶⁴), which secure sums add."""
        if (made := self.noised) is not None:
            return Exact() if isinstance(made, Private) else made
        if self.sums is None or self.sums.bound is None:
            raise ValueError("bound: expected the largest absolute value of a number in an upload, got None")
        return FixedPoint(self.sums.bound, len(self.sites))

    def session(self, number: int, size: int) -> Session:
        """Make the session of a round: the settings of its secure sum.

        Args:
            number: the round, from 0.
            size: the number of words of an upload.
        """
        assert self.sums is not None
        # No other round has this name, so no site takes part in a round twice.
        name = f"{self.identity}, round {number}"
        keys = {site: bytes.fromhex(key) for site, key in enumerate(self.sites.values())}
        options = {"threshold": self.sums.threshold, "neighbours": self.sums.neighbours}
        return session_named(name, keys, size, least=max(2, self.fewest), **options)

    @property
    def agreed(self) -> dict[str, Any]:
        """What all sites' features must have in common: d, extractor and class names; see `differences`."""
        return {"dim": self.dim, **self.extractor, "class_names": list(self.class_names)}

    @property
    def example(self) -> np.ndarray:
        """One example of zeros: features [1, d], or an image [1, side, side, 3] if a network is trained."""
        if self.train == "head":
            return np.zeros((1, self.dim), np.float32)
        side = self.extractor["preprocessing"]["crop"]
        return np.zeros((1, side, side, 3), np.uint8)

    def make_algorithm(self, network: Any = None) -> Algorithm:
        """Make the algorithm that the description names.

        Args:
            network: the result of `covfree.deployment.load_network` if a network is trained; None if only
                heads are trained.

        Raises:
            ValueError: if the algorithm is unknown or does not accept the arguments in its name; if a
                network is missing, or is given although only heads are trained.
        """
        if (self.train == "head") != (network is None):
            wanted = "none, as heads are trained" if self.train == "head" else "that of load_network"
            raise ValueError(f"network: expected {wanted}, got {type(network).__name__}")
        return self._made(network)

    def _made(self, network: Any) -> Algorithm:
        """Make the algorithm that the description names, without the checks of `make_algorithm`.

        ``network`` is the network that the federation trains. Without it, the algorithm trains only a head,
        but has the same number of rounds.
        """
        classes = len(self.class_names)
        made = None if method_named(self.algorithm) is None else self.noised
        if isinstance(made, Private):
            sums = as_algorithm(made.method, num_classes=classes)
            return replace(sums, rounds=len(made.grids), same_clients=True)
        hidden = self.sums is not None
        own = algorithm_named(self.algorithm, self.dim, classes, self.train, network, sums=hidden)
        if self.private is not None:
            # Weigh all clients alike: an upload's weight counts towards the norm that is clipped.
            own = replace(own, params=own.params._replace(uniform=jax.numpy.asarray(True)))
        holders = None if self.sums is None else self.sums.holders
        return own if holders is None else common_classes(own, holders)

    @cached_property
    def noised(self) -> Private | PrivateUpdates | None:
        """The private method or, for training, the encoding that adds noise to uploads; or None."""
        if self.private is None:
            return None
        method = method_named(self.algorithm)
        if method is not None and self.train != "head":
            raise ValueError(f"private: expected train='head' of a method, got {self.train!r}")
        made = self.private.made(method, self.fewest, self.rounds or 1, len(self.sites), self.seed)
        if (self.private.projection or 0) > self.dim:
            raise ValueError(
                f"projection: expected at most the {self.dim} features, got {self.private.projection}"
            )
        return made

    @property
    def promise(self) -> Promise | None:
        """The privacy promise: ε, δ and what they protect; None without noise."""
        return None if self.noised is None else self.noised.promise

    @property
    def promised(self) -> str | None:
        """The privacy promise in words; None without noise.

        The text also says how many sites would have to help a lying server before it could see single
        uploads.
        """
        if (promise := self.promise) is None:
            return None
        session = self.session(0, 1)
        helpers = max(1, 2 * session.threshold - session.degree)
        masks = (
            f"this federation's masks hide single uploads if fewer than {helpers} sites help a lying server"
        )
        return str(promise).replace(UNMASKED, masks)

    def key(self) -> jax.Array:
        """Return the PRNG key of all random draws, made from ``seed``."""
        return jax.random.key(self.seed)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the description to a file."""
        with replacing(Path(path)) as file:
            file.write(f"{json.dumps(self._fields(), indent=2, ensure_ascii=False)}\n".encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Description:
        """Read a description from a file.

        Raises:
            ValueError: if the file contains no valid description; the error names the path.
            OSError: if the file cannot be read.
        """
        try:
            fields = json.loads(Path(path).read_bytes())
            version = fields.pop("version")
            if version != _VERSION:
                raise ValueError(f"version: expected {_VERSION}, got {version!r}")
            _check_entries(cls, fields)
            for name in {*_PARTS} & {*fields}:
                _check_entries(_PARTS[name], fields[name])
            parts = {name: part(**fields[name]) for name, part in _PARTS.items() if name in fields}
            return cls(**fields | parts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path}: expected the description of a federation ({error}); {_CHANGED}"
            ) from error

    def _fields(self) -> dict[str, Any]:
        own = dataclasses.asdict(self).items()
        # Leave out ``sums`` and ``private`` if None, so that older federations keep their identity.
        return {"version": _VERSION, **{name: x for name, x in own if name not in _PARTS or x is not None}}


def _check_entries(kind: type, found: Mapping[str, Any]) -> None:
    """Raise ValueError if a dataclass's JSON entries, ``found``, have an unknown name, or one is missing."""
    own = dataclasses.fields(kind)
    for name in found:
        if name not in {each.name for each in own}:
            raise ValueError(f"unknown entry {name!r}")
    missing = dataclasses.MISSING
    for each in own:
        if each.name not in found and each.default is missing and each.default_factory is missing:
            raise ValueError(f"no entry {each.name!r}")
