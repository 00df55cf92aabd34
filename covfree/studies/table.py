"""Tables as text: in the terminal, in Markdown, LaTeX, JSON and CSV, the best of a column marked."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Format = Literal["table", "markdown", "json", "csv", "latex"]
# Characters: wider than any table.
_UNBOUNDED = 1_000_000

# What LaTeX wants written otherwise, in text.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # After the end of a line, a bracket or a star would belong to it.
    **{sign: f"{{{sign}}}" for sign in "[]*"},
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "→": r"$\to$",
    "–": "--",
}


class Cell(str):
    """What a table shows in a cell, and the number behind it, by which pages sort; None for words."""

    number: float | int | None

    def __new__(cls, text: str, number: float | int | None = None) -> Cell:
        """Make a cell of a text and its number."""
        cell = super().__new__(cls, text)
        cell.number = number
        return cell


class Table(NamedTuple):
    """A table of words and numbers.

    Attributes:
        columns: their names.
        lines: cells, plain texts or `Cell`; those of the first column are words, of the others numbers.
        best: line and column of the cells to be marked, from 0.
        broken: names of columns that the terminal breaks in several lines, so that numbers need not be.
        sorted_by: the column that lines are sorted by, its largest number first, or None.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    broken: tuple[str, ...] = ()
    sorted_by: int | None = None

    def marked(self, mark: Callable[[str], str]) -> list[list[str]]:
        """The cells, the best of them marked."""
        return [
            [mark(cell) if (row, column) in self.best else cell for column, cell in enumerate(line)]
            for row, line in enumerate(self.lines)
        ]


def as_markdown(table: Table) -> str:
    """A table in Markdown.

    >>> lines = ("FedNCM", "90.1"), ("FedCOF", "94.2")
    >>> print(as_markdown(Table(("method", "a"), lines, best=frozenset({(1, 1)}))))
    | method | a |
    | --- | --- |
    | FedNCM | 90.1 |
    | FedCOF | **94.2** |
    """
    columns, *lines = (tuple(map(_for_markdown, line)) for line in (table.columns, *table.lines))
    marked = table._replace(lines=tuple(lines)).marked(lambda cell: f"**{cell}**")
    every = [columns, ("---",) * len(columns), *marked]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


def as_latex(table: Table) -> str:
    r"""A table in LaTeX, with the rules of the package booktabs.

    >>> print(as_latex(Table(("method", "a_1"), (("FedCOF", "94.2 ± 0.3"),), frozenset({(0, 1)}))))
    \begin{tabular}{lr}
    \toprule
    method & a\_1 \\
    \midrule
    FedCOF & \textbf{94.2} $\pm$ 0.3 \\
    \bottomrule
    \end{tabular}
    """
    escaped = table._replace(lines=tuple(tuple(map(_escaped, line)) for line in table.lines))
    # The mean alone is marked, not its deviation.
    lines = escaped.marked(lambda cell: re.sub(r"^\S+", r"\\textbf{\g<0>}", cell))
    rows = [" & ".join(map(_escaped, table.columns)), *(" & ".join(line) for line in lines)]
    head, *body = [f"{row} \\\\" for row in rows]
    alignment = "l" + "r" * (len(table.columns) - 1)
    return "\n".join(
        [
            f"\\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _for_markdown(text: str) -> str:
    """Text without what would end a cell, begin a tag or mark words."""
    return re.sub(r"[\\|<*`]", r"\\\g<0>", text)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def percent(mean: float, deviation: float | None) -> str:
    """A share with its standard deviation, if there is one.

    >>> percent(0.9341, 0.0062)
    '93.41 ± 0.62'
    """
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def show(
    form: Format,
    title: str,
    table: Table,
    records: Sequence[dict[str, Any]],
    content: str,
    left_out: Sequence[str] = (),
    below: str = "",
) -> None:
    """Print results on standard output.

    Args:
        form: how.
        title: above the table; in LaTeX a comment. CSV and JSON have none.
        table: what all others show.
        records: what CSV shows.
        content: what JSON shows.
        left_out: what the title says of examples on no client: said on stderr where CSV has no title.
        below: a sentence under the terminal's table.
    """
    if form == "json":
        print(content)
    elif form == "csv":
        print(as_csv(records))
        for text in left_out:
            print(f"covfree: {text}", file=sys.stderr)
    elif form == "markdown":
        print(title.replace("\n", "\n\n"), as_markdown(table), sep="\n\n")
    elif form == "latex":
        print("\n".join(f"% {line}" for line in title.splitlines()), as_latex(table), sep="\n")
    else:
        from rich.console import Console, ConsoleDimensions
        from rich.text import Text

        console = Console()
        # Not as the table's own title, which would be broken at the table's width.
        console.print(Text(title, "italic"), soft_wrap=True)
        for number, block in enumerate(_blocks(console, table)):
            if number:
                console.print()
            # Of a table without this width figures would be cut, in pipes and files too.
            console.size = ConsoleDimensions(max(_width(console, block), console.width), console.height)
            console.print(block)
        if below:
            console.print(Text(below, "dim"))


def _blocks(console: Any, table: Table) -> list[Any]:
    """The table in blocks of columns that fit the terminal, each with the first column."""
    blocks, shown = list[Any](), [0]
    for column in range(1, len(table.columns)):
        wider = _for_terminal(table, [*shown, column])
        if len(shown) > 1 and _width(console, wider) > console.width:
            blocks.append(_for_terminal(table, shown))
            shown = [0]
        shown.append(column)
    return [*blocks, _for_terminal(table, shown)]


def _width(console: Any, block: Any) -> int:
    """Characters of a table's lines at least, if the first column is broken as much as it may be."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=_UNBOUNDED), block).minimum


def _for_terminal(table: Table, shown: Sequence[int]) -> Any:
    """Some columns for the terminal; what is marked has a star too, for terminals and files without bold.

    Cells are `Text`, as rich reads a string such as a class's name "[red]" or ":cat:" as its own markup.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    block = RichTable(header_style="bold", show_edge=False, pad_edge=False)
    cells = [
        [
            Text(f"{cell}*", "bold") if (row, column) in table.best else Text(cell)
            for column, cell in enumerate(line)
        ]
        for row, line in enumerate(table.lines)
    ]
    first, *others = shown
    block.add_column(Text(table.columns[first]), min_width=14)
    for column in others:
        name = table.columns[column]
        header = Text(_broken(name) if name in table.broken else name)
        # Figures are never broken, as rich would break them at spaces.
        parts = [*header.split("\n"), *(line[column] for line in cells)]
        block.add_column(header, justify="right", min_width=max(part.cell_len for part in parts))
    for line in cells:
        block.add_row(*(line[column] for column in shown))
    return block


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
