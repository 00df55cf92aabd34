"""Bars that show how far a command is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bar(width: int = 40) -> Progress:
    """A bar on stderr, so that what is printed can be piped; a file or pipe gets no bar."""
    bar = BarColumn(bar_width=width)
    columns = (TextColumn("{task.description:<24}"), bar, MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
