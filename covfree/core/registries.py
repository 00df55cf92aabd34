"""Types for the registries of methods and algorithms: an entry, and a read-only mapping from names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from inspect import signature
from typing import Generic, TypeVar

# Annotations of arguments that are numbers or booleans.
_NUMBER = re.compile(r"\b(bool|int|Scalar)\b")
# Names are similar if the ratio of `SequenceMatcher` is at least this.
_SIMILAR = 0.6

Made = TypeVar("Made")
Named = TypeVar("Named")


@dataclass(frozen=True)
class Entry(Generic[Made]):
    """An entry of the registry: how a method (or algorithm) is shown and made.

    Attributes:
        title: the method's name in tables; defaults that options may change are in parentheses.
        make: the function that makes the method; every argument has a default.
        family: what its clients send, in words; methods of a family share a colour in plots.
        linear: whether its head is linear, perhaps in mapped features, so that it can be trained in rounds.
    """

    title: str
    make: Callable[..., Made]
    family: str
    linear: bool = True

    @property
    def accepts(self) -> frozenset[str]:
        """Names of the arguments of ``make`` that are numbers or strings, as the command line passes them."""
        arguments = signature(self.make).parameters.values()
        return frozenset(
            argument.name
            for argument in arguments
            if isinstance(argument.default, (float, str)) or _NUMBER.search(str(argument.annotation))
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, which suggests the most similar known name; "" if none is similar.

    Of names that are equally similar, the first is suggested.

    >>> nearest("fednecm", ["fedncm", "fedcof"])
    '; did you mean fedncm?'
    """
    likeness = {each: SequenceMatcher(None, each, name).ratio() for each in known}
    best = max(likeness, key=likeness.__getitem__, default="")
    return f"; did you mean {best}?" if likeness.get(best, 0) >= _SIMILAR else ""


class Registry(Mapping[str, Named]):
    """A read-only mapping from names to entries. For an unknown name, the `KeyError` lists the known names.

    >>> Registry({"a": 1, "b": 2})["c"]
    Traceback (most recent call last):
        ...
    KeyError: "name: expected one of a, b, got 'c'"
    """

    def __init__(self, entries: Mapping[str, Named]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Named:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"name: expected one of {', '.join(self)}, got {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
