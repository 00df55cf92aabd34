"""Signals: nothing is raised in the midst of a step, and a second signal ends the process."""

import os
import signal
import subprocess
import sys

import pytest

_CODE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from covfree.cli.interrupts import Terminated, handle_signals, stop_here, stopping_between
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


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_step(sent):
    code, out, err = ended(
        """
with stopping_between("round"):
    with stopping_between("batch"):
        stop_here()
    try:
        os.kill(os.getpid(), sent)
        print("the step goes on")
    except BaseException as error:
        print("in its midst", error)
    try:
        stop_here()
    except (KeyboardInterrupt, Terminated) as error:
        print(type(error).__name__, flush=True)
    os.kill(os.getpid(), sent)
    print("not reached")
""",
        sent,
    )
    name = {signal.SIGINT: "KeyboardInterrupt", signal.SIGTERM: "Terminated"}[sent]
    assert out == ["the step goes on", name, ""], err
    # The second one is the system's.
    assert code == -sent
    assert err == "covfree: stops when this round is done; Ctrl-C again stops at once\n"


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_where_there_is_nothing_to_keep_the_process_ends(sent, code):
    """At once, not through code that might swallow an exception; what is printed is not lost."""
    body = """
with stopping_between("run"):
    pass
print("printed")
try:
    os.kill(os.getpid(), sent)
finally:
    print("not reached")
"""
    word = {130: "interrupted", 143: "terminated"}[code]
    assert ended(body, sent) == (code, ["printed", ""], f"covfree: {word}\n")


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
