"""Tables of results, in the terminal, in Markdown, LaTeX, JSON and CSV; units that fit them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console, ConsoleDimensions
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from covfree.studies import Table, as_latex, as_markdown

Format = Literal["table", "markdown", "json", "csv", "latex"]

# Characters: wider than any table.
_UNBOUNDED = 1_000_000


class Columns(NamedTuple):
    """The head of a table.

    Attributes:
        names: of the columns; those of the first are words, of the others numbers.
        broken: names that the terminal breaks in several lines, so that numbers need not be.
    """

    names: tuple[str, ...]
    broken: tuple[str, ...] = ()


class Cell(NamedTuple):
    """What a table shows in a cell, and the number behind it.

    Attributes:
        text: as shown.
        number: what it is sorted by; None for words.
    """

    text: str
    number: float | int | None = None


def texts(lines: Sequence[Sequence[Cell]]) -> list[tuple[str, ...]]:
    """What cells show."""
    return [tuple(cell.text for cell in line) for line in lines]


def show(
    form: Format,
    title: str,
    columns: Columns,
    lines: Sequence[tuple[str, ...]],
    records: Sequence[dict[str, Any]],
    content: str,
    best: frozenset[tuple[int, int]] = frozenset(),
    left_out: Sequence[str] = (),
    below: str = "",
) -> None:
    """Print results on standard output.

    Args:
        form: how.
        title: above the table; in LaTeX a comment. CSV and JSON have none.
        columns: its head.
        lines: its cells.
        records: what CSV shows.
        content: what JSON shows.
        best: line and column of the cells to be marked, from 0.
        left_out: what the title says of examples on no client: said on stderr where CSV has no title.
        below: a sentence under the terminal's table.
    """
    plain = Table(columns.names, tuple(lines), best)
    if form == "json":
        print(content)
    elif form == "csv":
        print(as_csv(records))
        for text in left_out:
            print(f"covfree: {text}", file=sys.stderr)
    elif form == "markdown":
        print(title.replace("\n", "\n\n"), as_markdown(plain), sep="\n\n")
    elif form == "latex":
        print("\n".join(f"% {line}" for line in title.splitlines()), as_latex(plain), sep="\n")
    else:
        console = Console()
        # Not as the table's own title, which would be broken at the table's width.
        console.print(Text(title, "italic"), soft_wrap=True)
        for number, table in enumerate(_blocks(console, columns, plain)):
            if number:
                console.print()
            # Of a table without this width figures would be cut, in pipes and files too.
            console.size = ConsoleDimensions(max(_width(console, table), console.width), console.height)
            console.print(table)
        if below:
            console.print(Text(below, "dim"))


def _blocks(console: Console, columns: Columns, plain: Table) -> list[RichTable]:
    """The table in blocks of columns that fit the terminal, each with the first column."""
    tables, shown = list[RichTable](), [0]
    for column in range(1, len(columns.names)):
        wider = _for_terminal(columns, plain, [*shown, column])
        if len(shown) > 1 and _width(console, wider) > console.width:
            tables.append(_for_terminal(columns, plain, shown))
            shown = [0]
        shown.append(column)
    return [*tables, _for_terminal(columns, plain, shown)]


def _width(console: Console, table: RichTable) -> int:
    """Characters of a table's lines at least, if the first column is broken as much as it may be."""
    return Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).minimum


def _for_terminal(columns: Columns, plain: Table, shown: Sequence[int]) -> RichTable:
    """Some columns for the terminal; what is marked has a star too, for terminals and files without bold.

    Cells are `Text`, as rich reads a string such as a class's name "[red]" or ":cat:" as its own markup.
    """
    table = RichTable(header_style="bold", show_edge=False, pad_edge=False)
    cells = [
        [
            Text(f"{cell}*", "bold") if (row, column) in plain.best else Text(cell)
            for column, cell in enumerate(line)
        ]
        for row, line in enumerate(plain.lines)
    ]
    first, *others = shown
    table.add_column(Text(columns.names[first]), min_width=14)
    for column in others:
        name = columns.names[column]
        header = Text(_broken(name) if name in columns.broken else name)
        # Figures are never broken, as rich would break them at spaces.
        parts = [*header.split("\n"), *(line[column] for line in cells)]
        table.add_column(header, justify="right", min_width=max(part.cell_len for part in parts))
    for line in cells:
        table.add_row(*(line[column] for column in shown))
    return table


def _broken(name: str) -> str:
    """A name in several lines: after commas if it has any, else at spaces."""
    return name.replace(", ", ",\n") if ", " in name else name.replace(" ", "\n")


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """One line a record."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def as_bytes(number: int | float) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    return _with_unit(number, ("B", "kB", "MB", "GB"))


def as_flops(number: int | float) -> str:
    """Operations, likewise."""
    return _with_unit(number, ("", "k", "M", "G", "T"))


def as_seconds(number: int | float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{_short(1000 * number)} ms" if number < 1 else f"{_short(number)} s"


def _with_unit(number: int | float, units: tuple[str, ...]) -> str:
    """In the largest unit that leaves a number of at least 1, or the last."""
    power = 0
    while number >= 1000 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{_short(number) if power else f'{number:.0f}'} {units[power]}".rstrip()


def _short(number: int | float) -> str:
    """About three digits, so that a table fits a terminal of 80 columns."""
    return f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
