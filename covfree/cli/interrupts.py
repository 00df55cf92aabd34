"""Ctrl-C and SIGTERM: a command stops, keeps what there is, and says how to go on."""

from __future__ import annotations

import signal
from typing import Any


class Terminated(BaseException):
    """What SIGTERM raises; no `KeyboardInterrupt`, which the argument parser would catch."""


class Stopped(Exception):
    """A command that was stopped: what it says, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def raise_terminated() -> None:
    """Let SIGTERM raise `Terminated` in the main thread, once: a second one ends the process."""

    def handle(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, handle)


def exit_code(error: BaseException) -> int:
    """128 plus the signal's number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 143 if isinstance(error, Terminated) else 130


def stopped_by(error: BaseException) -> str:
    """How messages name it."""
    return "terminated" if isinstance(error, Terminated) else "interrupted"
