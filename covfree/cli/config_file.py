"""Options in a TOML file; those on the command line win."""

from __future__ import annotations

import tomllib
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer


def _read(context: Any, path: Path | None) -> Path | None:
    """Take the file's values as the defaults of the command's options.

    Raises:
        ValueError: if the file is no TOML, names what is no option, or a value is none.
        FileNotFoundError: if there is no such file.
    """
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"--config: {path}: no such file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config: {path}: expected TOML ({error})") from error
    # Dashes and underscores are the same.
    given = {name.replace("-", "_"): value for name, value in content.items()}
    for name, value in content.items():
        if isinstance(value, dict):
            raise ValueError(f"--config: {path}: expected options without sections, got the section [{name}]")
    kinds = get_type_hints(context.command.callback)
    known = {
        option.removeprefix("--").replace("-", "_"): parameter.name
        for parameter in context.command.params
        for option in parameter.opts
    }
    for own in ("config", "help"):
        known.pop(own, None)
    if unknown := sorted(name.replace("_", "-") for name in set(given) - set(known)):
        options = ", ".join(sorted(name.replace("_", "-") for name in known))
        raise ValueError(f"--config: {path}: unknown {', '.join(unknown)}; expected some of {options}")
    context.default_map = {
        known[name]: _text(path, name, value, kinds[known[name]]) for name, value in given.items()
    }
    return path


def _text(path: Path, name: str, value: Any, kind: Any) -> str:
    """A value as the command line would have it, if it is of the option's type."""
    kind = next(each for each in get_args(kind) or (kind,) if each is not NoneType)
    if kind is str and isinstance(value, list) and all(isinstance(x, str | int | float) for x in value):
        # The last comma makes a list of one seed a list.
        return "".join(f"{each}," for each in value) if name == "seeds" else ",".join(map(str, value))
    expected, fits = (
        "text",
        isinstance(value, str | int | float) and not isinstance(value, bool),
    )
    if issubclass(kind, Enum):
        choices = [each.value for each in kind]
        expected, fits = f"one of {', '.join(choices)}", value in choices
    elif kind is not str:
        expected, types = {
            bool: ("true or false", (bool,)),
            int: ("a whole number", (int,)),
            float: ("a number", (int, float)),
        }.get(kind, ("a path", (str,)))
        fits = type(value) in types
    if not fits:
        raise ValueError(f"--config: {path}: {name.replace('_', '-')}: expected {expected}, got {value!r}")
    return str(value)


Config = Annotated[
    Path | None,
    typer.Option(
        callback=_read,
        is_eager=True,
        help="A TOML file with any of these options, such as rounds = 100; the command line's win.",
    ),
]
