"""The command line in process: what it returns, prints, and says on stderr."""

from typing import NamedTuple

import pytest

from covfree.cli.app import run

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
