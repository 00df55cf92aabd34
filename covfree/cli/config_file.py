"""``--config``: reads options from a TOML file; options on the command line override them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from covfree.studies.names import option_text


def _read(context: Any, path: Path | None) -> Path | None:
    """Read a TOML file, make its values the defaults of the command's options, and return its path."""
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"--config: {path}: no such file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config: {path}: expected TOML ({error})") from error
    known = {
        option.removeprefix("--"): parameter.name
        for parameter in context.command.params
        for option in parameter.opts
        if parameter.name not in ("config", "help")
    }
    # The file may write underscores for the dashes in options' names.
    given = {name.replace("_", "-"): value for name, value in content.items()}
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(
            f"--config: {path}: unknown {', '.join(unknown)}; expected some of {', '.join(sorted(known))}"
        )
    context.default_map = {known[name]: option_text(name, value) for name, value in given.items()}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        callback=_read,
        is_eager=True,
        help="A TOML file with any of these options.",
    ),
]
