"""Signals end the process at once."""

import os
import subprocess
import sys

_CODE = """
import os, signal
from pathlib import Path
from covfree.core.interrupts import handle_signals
from covfree.studies.run_folder import make_folder
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
handle_signals()
signal.raise_signal(signal.SIGINT)
print("runs on")
signal.signal(signal.SIGINT, signal.default_int_handler)
handle_signals()
make_folder(Path("."), "compare")
try:
    os.kill(os.getpid(), signal.SIGINT)
finally:
    print("not reached")
"""


# That SIGTERM ends it too: tests/cli/test_stopping.py.
def test_the_process_ends(tmp_path):
    """At once, not through code that might swallow an exception; what is printed is not lost.

    Where Ctrl-C was ignored, as a shell starts what runs in its background, it stays so.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = (130, "runs on\n", "covfree: interrupted; the same command with --resume goes on\n")
    assert (done.returncode, done.stdout, done.stderr) == expected
