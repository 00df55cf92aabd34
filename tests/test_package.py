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
    "PIL",
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


def test_members_of_exports_have_docstrings():
    """The exports' own docstrings are looked at in tests/test_docs.py."""
    bare = []
    for name in EXPORTS:
        export = getattr(covfree, name)
        for member, value in vars(export).items() if isinstance(export, type | types.ModuleType) else ():
            if isinstance(export, types.ModuleType):
                ours = getattr(value, "__module__", "").startswith("covfree")
                counts = ours and (inspect.isclass(value) or inspect.isfunction(value))
            else:
                counts = isinstance(value, types.FunctionType | property | classmethod)
            if counts and not member.startswith("_") and not inspect.getdoc(value):
                bare.append(f"covfree.{name}.{member}")
    assert bare == []


def test_version_is_that_of_the_metadata():
    from importlib.metadata import version

    assert covfree.__version__ == version("covfree")


def test_an_import_brings_nothing_heavy_starts_no_device_and_sets_no_option():
    """Late modules are there when they are used, and not before."""
    code = f"""
import sys, jax
modules, options = set(sys.modules), dict(jax.config.values)
import covfree
print([module for module in {HEAVY} if module in set(sys.modules) - modules])
print([name for name in covfree._LATE if f"covfree.{{name}}" in sys.modules])
from jax._src import xla_bridge
print(bool(xla_bridge._backends), dict(jax.config.values) == options)
print(covfree.rounds.run.__name__, covfree.finetune.fedavg.__name__, covfree.testing.check_head.__name__)
print(covfree.studies.Study.__name__, set(covfree._LATE) <= set(dir(covfree)), hasattr(covfree, "nothing"))
"""
    assert run(code).split("\n") == ["[]", "[]", "False True", "run fedavg check_head", "Study True False"]


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
