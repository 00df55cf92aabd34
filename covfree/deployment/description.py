"""The description of a federation: all that its machines must agree on, in one small file of JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.atomic import replacing
from covfree.core.checks import check_positive
from covfree.core.types import LinearHead
from covfree.protocol.messages import check_class_names
from covfree.rounds.algorithm import Algorithm
from covfree.rounds.from_method import as_algorithm

_VERSION = 1
_KEY = re.compile("[0-9a-f]{64}")
# A site's name is that of files too.
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SERVER = "server"


@dataclass(frozen=True)
class Description:
    """What a federation is; whoever starts it writes it, and every machine reads the same file.

    Attributes:
        algorithm: a method or an algorithm of `covfree.finetune` by name, perhaps with numbers, such as
            ``"fedcof-refined:rounds=3"`` or ``"fedadam"``, which trains a linear head from zeros.
        class_names: [C], the classes by their numbers.
        dim: d, the size of a feature before the method's own map.
        sites: the public key of each site, by its name; see `new_key`. A site's number is its place among the
            sorted names.
        server: the server's public key, whose signature opens each round.
        extractor: what makes features, as ``covfree extract`` writes it into their file: ``backbone``,
            ``weights`` (the SHA-256 of their file), ``preprocessing``, ``computed_in`` and ``dtype``. Empty
            if sites have features from elsewhere, of which nothing is checked but d.
        rounds: the number of rounds of an algorithm that takes any number; else None.
        deadline: seconds from the opening of a round until it closes; None waits for all sites.
        fewest: the fewest sites whose answers close a round.
        max_examples: most examples of a site; clients that compute with padding pad to at most it.
        max_norm: largest norm of a feature; None for a bound that all messages give, as `covfree.collect`
            derives it.
        max_bytes: the largest message.
        seed: of all random draws.
        run: tells this federation from others with the same settings, such as the date or a random text.

    Raises:
        TypeError: if a field has another type.
        ValueError: if a value is out of its range, or the algorithm is not known.
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
    seed: int = 0
    run: str = ""

    def __post_init__(self) -> None:
        names = tuple(self.class_names)
        object.__setattr__(self, "class_names", check_class_names(names, len(names)))
        object.__setattr__(self, "sites", dict(sorted(self.sites.items())))
        # As a file holds it: tuples become lists.
        object.__setattr__(self, "extractor", json.loads(json.dumps(dict(self.extractor))))
        for name in ("dim", "fewest", "max_examples", "max_bytes"):
            check_positive(name, getattr(self, name))
        for name in ("deadline", "max_norm"):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and 0 < value < math.inf):
                raise ValueError(f"{name}: expected a number above 0 or None, got {value!r}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: expected an integer from 0 to 2**32 - 1, got {self.seed!r}")
        for name in self.sites:
            if not _NAME.fullmatch(name) or name == SERVER:
                raise ValueError(
                    f"sites: expected names of letters, digits, dots and dashes, none of them {SERVER!r}; "
                    f"got {name!r}"
                )
        keys = [*self.sites.values(), self.server]
        for key in keys:
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise ValueError(f"sites: expected public keys of 64 hexadecimal digits, got {key!r}")
        if len(set(keys)) < len(keys):
            raise ValueError("sites: expected another public key for each site and the server, got one twice")
        if not names or not self.fewest <= len(self.sites):
            raise ValueError(
                f"fewest: expected at most the {len(self.sites)} sites, and one class; got {self.fewest}"
            )
        made = self.make_algorithm()
        if (made.rounds is None) != (self.rounds is not None):
            wanted = "a number" if made.rounds is None else f"None, as it takes {made.rounds}"
            raise ValueError(f"rounds: expected {wanted} for {self.algorithm!r}, got {self.rounds!r}")
        if self.rounds is not None:
            check_positive("rounds", self.rounds)

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of the description, which every message bears."""
        return hashlib.sha256(self._json().encode()).hexdigest()

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return self.rounds or self.make_algorithm().rounds or 0

    @property
    def agreed(self) -> dict[str, Any]:
        """What a site's file of features must agree with; see `differences`."""
        return {"dim": self.dim, **self.extractor, "class_names": list(self.class_names)}

    def make_algorithm(self) -> Algorithm:
        """Make the algorithm.

        Raises:
            ValueError: if it is unknown or does not take its numbers.
        """
        from covfree.methods import registry
        from covfree.studies.names import parsed

        name, _ = parsed(self.algorithm, "algorithm: expected a number such as fedcof:shrinkage=0.1")
        classes = len(self.class_names)
        if name in registry():
            from covfree.studies.variants import variants

            try:
                (variant,) = variants([self.algorithm]).values()
            except ValueError as error:
                raise ValueError(f"algorithm: {str(error).removeprefix('methods: ')}") from error
            return as_algorithm(variant.method, num_classes=classes)
        from covfree.finetune import linear_model
        from covfree.finetune import registry as trained
        from covfree.studies.training import algorithm_of

        if name not in trained():
            known = ", ".join([*registry(), *trained()])
            raise ValueError(f"algorithm: expected one of {known}, got {name!r}")
        entry, numbers = algorithm_of(self.algorithm)
        start = LinearHead(jnp.zeros((self.dim, classes)), jnp.zeros(classes))
        return entry.make(linear_model(start), entry.head.client, entry.head.server, **numbers)

    def key(self) -> jax.Array:
        """The key of all random draws, as `covfree.rounds.run` takes it."""
        return jax.random.key(self.seed)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file."""
        with replacing(Path(path)) as file:
            file.write(f"{json.dumps(self._fields(), indent=2, ensure_ascii=False)}\n".encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Description:
        """Read the file.

        Raises:
            ValueError: if it holds something else; the error names the path.
            OSError: if it cannot be read.
        """
        try:
            fields = json.loads(Path(path).read_bytes())
            version = fields.pop("version")
            if version != _VERSION:
                raise ValueError(f"version: expected {_VERSION}, got {version!r}")
            return cls(**{**fields, "class_names": tuple(fields["class_names"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: expected the description of a federation ({error})") from error

    def _fields(self) -> dict[str, Any]:
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {"version": _VERSION, **own, "class_names": list(self.class_names)}

    def _json(self) -> str:
        return json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Name what differs between what a federation agreed on and what a site uses.

    >>> agreed = {"dim": 2, "weights": "81b6ae", "class_names": ["cat", "cow", "dog"]}
    >>> differences(agreed, {"dim": 2, "weights": "5793ff", "class_names": ["cow", "cat", "dog"]})
    ['weights: expected 81b6ae, got 5793ff', 'class_names: classes 0 and 1 are swapped']
    """
    # As JSON holds them: tuples become lists.
    wanted, own = (json.loads(json.dumps(dict(each))) for each in (expected, found))
    classes = [each.pop("class_names", None) for each in (wanted, own)]
    left, right = dict(_entries(wanted)), dict(_entries(own))
    texts = [
        f"{name}: expected {_shown(left.get(name))}, got {_shown(right.get(name))}"
        for name in {**left, **right}
        if left.get(name) != right.get(name)
    ]
    return texts + _renumbered(*classes)


