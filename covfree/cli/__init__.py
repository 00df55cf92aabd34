"""The command line, ``covfree``, with one function per command."""

from __future__ import annotations

import gc
import importlib.util
import io
import sys
import warnings
from typing import Any

_NEEDED = ("typer", "rich", "sklearn", "matplotlib", "jinja2", "optax")


def main(command: Any = None) -> None:
    """Run ``covfree``, or another typer command, on the process's arguments, and exit."""
    missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
    if missing:
        from covfree.core.optional import how_to_get

        sys.exit(f"covfree: the command line needs {', '.join(missing)}: {how_to_get('cli')}")
    for stream in (sys.stdout, sys.stderr):
        # Write a question mark if the terminal's encoding lacks a character such as γ or ±.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from covfree.cli.interrupts import handle_signals

    handle_signals()
    # Show a warning's message alone, without the line of code that warned.
    warnings.formatwarning = lambda message, *_: f"covfree: {message}\n"
    # Collect garbage less often: jax's tracing makes many long-lived objects, and each collection scans them.
    gc.set_threshold(50_000, 20, 50)
    from covfree.cli.app import run
    from covfree.core.cache import keep_compiled
    from covfree.core.threads import limit_lapack_threads

    # Limit LAPACK's threads: they wait in busy loops, on cores that other programs may need.
    limit_lapack_threads()
    keep_compiled()
    sys.exit(run(sys.argv[1:], *([] if command is None else [command])))
