"""`make demo`: what it installs is enough for what it runs, and it writes what it tells people to look at."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# The command line where some modules are not installed.
RUN = """
import json, sys

class Absent:
    names = set(json.loads(sys.argv.pop(1)))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from covfree.cli import main
main()
"""


def installed(extra: str) -> set[str]:
    """The distributions that `pip install '.[extra]'` installs: what they require, and what that requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    queue = [Requirement(f"covfree[{extra}]")]
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        found.add(name)
        for part in ("", *requirement.extras):
            if (name, part) in seen:
                continue
            seen.add((name, part))
            if name == "covfree":
                needs = project["optional-dependencies"][part] if part else project["dependencies"]
            else:
                needs = requires(name) or []
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": part}):
                    queue.append(need)
    return found


def lines(target: str) -> str:
    """A target's recipe, with continued lines in one."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    return recipe[1].replace("\\\n", " ")


@pytest.mark.slow
def test_the_demo_runs_on_what_it_installs_and_writes_what_it_names(tmp_path):
    (extra,) = re.findall(r"^demo: \$\(VENV\)/\.(\w+)$", MAKEFILE, re.MULTILINE)
    brought = installed(extra)
    # What makes a network or a test takes twice the room.
    assert not brought & {"flax", "orbax-checkpoint", "pytest", "zensical", "tensorflow-datasets"}
    absent = [
        module
        for module, owners in packages_distributions().items()
        if not brought & set(map(canonicalize_name, owners))
    ]
    assert {"flax", "pytest"} <= set(absent)
    assert not {"jax", "sklearn", "optax"} & set(absent)
    (command,) = re.findall(r"/covfree (compare .*)", lines("demo"))
    # A seed is enough: the others import nothing more.
    options = command.replace("--seeds 5", "--seeds 1").split()
    arguments = [sys.executable, "-c", RUN, json.dumps(absent), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    (text,) = re.findall(r"define WHERE_NEXT\n(.*)endef", MAKEFILE, re.DOTALL)
    files = re.findall(r"^  (out/\S+)", text, re.MULTILINE)
    assert len(files) == 2
    results = json.loads((tmp_path / "out/demo/results.json").read_text(encoding="utf-8"))["results"]
    best = max(results, key=lambda each: each["accuracy_mean"])["method"]
    assert f"The method is {best}, which" in text.replace("\n", " ")
    # The table shows titles; a line below says which option each is.
    assert "fedcof-student is FedCOF, a covariance for each class" in " ".join(run.stdout.split())
    assert "fedcof-student is FedCOF, a covariance for each class" in (tmp_path / files[0]).read_text(
        encoding="utf-8"
    )
    assert all((tmp_path / file).stat().st_size > 1000 for file in files)


def test_what_the_demo_says_fits_a_terminal_and_can_be_typed():
    (text,) = re.findall(r"define WHERE_NEXT\n(.*)endef", MAKEFILE, re.DOTALL)
    said = text.replace("$(BIN)", ".venv/bin")
    assert max(map(len, said.splitlines())) <= 80
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"pip install -e '\.\[([\w,]+)\]'", said)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
