"""Tables for the terminal, Markdown and LaTeX, with the best of a column marked; records as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from covfree.studies.progress import say

Format = Literal["table", "markdown", "json", "csv", "latex"]
# A width in characters that exceeds any table's.
_UNBOUNDED = 1_000_000

# Characters that LaTeX text must escape.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # LaTeX reads a bracket or a star after ``\\`` as its argument, so brace them.
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
    "−": "$-$",
}


class TableCell(str):
    """A table cell: a text, with the number by which an HTML page sorts the column; None for words."""

    number: float | int | None

    def __new__(cls, text: str, number: float | int | None = None) -> TableCell:
        """Make a cell from a text and its number."""
        cell = super().__new__(cls, text)
        cell.number = number
        return cell


class Table(NamedTuple):
    """A table: words in the first column, numbers in the others.

    Attributes:
        columns: names of the columns.
        lines: rows of cells, each a plain text or a `TableCell`.
        best: (line, column) of the cells to mark, from 0.
        broken: columns whose names the terminal breaks into several lines, so that the columns are narrow.
        sorted_by: the column that lines are sorted by, largest number first, or None.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    broken: tuple[str, ...] = ()
    sorted_by: int | None = None

    def marked(self, mark: Callable[[str], str]) -> list[list[str]]:
        """Return the cells of all lines, with ``mark`` applied to the cells in `best`."""
        return [
            [mark(cell) if (row, column) in self.best else cell for column, cell in enumerate(line)]
            for row, line in enumerate(self.lines)
        ]


def as_markdown(table: Table) -> str:
    """Format a table in Markdown.

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
    r"""Format a table in LaTeX, with the rules of the package booktabs.

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
    # Mark the mean alone, not its deviation.
    lines = escaped.marked(lambda cell: re.sub(r"^\S+", r"\\textbf{\g<0>}", cell))
    heads = [re.sub(r"\balpha (\S+)$", r"$\\alpha=\1$", _escaped(name)) for name in table.columns]
    rows = [" & ".join(heads), *(" & ".join(line) for line in lines)]
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
    """Escape the characters in a text that would end a table cell, begin a tag or set words bold."""
    return re.sub(r"[\\|<*`]", r"\\\g<0>", text)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def percent(mean: float, deviation: float | None) -> str:
    """Format a share in percent, with its standard deviation if there is one.

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
    """Print results on standard output, in the format ``form``.

    Args:
        form: ``"json"`` prints ``content``, ``"csv"`` prints ``records``; all others print title and table.
        title: what the table shows.
        table: the table.
        records: a dict for each line of CSV.
        content: the results as JSON.
        left_out: remarks on what is left out; with CSV they go to stderr, else they are not printed.
        below: a text to print under a table on the terminal.
    """
    if form == "json":
        print(content)
    elif form == "csv":
        print(as_csv(records))
        for text in left_out:
            say(text)
    elif form == "markdown":
        print(title.replace("\n", "\n\n"), as_markdown(table), sep="\n\n")
    elif form == "latex":
        notes = [*title.splitlines(), r"\usepackage{booktabs} brings the rules"]
        notes += ["± is one standard deviation over seeds"] * ("±" in str(table.lines))
        print("\n".join(f"% {line}" for line in notes), as_latex(table), sep="\n")
    else:
        from rich.console import Console, ConsoleDimensions
        from rich.text import Text

        console = Console()
        # Print the title apart, as rich would wrap a table's own title at the table's width.
        console.print(Text(title, "italic"), soft_wrap=True)
        for number, block in enumerate(_blocks(console, table)):
            if number:
                console.print()
            # Widen the console to the table, as rich would truncate its figures, even in pipes and files.
            console.size = ConsoleDimensions(max(_width(console, block), console.width), console.height)
            console.print(block)
        signs = ["*: the best of its column"] * bool(table.best)
        signs += ["±: one standard deviation over seeds"] * ("±" in str(table.lines))
        for text in filter(None, (f"{'; '.join(signs)}." * bool(signs), below)):
            console.print(Text(text, "dim"))


def _blocks(console: Any, table: Table) -> list[Any]:
    """Split the table into blocks of columns that fit the terminal, each with the first column."""
    blocks, shown = list[Any](), [0]
    for column in range(1, len(table.columns)):
        wider = _for_terminal(table, [*shown, column])
        if len(shown) > 1 and _width(console, wider) > console.width:
            blocks.append(_for_terminal(table, shown))
            shown = [0]
        shown.append(column)
    return [*blocks, _for_terminal(table, shown)]


def _width(console: Any, block: Any) -> int:
    """Return the least width in characters of ``block``, a table of the package ``rich``."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=_UNBOUNDED), block).minimum


def _for_terminal(table: Table, shown: Sequence[int]) -> Any:
    """Make a table for the package ``rich`` from the columns ``shown``; the best cells are bold and starred.

    The star is for outputs without bold. Cells are `Text`, as rich would read a class's name such as "[red]"
    or ":cat:" as markup.
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
        # rich would break figures at spaces, so columns are at least as wide as their figures.
        parts = [*header.split("\n"), *(line[column] for line in cells)]
        block.add_column(header, justify="right", min_width=max(part.cell_len for part in parts))
    for line in cells:
        block.add_row(*(line[column] for column in shown))
    return block


def _broken(name: str) -> str:
    """Break a name into lines: after commas if it has any, else at spaces."""
    return name.replace(", ", ",\n") if ", " in name else name.replace(" ", "\n")


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """Format records as CSV, one line per record."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def plural(name: str, count: int) -> str:
    """Return a noun for ``count`` things: "client" for one, "clients" for several."""
    return name if count == 1 else f"{name}es" if name.endswith("s") else f"{name}s"


def as_bytes(number: int | float) -> str:
    """Format bytes in the largest unit that gives at least 1."""
    return _with_unit(number, ("B", "kB", "MB", "GB"))


def as_flops(number: int | float) -> str:
    """Format operations in the largest unit that gives at least 1."""
    return _with_unit(number, ("", "k", "M", "G", "T"))


def as_seconds(number: int | float) -> str:
    """Format seconds; below one, as milliseconds."""
    return f"{_short(1000 * number)} ms" if number < 1 else f"{_short(number)} s"


def _with_unit(number: int | float, units: tuple[str, ...]) -> str:
    """Format a number in the largest unit that gives at least 1; below 1, in the first unit."""
    power = 0
    while number >= 1000 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{_short(number) if power else f'{number:.0f}'} {units[power]}".rstrip()


def _short(number: int | float) -> str:
    """Format a number with about three digits, so that a table fits a terminal of 80 columns."""
    return f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
