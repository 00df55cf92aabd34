"""Names with numbers of their own, as texts: ``fedcof:shrinkage=0.1:head=ridge``."""

from __future__ import annotations

from typing import Any


def parsed(text: str, expected: str) -> tuple[str, dict[str, Any]]:
    """A name and numbers of its own.

    Args:
        text: ``name:number=value:…``.
        expected: what the error names: ``methods: expected a number such as fedcof:shrinkage=0.1``.

    Raises:
        ValueError: if a part is no number, or comes twice.

    >>> parsed("fedcof:shrinkage=0.1:head=ridge", "")
    ('fedcof', {'shrinkage': 0.1, 'head': 'ridge'})
    """
    name, *parts = text.split(":")
    own = {}
    for part in parts:
        number, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{expected}, got {text!r}")
        number = number.strip().replace("-", "_")
        if number in own:
            raise ValueError(f"{expected.partition(':')[0]}: expected {number} once, got {text!r}")
        own[number] = as_number(value.strip())
    return name.strip(), own


def as_number(text: str) -> Any:
    """True or false, an integer, a real number, or the text itself, such as 'auto'."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
