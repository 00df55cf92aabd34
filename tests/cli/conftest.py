"""The command line in process: what it returns, prints, and says on stderr."""

from functools import cache
from typing import NamedTuple

import pytest
import typer.main

from covfree.cli.app import run
from covfree.studies import present
from covfree.studies.plots import style as figures

# Few clients, and an α with about as many pairs at every seed, so that all runs share compiled functions.
SMALL = ("compare", "--clients", "6", "--alpha", "2")


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def is_one_line(self) -> bool:
        """Whether this is how a bad argument is reported: one line on stderr, code 2, nothing else."""
        return (
            self.code == 2
            and self.out == ""
            and self.err.startswith("covfree: ")
            and self.err.endswith("\n")
            and self.err.count("\n") == 1
            and len(self.err.strip()) > len("covfree:")
        )

    def refuses(self, text: str) -> bool:
        """Whether this is how a bad argument is reported, and the line has this text."""
        return self.is_one_line and text in self.err


_BUILT, _DRAWN = cache(typer.main.get_command), present._drawn


def _blank(path, *_):
    paths = [path.with_suffix(f".{suffix}") for suffix in figures.FORMATS]
    for each in paths:
        each.write_bytes(b"")
    return paths


@pytest.fixture(scope="module", autouse=True)
def built():
    """Lets the parser of all commands be built once, not at each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", _BUILT)
        yield


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Makes pictures empty files, as to draw one takes seconds; a test that looks asks for `pictures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(present, "_drawn", _blank)
        yield


@pytest.fixture
def pictures(monkeypatch):
    """Draws pictures again."""
    monkeypatch.setattr(present, "_drawn", _DRAWN)


@pytest.fixture
def cli(capsys):
    """Runs the command line, e.g. ``cli("compare", "--seeds", "1")``."""

    def call(*arguments) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def compare(cli):
    """Runs ``compare`` on few clients of the digits; what is given comes last and wins."""
    return lambda *arguments: cli(*SMALL, *arguments)
