"""The papers' figures: for each a file that names its data, and the command that draws it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[1] / "figures"
_KEYS = {"title", "source", "needs", "command", "options"}


@dataclass(frozen=True)
class Figure:
    """A figure of a paper.

    Attributes:
        name: the file's, without its ending.
        title: what it shows.
        source: the paper and its number.
        needs: the paper's data and network.
        command: of ``covfree``, compare or finetune; or a script in ``experiments``.
        options: of the command, by name.
    """

    name: str
    title: str
    source: str
    needs: str
    command: str
    options: Mapping[str, Any]

    def arguments(self, more: Sequence[str], without: Sequence[str] = ()) -> list[str]:
        """Return the command line. What is given more comes last, and wins.

        Args:
            more: further words.
            without: names of options to leave out, because the data decides what they say.

        Raises:
            ValueError: if one of these is no option of the figure.
        """
        for name in without:
            if name not in self.options:
                raise ValueError(f"--without: expected some of {', '.join(self.options)}, got {name!r}")
        words = [self.command]
        for name, value in self.options.items():
            if name in without:
                continue
            if value is True:
                words.append(f"--{name}")
            else:
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                words += [f"--{name}", text.replace("methods.py:", f"{FIGURES / 'methods.py'}:")]
        return [*words, *more]


def figures() -> list[Figure]:
    """Read all figures, in the order of their names.

    Raises:
        ValueError: if a file lacks a key, or has another.
    """
    found = []
    for path in sorted(FIGURES.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if set(content) != _KEYS:
            raise ValueError(f"{path}: expected {', '.join(sorted(_KEYS))}, got {', '.join(sorted(content))}")
        found.append(Figure(path.stem, **content))
    return found


def find_figure(name: str) -> Figure:
    """Return the figure of a name.

    Raises:
        ValueError: if there is none; it lists those there are.
    """
    every = {figure.name: figure for figure in figures()}
    if name not in every:
        raise ValueError(f"figure: expected one of {', '.join(every)}, got {name!r}")
    return every[name]
