"""Run a typer application as a program: handle signals, limit threads, print an error as one line."""

from __future__ import annotations

import gc
import io
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from covfree.core.cache import keep_compiled
from covfree.core.interrupts import handle_signals
from covfree.core.lapack import limit_lapack_threads
from covfree.core.registries import nearest


def main(app: Callable[..., Any]) -> None:
    """Run a typer application on the process's arguments, and exit."""
    for stream in (sys.stdout, sys.stderr):
        # Write a question mark if the terminal's encoding lacks a character such as γ or ±.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    handle_signals()
    # Show a warning's message alone, without the line of code that warned.
    warnings.formatwarning = lambda message, *_: f"covfree: {message}\n"
    # Collect garbage less often: jax's tracing makes many long-lived objects, and each collection scans them.
    gc.set_threshold(50_000, 20, 50)
    # Limit LAPACK's threads: they wait in busy loops, on cores that other programs may need.
    limit_lapack_threads()
    keep_compiled()
    sys.exit(run(app, sys.argv[1:]))


def run(app: Callable[..., Any], arguments: list[str]) -> int:
    """Run an application's command line and return its exit code.

    For an error, print one line; the code is then 2 for bad arguments, 130 for an interrupt, and else 1.
    """
    try:
        code = app(arguments, standalone_mode=False)
    # A TypeError is a bug, as the parser converts every argument, so let its traceback show.
    except (ValueError, FileNotFoundError) as error:
        return _error(str(error), 2)
    except OSError as error:
        return _error(str(error), 1)
    except ImportError as error:
        # An ImportError with a cause says which extra to install; without one it is a bug.
        if error.__cause__ is None:
            raise
        return _error(str(error), 1)
    except Exception as error:
        # The parser's exceptions (their class differs between releases of typer) have the message to print,
        # which is empty if the help was shown, and the exit code.
        if not hasattr(error, "format_message"):
            raise
        message, code = _parser_message(error), getattr(error, "exit_code", 2)
        return _error(message, code) if message else code
    # For an interrupt, the parser returns 130 without a message.
    return _error("interrupted", 130) if code == 130 else code or 0


def _error(message: str, code: int) -> int:
    print("covfree: " + " ".join(message.split()), file=sys.stderr)
    return code


def _parser_message(error: Exception) -> str:
    """Return the message of a parser's error, reworded if a value is no number or none of its choices."""
    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    number = re.fullmatch(r"Invalid value for '(--[\w-]+)': .*\bvalid (number|float|integer)\b.*", message)
    # The value is in the cause or, with an earlier release of typer, in the message.
    if number and (
        found := re.search(r"(?:input_value=|: )('.*?')(?:,| is)", f"{error.__cause__} {message}")
    ):
        return f"{number[1]}: expected a {'whole ' * (number[2] == 'integer')}number, got {found[1]}"
    choice = re.fullmatch(
        r"Invalid value for '(--[\w-]+)': (?:Value error, )?('.*') is not one of (.*?)\.?", message
    )
    if choice is None:
        return message
    option, came, choices = choice[1], choice[2], choice[3].replace("'", "")
    near = nearest(came.strip("'"), choices.split(", "))
    return f"{option}: expected one of {choices}, got {came}{near}"
