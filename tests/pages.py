"""The commands that a page tells its readers to type, and pages run as programs of their own."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax

from covfree.cli.app import run

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def programs(page: str) -> list[str]:
    """The Python of a page, by its path from the repository's root, that is no doctest."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n((?!>>>).*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page: str, *, but: tuple[str, ...] = ()) -> list[list[str]]:
    """Lines of a page's blocks that start with ``covfree``, as the shell would read them.

    Args:
        page: path from the repository's root.
        but: what must not be in a command: it takes minutes, or is for other files than the trial has.
    """
    text = "\n".join(_BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("covfree ")]
    found = [line for line in lines if not any(word in line for word in but)]
    assert len(found) < len(lines) or not but, f"{page} has no command with {but}: it need not be left out"
    assert found, f"{page} has no commands"
    return [shlex.split(line, comments=True)[1:] for line in found]


def type_in(command: list[str], capsys) -> str:
    """Run a command of the command line in this folder, and give what it printed; it must succeed."""
    arguments, file = command, None
    if ">" in command:
        place = command.index(">")
        arguments, file = command[:place], Path(command[place + 1])
    capsys.readouterr()
    code = run(arguments)
    out, err = capsys.readouterr()
    assert code == 0, f"covfree {shlex.join(arguments)} gave code {code}: {err}"
    if file is not None:
        file.write_text(out, encoding="utf-8")
    return out


@contextmanager
def optimising():
    """Let XLA optimise what is compiled here: a network that sees hundreds of images takes half the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def run_page(page: str, folder: Path) -> None:
    """Run a page's Python, top to bottom, in a process of its own that knows nothing of these tests."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "doctest", str(ROOT / page)],
        cwd=folder,
        env={**os.environ, "COVFREE_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_python(*command: str, cwd: Path = ROOT, **variables: str) -> None:
    """Run Python as a program of its own, with more variables; it must succeed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
