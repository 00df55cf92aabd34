"""How far a command is, on stderr: one bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Listener:
    """Who is told how far a study is. This one says nothing."""

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        """Take in what is done, of how much; `line` is for where no bar is."""

    def say(self, text: str) -> None:
        """Take in what is to be said whatever is shown."""


class Progress(Listener):
    """A bar while it is entered. What is printed can be piped, as all this is on stderr."""

    def __init__(self, width: int = 20) -> None:
        # Here, so that studies in Python need no rich.
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self.bar: Any = progress.Progress(
            progress.TextColumn("{task.description:<24}"),
            progress.BarColumn(width),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        self.bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    @property
    def speed(self) -> float | None:
        """Steps a second, if that is known yet."""
        return self.bar.tasks[0].speed

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        """Show how far it is beside the bar, or print the line, if there is one, where there is no bar."""
        if not self.bar.disable:
            self.bar.update(self._task, description=text, completed=done, total=total)
        elif line:
            print(line, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self.bar.console.print(f"covfree: {text}", markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Tell something on stderr, so that what is printed can be piped."""
    print(f"covfree: {text}", file=sys.stderr)
