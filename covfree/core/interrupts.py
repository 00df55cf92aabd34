"""Ctrl-C and SIGTERM end a program at once; its files keep the completed work, and ``--resume`` continues.

The handlers end the process without an exception. In jax's callbacks from compiled code, an exception may be
lost, so that the program goes on, or cause a segmentation fault.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# What is said after "interrupted"; commands whose runs can be resumed set it.
advice = ""
_SHOW_CURSOR = "\x1b[?25h"


def handle_signals() -> None:
    """Let Ctrl-C and SIGTERM print one line and end the process with exit code 130 or 143."""
    for number in _SIGNALS:
        # A process in a shell's background ignores Ctrl-C; leave it so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: Any) -> None:
    # A progress bar hides the cursor, so show it again.
    start = f"{_SHOW_CURSOR}\n" if os.isatty(2) else ""
    with suppress(OSError):
        # Bypass the buffer of stderr, which the interrupted code may be writing to.
        os.write(2, f"{start}covfree: {_SIGNALS[signal.Signals(number)]}{advice}\n".encode())
    with suppress(Exception):
        sys.stdout.flush()
    # Skip the interpreter's shutdown, during which compiled code may still be running.
    os._exit(128 + number)
