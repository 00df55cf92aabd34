"""What a page holds. The template turns it into HTML and escapes every text but `Picture.drawings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from covfree.studies.tables import Cell


class Picture(NamedTuple):
    """A picture for wide pages, and one for phones if there is a better one for them.

    Attributes:
        title: above it.
        text: what it shows, for those who cannot see it.
        drawings: ``<svg>`` elements: the wide one, and the narrow one if there is one.
    """

    title: str
    text: str
    drawings: tuple[str, ...]


class Bar(NamedTuple):
    """A bar with its name, its length in [0, 1] and what is written beside it."""

    name: str
    length: float
    text: str


class Histogram(NamedTuple):
    """Bars of a histogram of shares, from left to right, and the shares in words."""

    bars: tuple[Bar, ...]
    text: str


class Heat(NamedTuple):
    """A cell of the confusion matrix: what it shows, and the share of its line, in [0, 1]."""

    text: str
    share: float


class Matrix(NamedTuple):
    """A confusion matrix: names of the lines, of the columns, and the cells."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[tuple[Heat, ...], ...]

    @property
    def broad(self) -> bool:
        """Whether half the page is too narrow for it."""
        return len(self.columns) > 11

    @property
    def has_long_names(self) -> bool:
        """Whether the names of the columns must stand upright."""
        return any(len(name) > 4 for name in self.columns)


class Confused(NamedTuple):
    """A class that is taken for another: how often, and the share of its examples."""

    label: str
    predicted: str
    number: int
    share: str


@dataclass(frozen=True)
class Detail:
    """What a method gets right and wrong.

    Attributes:
        title: the method's.
        text: in a few words.
        classes: accuracy by class, the worst first.
        classes_text: what `classes` leaves out.
        spread: of the accuracies of all classes, where `classes` does not show them all.
        clients: accuracy by client.
        clients_title: how that is known.
        matrix: of few classes.
        confused: pairs of classes, the most frequent first.
    """

    title: str
    text: str
    classes: tuple[Bar, ...]
    classes_text: str = ""
    spread: Histogram | None = None
    clients: Histogram | None = None
    clients_title: str = ""
    matrix: Matrix | None = None
    confused: tuple[Confused, ...] = ()


class Grid(NamedTuple):
    """A table: names of the columns, lines, the column it is sorted by (its largest number first), marks.

    Attributes:
        columns: names.
        lines: cells.
        sorted_by: a column, or None.
        best: line and column of the cells that are marked.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    sorted_by: int | None = None
    best: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Place:
    """The results on one federation.

    Attributes:
        title: what it is.
        headline: sentences: what came out.
        grid: the table.
        pictures: of the results, and of the partition.
        details: by method.
        classes: accuracy by class and method, if there are several methods.
    """

    title: str
    headline: Sequence[str]
    grid: Grid
    pictures: Sequence[Picture]
    details: Sequence[Detail] = ()
    classes: Grid | None = None


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: what the results are of.
        places: results by federation.
        settings: by the names of options.
        environment: versions and machine.
        command: the command line that gives these results again.
        notes: what must be known beside.
        headline: what came out over all federations, if there are several.
        grid: accuracy by method and federation, if there are several.
    """

    title: str
    places: Sequence[Place]
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    command: str
    notes: Sequence[str] = ()
    headline: Sequence[str] = ()
    grid: Grid | None = field(default=None)
