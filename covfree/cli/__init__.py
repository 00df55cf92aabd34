"""The command line, ``covfree``, with one function per command."""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich", "sklearn", "matplotlib", "jinja2", "optax")


def main() -> None:
    """Run ``covfree`` on the process's arguments, and exit."""
    missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
    if missing:
        from covfree.core.optional import how_to_get

        sys.exit(f"covfree: the command line needs {', '.join(missing)}: {how_to_get('cli')}")
    from covfree.core.interrupts import handle_signals

    handle_signals()  # before imports that take a second; jax was imported with the package
    from covfree.cli.app import app
    from covfree.studies import console

    console.main(app)
