"""The command line: ``covfree compare`` and ``covfree partition``."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line; needs the ``cli`` extra."""
    missing = [
        name for name in ("typer", "rich", "sklearn", "matplotlib") if not importlib.util.find_spec(name)
    ]
    if missing:
        sys.exit(f"covfree: the command line needs {', '.join(missing)}: pip install 'covfree[cli]'")
    from covfree.cli.app import run

    sys.exit(run(sys.argv[1:]))
