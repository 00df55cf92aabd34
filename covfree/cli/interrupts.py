"""Ctrl-C and SIGTERM: a command stops where nothing is lost, keeps what there is, and says how to go on.

An exception that a signal raises wherever the program happens to be is not safe here. Inside jax's callbacks
from compiled code it is swallowed, so that the command runs on, or it ends the process with a segmentation
fault. So a signal only leaves a note, for which commands with something to keep look between their steps.
Other commands end at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SIGNALS = signal.SIGINT, signal.SIGTERM
_SHOW_CURSOR = "\x1b[?25h"


class Terminated(BaseException):
    """What SIGTERM raises; no `KeyboardInterrupt`, which the argument parser would catch."""


class Stopped(Exception):
    """A command that was stopped: what it says, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _State:
    """What signals find and leave.

    Attributes:
        step: what a command that stops between its steps calls one; None if the process ends at once.
        came: the signal that came, which is raised at the end of the step.
    """

    step: str | None = None
    came: int | None = None


def handle_signals() -> None:
    """Handle the first Ctrl-C or SIGTERM as this module says; a second one ends the process."""
    for number in _SIGNALS:
        # What was started in the background of a shell ignores Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


@contextmanager
def stopping_between(step: str) -> Iterator[None]:
    """Let signals wait for `stop_here` within this block.

    Args:
        step: what lies between two calls of `stop_here`, such as "run".
    """
    outer, _State.step = _State.step, step
    try:
        yield
    finally:
        _State.step = outer


def asked_to_stop() -> bool:
    """Whether a signal came."""
    return _State.came is not None


def stop_here() -> None:
    """Raise what the signal stands for, if one came.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        Terminated: after SIGTERM.
    """
    came, _State.came = _State.came, None
    if came is not None:
        raise KeyboardInterrupt if came == signal.SIGINT else Terminated


def exit_code(error: BaseException) -> int:
    """128 plus the signal's number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 143 if isinstance(error, Terminated) else 130


def stopped_by(error: BaseException) -> str:
    """How messages name it."""
    return "terminated" if isinstance(error, Terminated) else "interrupted"


def kept_in(out: Path | None) -> str:
    """What becomes of the runs of a command that was stopped."""
    if out is None:
        return "with --out DIR they would have been kept"
    return f"{out} keeps what is done, and the same command with --resume goes on"


def stopped_after(error: BaseException, done: str, out: Path | None) -> Stopped:
    """How a command ends that has shown what was done, such as "3 of 4 runs"."""
    return Stopped(f"{stopped_by(error)} after {done}; {kept_in(out)}", exit_code(error))


def _handle(number: int, _: Any) -> None:
    # By the system, so that compiled code cannot delay it.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    if _State.step is None:
        _say("interrupted" if number == signal.SIGINT else "terminated")
        with suppress(Exception):
            sys.stdout.flush()
        # Not through the interpreter's end, where compiled code may still run.
        os._exit(128 + number)
    _State.came = number
    _say(f"stops when this {_State.step} is done; Ctrl-C again stops at once")


def _say(text: str) -> None:
    """Write to stderr, past its buffer, which the interrupted code may be writing to."""
    # A progress bar hides the cursor, and would not show it again after a second signal.
    start = f"{_SHOW_CURSOR}\n" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{start}covfree: {text}\n".encode())
