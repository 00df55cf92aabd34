"""Ctrl-C and SIGTERM end a command at once: what is complete is in its files, and ``--resume`` goes on.

No exception is raised, as one is not safe wherever the program happens to be. Inside jax's callbacks from
compiled code it is swallowed, so that the command runs on, or it ends the process with a segmentation fault.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHOW_CURSOR = "\x1b[?25h"


def handle_signals() -> None:
    """Let Ctrl-C and SIGTERM end the process with one line, and the exit code 130 or 143."""
    for number in _SIGNALS:
        # What was started in the background of a shell ignores Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: Any) -> None:
    # A progress bar hides the cursor, and would not show it again.
    start = f"{_SHOW_CURSOR}\n" if os.isatty(2) else ""
    with suppress(OSError):
        # Past the buffer of stderr, which the interrupted code may be writing to.
        os.write(2, f"{start}covfree: {_SIGNALS[signal.Signals(number)]}\n".encode())
    with suppress(Exception):
        sys.stdout.flush()
    # Not through the interpreter's end, where compiled code may still run.
    os._exit(128 + number)
