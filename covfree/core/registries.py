"""What is known by name: the type of the registries of methods, refined methods and algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")
Named = TypeVar("Named")


@dataclass(frozen=True)
class Entry(Generic[Made]):
    """A named method.

    Attributes:
        title: how tables name it; defaults that options may change stand in parentheses.
        make: the method with its defaults; takes the keywords in ``accepts``.
        accepts: the numbers that the command line may pass on.
    """

    title: str
    make: Callable[..., Made]
    accepts: frozenset[str] = frozenset()


class Registry(Mapping[str, Named]):
    """A read-only mapping from names. An unknown name is a `KeyError` that lists those that are known.

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
