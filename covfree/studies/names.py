"""Parse names with arguments, such as ``fedcof:shrinkage=0.1:head=ridge``; name options in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def parsed(text: str, expected: str) -> tuple[str, dict[str, Any]]:
    """Split a text into a name and its arguments.

    Args:
        text: ``name:argument=value:…``; the name may be a function of a file, ``mine.py:function``.
        expected: how errors begin, such as ``methods: expected a number such as fedcof:shrinkage=0.1``.

    >>> parsed("fedcof:shrinkage=0.1:head=ridge", "")
    ('fedcof', {'shrinkage': 0.1, 'head': 'ridge'})
    """
    name, *parts = text.split(":")
    if name.endswith(".py") and parts:
        name = f"{name}:{parts.pop(0).strip()}"
    return name.strip(), arguments(parts, expected, text)


def arguments(parts: list[str], expected: str, text: str) -> dict[str, Any]:
    """Convert the parts ``argument=value`` of a text to a dict; see `parsed`.

    >>> arguments(["shrinkage=0.1", "head=ridge"], "", "")
    {'shrinkage': 0.1, 'head': 'ridge'}
    """
    own = {}
    for part in parts:
        number, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{expected}, got {text!r}")
        number = number.strip().replace("-", "_")
        if number in own:
            raise ValueError(f"{expected.partition(':')[0]}: expected {number} once, got {text!r}")
        own[number] = as_number(value.strip())
    return own


def as_number(text: str) -> Any:
    """Convert a text to the bool, None, int or float that it spells; return other texts as they are."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def option_text(name: str, value: Any) -> str:
    """Format an option's value for a command line: a list with commas between its values.

    A list of one seed gets a comma after the seed.

    >>> option_text("alpha", [0.1, 0.5]), option_text("seeds", [3])
    ('0.1,0.5', '3,')
    """
    if not isinstance(value, list):
        return str(value)
    # End a list of one seed with a comma: "3," is the seed 3, but "3" means three seeds.
    return ",".join(map(str, value)) + "," * (name == "seeds" and len(value) == 1)


@contextmanager
def of_options(*same: str, **named: str) -> Iterator[None]:
    """Begin errors about an argument, ``argument: …``, with the option that gives it.

    ``same`` are arguments whose option has the same name; ``named`` has other arguments' options.
    """
    try:
        yield
    except (TypeError, ValueError, FileNotFoundError) as error:
        name, colon, text = str(error).partition(":")
        option = {**dict(zip(same, same, strict=True)), **named}.get(name)
        if option is None:
            raise
        raise ValueError(f"--{option}{colon}{text}") from error
