"""Who imports whom in covfree: no circles, and between rooms as the table in docs/architecture.md says."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import covfree

ROOT = Path(covfree.__file__).resolve().parent
TABLE = ROOT.parent / "docs" / "architecture.md"


def module(file: Path) -> str:
    parts = ("covfree", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, modules: set[str]) -> Iterator[str]:
    """Modules of covfree that a file imports anywhere, also within functions and for types alone."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules or node.module in modules:
                    yield full if full in modules else str(node.module)


def import_graph() -> dict[str, set[str]]:
    files = {module(file): file for file in ROOT.rglob("*.py")}
    graph = {name: set(imported(file, set(files))) for name, file in files.items()}
    # Named by `covfree/__init__.py` for type checkers, and imported when they are first used.
    graph["covfree"] -= {f"covfree.{name}" for name in covfree._LATE}
    return graph


def room(name: str) -> str:
    """The row of the table in which a module lies."""
    first = name.partition(".")[2].partition(".")[0] or "__init__"
    return f"{first}/" if (ROOT / first).is_dir() else f"{first}.py"


def table() -> dict[str, set[str]]:
    """For each room, in the table's order, the rooms that it may import from."""
    allowed: dict[str, set[str]] = {}
    for line in TABLE.read_text(encoding="utf-8").split("## ")[1].splitlines():
        if row := re.fullmatch(r"\| `(\S+)` \| .* \| (.*) \|", line):
            above = set(allowed) if row[2] == "the above" else set(re.findall(r"`(\S+?)`", row[2]))
            assert above or row[2] == "nothing", f"imports of {row[1]}: expected names of rooms, got {row[2]}"
            assert above <= set(allowed), f"{row[1]} imports what is not above it: {above - set(allowed)}"
            allowed[row[1]] = above
    return allowed


def test_no_module_imports_itself_in_a_circle():
    graph = import_graph()
    assert "covfree.data.folders" in graph["covfree.data.images"]
    list(graphlib.TopologicalSorter(graph).static_order())  # names the circle if there is one


def test_rooms_import_as_the_table_says():
    graph, allowed = import_graph(), table()
    assert {room(name) for name in graph} == set(allowed)
    wrong = sorted(
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if room(other) not in {room(name), *allowed[room(name)]}
    )
    assert wrong == []


def test_imports_within_functions_are_seen(tmp_path):
    file = tmp_path / "late.py"
    file.write_text("def f():\n    from covfree.a import b, c\n    import covfree.d\n    import jax\n")
    modules = {"covfree.a", "covfree.a.b", "covfree.d"}
    assert list(imported(file, modules)) == ["covfree.a.b", "covfree.a", "covfree.d"]


def test_experiments_do_not_import_the_command_line():
    files = (ROOT.parent / "experiments").rglob("*.py")
    modules = {module(file) for file in ROOT.rglob("*.py")}
    assert [f for f in files if any(room(name) == "cli/" for name in imported(f, modules))] == []
