"""``experiments/papers/README.md``: every printed cell, beside what covfree gives."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from covfree.studies import Table as Words
from covfree.studies import as_markdown
from experiments.tables.results import Ours, Results
from experiments.tables.spec import PAPERS, Grid, Table, read_table, table_files

PAGE = PAPERS / "README.md"
_INTRODUCTION = PAPERS / "introduction.md"


def state_of(ours: Ours) -> str:
    """What a cell counts as: equal, cut, different, alone or not run."""
    if ours.reason:
        return "not run"
    if not ours.difference:
        return "alone"
    return {"=": "equal"}.get(ours.difference, "cut" if ours.difference.endswith("cut") else "different")


def page() -> str:
    """The page, from the files of tables and the results beside them."""
    tables = [read_table(path) for path in table_files()]
    outcomes = [[Results(table.results).ours(cell) for cell in table.cells] for table in tables]
    lines = [_INTRODUCTION.read_text(encoding="utf-8").rstrip(), "", *_summary(tables, outcomes)]
    for table, ours in zip(tables, outcomes, strict=True):
        lines += ["", f"## {table.title}", "", *_wrapped(f"{table.source}. `{table.name}`")]
        if table.note:
            lines += ["", *_wrapped(table.note)]
        remaining = iter(ours)
        for grid in table.grids:
            lines += ["", *_grid(grid, remaining)]
    return "\n".join(lines) + "\n"


def _summary(tables: list[Table], outcomes: list[list[Ours]]) -> Iterator[str]:
    """A line for each table."""
    columns = ("table", "cells", "equal", "cut", "different", "no number printed", "not run")
    states = ("equal", "cut", "different", "alone", "not run")
    total: Counter[str] = Counter()
    lines = []
    for table, ours in zip(tables, outcomes, strict=True):
        counted = Counter(map(state_of, ours))
        total += counted
        numbers = [str(counted[state] or "") for state in states]
        lines.append((f"[{table.name}](#{_anchor(table.title)})", str(len(ours)), *numbers))
    lines.append(("all", str(total.total()), *(str(total[state] or "") for state in states)))
    yield as_markdown(Words(columns, tuple(lines)))


def _anchor(title: str) -> str:
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in "_- ")
    return kept.replace(" ", "-")


def _grid(grid: Grid, ours: Iterator[Ours]) -> Iterator[str]:
    """A grid in the shape in which it is printed, and what was not run."""
    lines, reasons = [], Counter[str]()
    for label, row in zip(grid.rows, grid.cells, strict=True):
        cells = []
        for cell in row:
            found = next(ours)
            reasons.update([found.reason] if found.reason else [])
            cells.append(_shown(cell.printed, found))
        lines.append((label, *cells))
    yield f"**{grid.title}**"
    yield ""
    yield as_markdown(Words(("", *grid.columns), tuple(lines)))
    if reasons:
        total = len(grid.rows) * len(grid.columns)
        told = [
            f"{reason} ({'all' if number == total else number} of {total} cells)" if total > 1 else reason
            for reason, number in reasons.items()
        ]
        yield ""
        yield from _wrapped(f"Not run: {'; '.join(told)}.")


def _shown(printed: str, ours: Ours) -> str:
    if ours.reason:
        return f"{printed}; –"
    if not ours.shown:
        return f"{printed}; {ours.difference}"
    return f"{printed}; {ours.shown}" + (f" ({ours.difference})" if ours.difference else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)
