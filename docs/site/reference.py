"""The reference: a page for each room of what covfree exports, and an overview of all names."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The public modules, in the order of the menu.
MODULES = (
    "covfree",
    "covfree.methods",
    "covfree.methods.field.recursive",
    "covfree.methods.field.alignment",
    "covfree.heads.metrics",
    "covfree.data.partitions",
    "covfree.rounds",
    "covfree.finetune",
    "covfree.privacy",
    "covfree.secure",
    "covfree.sklearn",
    "covfree.data",
    "covfree.backbones",
    "covfree.studies",
    "covfree.deployment",
    "covfree.core.linalg",
    "covfree.testing",
)


def exports(module: str) -> dict[str, str]:
    """Public names of a module, each with the module that it is imported from.

    Public are names that the source re-exports (``import x as x``) or defines, without an underscore.

    >>> exports("covfree")["fit"], exports("covfree.core.linalg")["solve"]
    ('covfree.engine', 'covfree.core.linalg')
    """
    names = {}
    for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name: node.module for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = module
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: module for target in targets if isinstance(target, ast.Name)}
    return {name: source or module for name, source in names.items() if not name.startswith("_")}


def sections() -> Iterator[tuple[str, str, list[str]]]:
    """Title, module and names of each page: names of ``covfree`` by their room, others by their module.

    What two modules export is on the page of the first.
    """
    seen = set()
    for module in MODULES:
        pages: dict[str, list[str]] = {}
        for name, source in exports(module).items():
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value) and id(value) not in seen:
                seen.add(id(value))
                title = f"covfree: {source.split('.')[1]}" if module == "covfree" else module
                pages.setdefault(title, []).append(name)
        yield from ((title, module, names) for title, names in pages.items())


def place_of(module: str, name: str) -> str:
    """Where mkdocstrings finds what a module exports.

    It follows names as Python does, except where a file is named after a function in it: it takes the file.
    So imports are followed here, up to such a file.

    >>> place_of("covfree", "fit"), place_of("covfree", "fedncm")
    ('covfree.fit', 'covfree.methods.fedncm.fedncm')
    """
    if ROOT.joinpath(*module.split("."), "__init__.py").is_file():
        source = exports(module).get(name, module)
        if source != module:
            place = place_of(source, name)
            return place if place.endswith(f".{name}.{name}") else f"{module}.{name}"
    return f"{module}.{name}"


def described(module: str, name: str) -> str:
    """What mkdocstrings is to write of a name.

    >>> print(described("covfree", "fit"))
    ::: covfree.fit
        options: {heading: covfree.fit, toc_label: fit}
    """
    options = f"{{heading: {module}.{name}, toc_label: {name}}}"
    return f"::: {place_of(module, name)}\n    options: {options}"


def page(title: str, module: str, names: list[str]) -> str:
    """A page of the reference."""
    return "\n\n".join([f"# {title}", *(described(module, name) for name in names)]) + "\n"


def page_name(title: str) -> str:
    """Where a page of the reference lies.

    >>> page_name("covfree: heads"), page_name("covfree.core.linalg")
    ('reference/covfree-heads.md', 'reference/covfree.core.linalg.md')
    """
    return f"reference/{title.replace(': ', '-')}.md"


def overview() -> str:
    """All names, each linked to its place, with the first line of its docstring."""
    lines = []
    for title, module, names in sections():
        lines += ["", f"## {title}", "", "| Name | |", "|---|---|"]
        for name in names:
            value = getattr(importlib.import_module(module), name)
            first = (inspect.getdoc(value) or "").partition("\n")[0] if callable(value) else ""
            lines.append(f"| [`{name}`][{place_of(module, name)}] | {first.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
