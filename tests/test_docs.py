"""The documentation keeps up with the code: every export is described, every link leads somewhere."""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import typer
from pages import commands, programs
from reference import MODULES, exports, sections

from covfree.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
STUDIES = [*(ROOT / "experiments").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
EXPORTS = [(module, name) for module in MODULES for name in exports(module)]


def value_of(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def test_exports_are_found():
    found = set(EXPORTS)
    assert {("covfree", "fit"), ("covfree.core.linalg", "solve"), ("covfree.data", "load")} <= found
    assert {
        ("covfree.data.partitions", "PARTITIONERS"),
        ("covfree.methods.field.recursive", "update"),
    } <= found
    assert not {name for _, name in found} & {"jax", "jnp", "annotations", "dataclass"}


def test_the_reference_has_every_name_and_the_page_every_module():
    listed = {id(value_of(module, name)) for _, module, names in sections() for name in names}
    for value in (value_of(module, name) for module, name in EXPORTS):
        assert (id(value) in listed) != inspect.ismodule(value)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(covfree[\w.]*)` \|", page, re.MULTILINE)) == MODULES


def test_every_export_has_a_docstring():
    bare = []
    for module, name in EXPORTS:
        value = value_of(module, name)
        if callable(value) or inspect.ismodule(value):  # data carries no docstring
            docstring = vars(value).get("__doc__") or inspect.getdoc(value)
            # What dataclasses and named tuples write by themselves is none.
            if not docstring or docstring.startswith(f"{name}("):
                bare.append(f"{module}.{name}")
    assert bare == []


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_resolves():
    wrong = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES, *STUDIES]:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            found = linked.is_relative_to(ROOT) and linked.exists()
            if not found or (anchor and anchor not in anchors(linked)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_every_program_is_run_by_a_test():
    """By tests that name its page; all other Python is a session, which pytest types in."""
    found = {page.name: len(programs(f"docs/{page.name}")) for page in PAGES}
    assert {name: number for name, number in found.items() if number} == {
        "backbones.md": 1,
        "deployment.md": 1,
        "from-pytorch.md": 3,
        "scale.md": 2,
        "your-own.md": 1,
    }


def test_every_command_is_understood(monkeypatch, tmp_path):
    """Options that are no longer there, and values that they do not take; tests/trials/ run some of them."""
    monkeypatch.chdir(tmp_path)
    for name in ("options.toml", "sweep.toml"):
        (tmp_path / name).touch()
    understood = []

    top = typer.main.get_command(app)
    groups = [top, top.commands["federation"]]
    for group in groups:
        for name, command in group.commands.items():
            if command not in groups:
                monkeypatch.setattr(command, "callback", lambda name=name, **_: understood.append(name))
    for page in [ROOT / "README.md", *PAGES, *STUDIES]:
        text = page.read_text(encoding="utf-8")
        if not re.search(r"^```[a-z]*\ncovfree ", text, re.MULTILINE):
            continue
        for command in commands(str(page.relative_to(ROOT)), but=("ALGORITHM",) * ("ALGORITHM" in text)):
            top.main(command[: command.index(">")] if ">" in command else command, standalone_mode=False)
    assert set(understood) >= {"compare", "extract", "export", "finetune", "personalise", "serve"}


def test_the_index_links_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "index.md" and f"({page.name})" not in index] == []


def test_the_index_of_experiments_links_every_study():
    folder = ROOT / "experiments"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = [*folder.glob("*/README.md"), *(page for page in folder.glob("*.md") if page.name != "README.md")]
    assert [page.name for page in pages if f"({page.relative_to(folder)})" not in index] == []
