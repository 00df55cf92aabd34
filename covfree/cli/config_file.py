"""Options in a TOML file; those on the command line win."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

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
    known = {
        option.removeprefix("--").replace("-", "_"): parameter
        for parameter in context.command.params
        for option in parameter.opts
    }
    for own in ("config", "help"):
        known.pop(own, None)
    if unknown := sorted(name.replace("_", "-") for name in set(given) - set(known)):
        options = ", ".join(sorted(name.replace("_", "-") for name in known))
        raise ValueError(f"--config: {path}: unknown {', '.join(unknown)}; expected some of {options}")
    # Options that take one number are of its type, those that take several are texts.
    context.default_map = {
        known[name].name: _text(path, name, value, many=known[name].type.name == "text")
        for name, value in given.items()
    }
    return path


def _text(path: Path, name: str, value: Any, *, many: bool) -> str:
    """A value as the command line would have it: the option's own type takes it from there."""
    if many and isinstance(value, list) and value and all(isinstance(x, str | int | float) for x in value):
        # The last comma makes a list of one seed a list.
        return "".join(f"{each}," for each in value) if name == "seeds" else ",".join(map(str, value))
    if isinstance(value, str | bool | int | float):
        return str(value)
    option, lists = name.replace("_", "-"), ", a list of these" if many else ""
    raise ValueError(
        f"--config: {path}: {option}: expected text, a number{lists}, true or false, got {value!r}"
    )


Config = Annotated[
    Path | None,
    typer.Option(
        callback=_read,
        is_eager=True,
        help="A TOML file with any of these options, such as rounds = 100; the command line's win.",
    ),
]
