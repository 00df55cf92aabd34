"""The package as a whole: what it exports and what importing it costs."""

import inspect
import os
import re
import statistics
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import covfree

HEAVY = [
    "flax",
    "optax",
    "sklearn",
    "matplotlib",
    "typer",
    "rich",
    "jinja2",
    "safetensors",
    "pandas",
    "scipy.stats",
    "flwr",
    "chex",
    "hypothesis",
    "covfree.testing",
]
EXPORTS = sorted(
    name
    for name, value in vars(covfree).items()
    if not name.startswith("_") and getattr(value, "__module__", value.__name__).startswith("covfree")
)


def run(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    ).stdout.strip()


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_have_docstrings(name):
    export = getattr(covfree, name)
    assert inspect.getdoc(export), f"covfree.{name} has no docstring"
    if inspect.isclass(export):
        for member, value in vars(export).items():
            if not member.startswith("_") and isinstance(value, (types.FunctionType, property, classmethod)):
                assert inspect.getdoc(value), f"covfree.{name}.{member} has no docstring"
    if isinstance(export, types.ModuleType):
        for member, value in vars(export).items():
            ours = getattr(value, "__module__", "").startswith("covfree")
            if not member.startswith("_") and ours and (inspect.isclass(value) or inspect.isfunction(value)):
                assert inspect.getdoc(value), f"covfree.{name}.{member} has no docstring"


def test_version_is_that_of_the_metadata():
    from importlib.metadata import version

    assert covfree.__version__ == version("covfree")


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, jax; before = set(sys.modules); import covfree; "
        f"print([m for m in {HEAVY} if m in set(sys.modules) - before])"
    )
    assert run(code) == "[]"


def test_late_modules_are_there_when_they_are_used_and_not_before():
    code = (
        "import sys, covfree; before = [n for n in covfree._LATE if f'covfree.{n}' in sys.modules]; "
        "print(before, covfree.rounds.run.__name__, covfree.finetune.fedavg.__name__, "
        "covfree.testing.check_head.__name__, covfree.studies.Study.__name__, "
        "set(covfree._LATE) <= set(dir(covfree)), hasattr(covfree, 'nothing'))"
    )
    assert run(code) == "[] run fedavg check_head Study True False"


def test_import_starts_no_device_and_sets_no_option():
    code = (
        "import jax; before = dict(jax.config.values); import covfree; from jax._src import xla_bridge; "
        "print(bool(xla_bridge._backends), dict(jax.config.values) == before)"
    )
    assert run(code) == "False True"


@pytest.mark.slow
def test_import_costs_little_more_than_jax(tmp_path):
    # Beside jax's own, in one process, so that the machine's speed and load cancel; the median of several.
    code = (
        "import time; first = time.perf_counter(); import jax, jax.numpy; second = time.perf_counter(); "
        "import covfree; print((time.perf_counter() - second) / (second - first))"
    )
    # With byte code, as an installed package has, whatever this environment says of writing it.
    written = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    run(code, **written)
    assert statistics.median(float(run(code, **written)) for _ in range(7)) <= 0.45


def test_the_readme_of_a_package_index_has_no_relative_links():
    """As soon as the project has an address, by its metadata; without one it is the README as it is."""
    core = pytest.importorskip("hatchling.metadata.core")
    manager = pytest.importorskip("hatchling.plugin.manager")
    root = Path(__file__).parent.parent
    config = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    written = (root / "README.md").read_text("utf-8")
    assert core.ProjectMetadata(str(root), manager.PluginManager(), config).core.readme == written
    config["project"]["urls"]["Repository"] = "https://example.org/one/covfree/"
    text = core.ProjectMetadata(str(root), manager.PluginManager(), config).core.readme
    links = re.findall(r"\]\(([^)]*)\)|<img[^>]*src=\"([^\"]*)\"", text)
    assert len(links) == len(re.findall(r"\]\(|<img", written)) > 20
    assert all(re.match(r"https?://|#", link or picture) for link, picture in links)
    for kind, file in (("raw", "docs/figures/covariance_from_means.png"), ("blob", "docs/methods.md")):
        assert f"https://example.org/one/covfree/{kind}/main/{file}" in text
        assert (root / file).exists()
