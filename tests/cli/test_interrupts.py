"""Signals end the process at once."""

import os
import signal
import subprocess
import sys

_CODE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from covfree.studies.console import handle_signals
handle_signals()
sent = signal.Signals[sys.argv[1]]
"""


def ended(body, sent):
    done = subprocess.run(
        [sys.executable, "-c", _CODE + body, sent.name],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout.split("\n"), done.stderr


# That SIGTERM ends it too: tests/cli/test_stopping.py.
def test_the_process_ends():
    """At once, not through code that might swallow an exception; what is printed is not lost."""
    body = """
print("printed")
try:
    os.kill(os.getpid(), sent)
finally:
    print("not reached")
"""
    assert ended(body, signal.SIGINT) == (130, ["printed", ""], "covfree: interrupted\n")


def test_ctrl_c_stays_ignored_where_it_was():
    """As a shell starts what runs in its background."""
    body = """
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
handle_signals()
signal.raise_signal(signal.SIGINT)
print("runs on")
"""
    assert ended(body, signal.SIGINT) == (0, ["runs on", ""], "")
