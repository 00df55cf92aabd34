"""Tables as text: Markdown and LaTeX, the best of a column in bold."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

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


class Table(NamedTuple):
    """A table of words and numbers.

    Attributes:
        columns: their names.
        lines: cells; those of the first column are words, of the others numbers.
        best: line and column of the cells to be marked, from 0.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()

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
