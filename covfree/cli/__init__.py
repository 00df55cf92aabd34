"""The command line, ``covfree``: one function a command."""

from __future__ import annotations

import importlib.util
import io
import sys


def main() -> None:
    """Run the command line; needs the ``cli`` extra."""
    missing = [
        name for name in ("typer", "rich", "sklearn", "matplotlib") if not importlib.util.find_spec(name)
    ]
    if missing:
        sys.exit(f"covfree: the command line needs {', '.join(missing)}: pip install 'covfree[cli]'")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show γ or ± shows a question mark instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        from covfree.cli.app import run
        from covfree.threads import limit_lapack_threads

        # Whether anything else runs on the machine is not known.
        limit_lapack_threads()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
        print("covfree: interrupted", file=sys.stderr)
    sys.exit(code)
