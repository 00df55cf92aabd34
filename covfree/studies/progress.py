"""Progress of a command on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Listener:
    """Receives a study's progress. This base class ignores it."""

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        """Report that ``done`` of ``total`` steps are done.

        ``text`` is shown beside a bar; ``line`` is printed where there is no bar.
        """

    def say(self, text: str) -> None:
        """Report a message that is always shown."""


class Lines(Listener):
    """Prints progress as lines on stderr, the first after some seconds, so that short work prints none."""

    def __init__(self, every: float = 5.0) -> None:
        """Print at most one line in ``every`` seconds."""
        self.every, self._last = every, time.monotonic()

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        """Print how many steps are done, unless the last line is less than ``every`` seconds old."""
        if time.monotonic() - self._last >= self.every:
            say(f"{done} of {total} done, now {text}")
            self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print a message."""
        say(text)


class Progress(Listener):
    """A progress bar on stderr, shown within its ``with`` block; plain lines if stderr is no terminal.

    Nothing is written to stdout, so stdout can be piped.
    """

    def __init__(self, width: int = 20) -> None:
        # Imported here so that studies in Python do not need rich.
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
        """Steps per second; None until known."""
        return self.bar.tasks[0].speed

    def step(self, text: str, done: int, total: int, line: str = "") -> None:
        """Update the progress bar; where no bar is shown, print ``line``, unless it is empty."""
        if not self.bar.disable:
            self.bar.update(self._task, description=text, completed=done, total=total)
        elif line:
            print(line, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self.bar.console.print(f"covfree: {text}", markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a message on stderr, so that stdout can be piped."""
    print(f"covfree: {text}", file=sys.stderr)
