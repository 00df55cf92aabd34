"""How far a command is: bars on terminals, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from covfree.studies import Begun, Job


def progress_bar(width: int = 40) -> Progress:
    """A bar on stderr, so that what is printed can be piped; a file or pipe gets no bar."""
    bar = BarColumn(bar_width=width)
    columns = (TextColumn("{task.description:<24}"), bar, MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class RunProgress:
    """Says on stderr which run is made: on a terminal beside a bar, elsewhere in a line when it begins.

    Args:
        name: how a run is called.
    """

    def __init__(self, name: Callable[[Job], str]) -> None:
        self._name, self._bar = name, progress_bar(width=20)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> RunProgress:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, begun: Begun) -> None:
        """Show a run that begins."""
        # Another seed's tables may have another size, for which some functions are compiled again: that is
        # not known before.
        doing = f"{self._name(begun.job)}{': compiling, then running' if begun.first else ''}"
        if self._bar.disable:
            print(f"covfree: run {begun.number} of {begun.total}: {doing}", file=sys.stderr, flush=True)
        else:
            self._bar.update(self._task, description=doing, completed=begun.number - 1, total=begun.total)
