"""What `make demo` takes from a fresh clone: seconds and megabytes of each part.

Run ``python benchmarks/demo.py [--out FILE]`` in a checkout, whose last commit is cloned twice: once without
pip's cache, once with it. If the machine does other work, seconds of the processor grow too, but far less
than those of the clock.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from common import parser, write

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = "import covfree.cli.app, sklearn.datasets, matplotlib.figure"
# The command line, which counts what it compiles.
RUN = """
import atexit, jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: event.endswith("backend_compile_duration") and compiled.append(event)
)
atexit.register(lambda: print(len(compiled), file=open("compiled.txt", "w")))
from covfree.cli import main
main()
"""


def spent(folder: Path, *command: str, **environment: str) -> dict[str, Any]:
    """Run a command in a folder; seconds of the clock, and of the processor."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, env=kept | environment, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    return {"seconds": wall, "processor": user + system}


def parts(folder: Path, **environment: str) -> dict[str, dict[str, Any]]:
    """Clone, set up and run."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    found = {
        "environment": spent(folder, "make", ".venv/bin/python"),
        "install": spent(folder, "make", ".venv/.cli", **environment),
    }
    files = (path for path in (folder / ".venv").rglob("*") if path.is_file() and not path.is_symlink())
    found["install"]["megabytes"] = sum(path.stat().st_blocks * 512 for path in files) / 2**20
    found["run"] = spent(folder, "make", "demo")
    found["imports alone"] = spent(folder, ".venv/bin/python", "-c", IMPORTS)
    return found


def compiled(folder: Path) -> dict[str, dict[str, Any]]:
    """The run of a clone that is set up, with jax's cache of compiled functions, which is empty at first."""
    recipe = subprocess.run(["make", "-n", "demo"], check=True, cwd=folder, capture_output=True, text=True)
    lines = recipe.stdout.replace("\\\n", " ").splitlines()
    (command,) = (line for line in lines if "covfree compare" in line)
    found = {}
    for name in ("run, jax's cache empty", "run, jax's cache filled"):
        subprocess.run(["rm", "-rf", "out/demo"], check=True, cwd=folder)
        found[name] = spent(
            folder,
            *(".venv/bin/python", "-c", RUN, *shlex.split(command)[1:]),
            JAX_COMPILATION_CACHE_DIR=str(folder / "functions"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )
        found[name]["functions"] = int((folder / "compiled.txt").read_text())
    return found


def main() -> None:
    """Print what each part takes, and write it as JSON."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = {"without pip's cache": parts(folder / "cold", PIP_NO_CACHE_DIR="1")}
        results["with pip's cache"] = parts(folder / "warm")
        results["compilation"] = compiled(folder / "warm")
    for title, found in results.items():
        print(title)
        for part, values in found.items():
            print(f"  {part:24}", *(f"{key} {value:,.1f}" for key, value in values.items()), sep="  ")
    write(arguments.out, parts=results)


if __name__ == "__main__":
    main()