def _entries(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict):
            yield from _entries(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    # Of a SHA-256 the first digits tell enough.
    return f"{value[:12]}…" if isinstance(value, str) and _KEY.fullmatch(value) else str(value)


def _renumbered(wanted: Any, own: Any) -> list[str]:
    if wanted == own:
        return []
    if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
        return [f"class_names: expected {len(wanted)} names, got {own if own is None else 'something else'}"]
    if missing := [name for name in wanted if name not in own]:
        return [f"class_names: expected {', '.join(map(repr, missing[:3]))} among them, got none such"]
    if len(own) != len(wanted):
        return [f"class_names: expected {len(wanted)} names, got {len(own)}"]
    place = {name: c for c, name in enumerate(own)}
    moved = [c for c, name in enumerate(wanted) if place[name] != c]
    swapped = [
        (c, place[wanted[c]]) for c in moved if own[c] == wanted[place[wanted[c]]] and c < place[wanted[c]]
    ]
    if 2 * len(swapped) == len(moved) <= 6:
        return [f"class_names: classes {a} and {b} are swapped" for a, b in swapped]
    shown = ", ".join(f"class {c} is {own[c]!r}, expected {wanted[c]!r}" for c in moved[:3])
    return [f"class_names: {shown}" + f" ({len(moved)} classes are renumbered)" * (len(moved) > 3)]
