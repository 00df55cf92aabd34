"""The files of tables: grids of printed cells, and the settings from which covfree computes each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.tables.printed import is_printed
from experiments.tables.settings import settings_read
from experiments.tables.words import are_named

PAPERS = Path(__file__).resolve().parents[1] / "papers"
_ORDER = ("fedcof", "fedcgs", "fed3r", "digits")
_FEDERATION = ("data", "seeds", "clients", "partition", "alpha")
# Settings whose values are names that one may look for.
_NAMES = ("data", "target", "backbone")
_TRAINING = (*_FEDERATION, "algorithm", "epochs", "batch_size", "client_lr")


def _needed(*names: str) -> frozenset[str]:
    return frozenset(names)


# What each kind of cell must know beside what has a default. First those that need data.
FROM_DATA: Mapping[str, frozenset[str]] = {
    "accuracy": _needed(*_FEDERATION, "method"),
    "measured": _needed(*_FEDERATION, "measure"),
    "arrivals": _needed(*_FEDERATION, "method", "participation", "rounds"),
    "trained": _needed(*_TRAINING, "init", "rounds", "participation", "server_lr", "train", "norms"),
    "prompts": _needed(*_TRAINING, "rounds", "participation", "pool", "top"),
    "one-shot": _needed(*_TRAINING, "distillation_epochs", "generator_steps", "generator_width"),
    "personal": _needed(*_TRAINING, "momentum", "weight_decay", "norms", "strength", "test_share"),
}
NEEDED: Mapping[str, frozenset[str]] = {
    **FROM_DATA,
    "counted": _needed("count"),
    "formula": _needed("terms"),
    "missing": _needed("missing"),
}


@dataclass(frozen=True)
class Cell:
    """One printed number, and how covfree computes it.

    Attributes:
        table: the file's name, without its ending.
        grid: title of the grid.
        row: label of the row.
        column: label of the column.
        kind: a key of `NEEDED`.
        printed: as the paper prints it.
        settings: of the computation, by name.
        parts: the cells that it is the mean of, or whose last one exceeds the first by it.
        read: names of the settings that it may depend on, if it needs data.
    """

    table: str
    grid: str
    row: str
    column: str
    kind: str
    printed: str
    settings: Mapping[str, Any]
    parts: tuple[Cell, ...] = ()
    read: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.table}: {self.grid}: {self.row}, {self.column}"

    def is_meant(self, words: list[str]) -> bool:
        """Whether each word is of a label, the title, or the name of data, domain or network: `are_named`."""
        own = [str(self.settings[name]) for name in _NAMES if name in self.settings]
        return are_named((self.grid, self.row, self.column, *own), words)


@dataclass(frozen=True)
class Grid:
    """Printed cells by rows and columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """A file: grids, where they are printed, and what is to be known of them."""

    name: str
    title: str
    source: str
    note: str
    grids: tuple[Grid, ...]
    path: Path

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells."""
        return (cell for grid in self.grids for row in grid.cells for cell in row)

    @property
    def results(self) -> Path:
        """The folder of results, beside the file."""
        return self.path.with_suffix("")


def table_files() -> list[Path]:
    """The files of all tables: by paper, its numbered tables first, what is of no paper last."""

    def order(path: Path) -> tuple[Any, ...]:
        paper, _, rest = path.stem.partition("-")
        number = re.fullmatch(r"table(\d+)", rest)
        return (_ORDER.index(paper), number is None, int(number[1]) if number else rest)

    return sorted(PAPERS.glob("*.toml"), key=order)


def find_table(name: str) -> Path:
    """The file of a table, by its name or its path.

    Raises:
        FileNotFoundError: if there is none.
    """
    for path in (Path(name), PAPERS / f"{name}.toml"):
        if path.suffix == ".toml" and path.is_file():
            return path
    known = ", ".join(path.stem for path in table_files())
    raise FileNotFoundError(f"{name}: expected the path of a TOML file, or one of {known}")


def read_table(path: Path, overrides: Mapping[str, Any] | None = None) -> Table:
    """Read a table.

    A cell's settings are, from the weakest to the strongest, the defaults of the paper (``names/PAPER.toml``)
    and of the file, those that the grid's ``of`` means, those of the grid, of the column's label and of the
    row's; a label may not change what its own grid says. A label (and ``of``) is words with commas between:
    each is a key of ``[names]`` in one of the two files, of which the file's adds to the paper's, or a
    setting such as ``alpha=0.1``.

    A cell with ``combine = "mean"`` is the mean of the cells that have each of the values in ``over``, which
    has one setting: ``over = { target = ["photo", "sketch"] }``. With ``combine = "difference"`` it is the
    last of these less the first.

    Args:
        path: the file.
        overrides: settings that replace those of all cells that need data.

    Raises:
        ValueError: naming the file and the place, if something is missing, unknown or out of shape.
    """
    content = _toml(path)
    paper = PAPERS / "names" / f"{path.stem.partition('-')[0]}.toml"
    common = _toml(paper) if paper.is_file() else {}
    defaults = {**common.get("defaults", {}), **content.get("defaults", {})}
    names = dict(common.get("names", {}))
    for name, settings in content.get("names", {}).items():
        names[name] = {**names.get(name, {}), **settings}
    grids = []
    for place, grid in enumerate(content.get("grids", []), start=1):
        try:
            grids.append(_grid(path.stem, grid, defaults, names, overrides or {}))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: grid {place}, {grid.get('title', '')!r}: {error}") from error
    if missing := [key for key in ("title", "source") if key not in content] or ([] if grids else ["grids"]):
        raise ValueError(f"{path}: expected {', '.join(missing)}")
    return Table(path.stem, content["title"], content["source"], content.get("note", ""), tuple(grids), path)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: expected TOML ({error})") from error


def _grid(
    table: str,
    grid: dict[str, Any],
    defaults: Mapping[str, Any],
    names: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, Any],
) -> Grid:
    own = _meant(grid["of"], names) if "of" in grid else {}
    given = {key: value for key, value in grid.items() if key not in ("title", "of", "columns", "rows")}
    own |= given
    columns = tuple(grid["columns"])
    lines = []
    for row, printed in grid["rows"].items():
        if len(printed) != len(columns):
            raise ValueError(f"row {row!r}: expected {len(columns)} cells, got {len(printed)}")
        line = []
        for column, text in zip(columns, printed, strict=True):
            labels = {**_meant(column, names), **_meant(row, names)}
            for key in given.keys() & labels.keys():
                if labels[key] != given[key]:
                    raise ValueError(
                        f"{row}, {column}: {key}: {given[key]!r} of the grid is hidden by {labels[key]!r} of "
                        "a label; expected it in one of the two"
                    )
            settings = {**defaults, **own, **labels}
            # What is counted is of the numbers that are printed.
            if settings.get("kind") in FROM_DATA:
                settings |= overrides
            line.append(_cell(table, grid["title"], row, column, str(text), settings))
        lines.append(tuple(line))
    return Grid(grid["title"], tuple(grid["rows"]), columns, tuple(lines))


def _meant(label: str, names: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that a label stands for."""
    settings: dict[str, Any] = {}
    for word in (each.strip() for each in label.split(", ")):
        name, equals, value = word.partition("=")
        if word in names:
            settings |= names[word]
        elif equals:
            settings[name] = as_value(value)
        else:
            raise ValueError(f"label {label!r}: {word!r} is no name; expected one of {', '.join(names)}")
    return settings


def as_value(text: str) -> Any:
    """A number, a truth value or a text, as TOML would read it."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _cell(table: str, grid: str, row: str, column: str, printed: str, settings: dict[str, Any]) -> Cell:
    settings = dict(settings)
    kind = settings.pop("kind", None)
    if kind in FROM_DATA and printed == "none":
        settings["missing"] = "the paper has none"
    if kind in FROM_DATA and "missing" in settings:
        kind = "missing"
    if kind not in NEEDED:
        raise ValueError(f"{row}, {column}: kind: expected one of {', '.join(NEEDED)}, got {kind!r}")
    if lacking := NEEDED[kind] - set(settings):
        raise ValueError(f"{row}, {column}: kind {kind}: expected {', '.join(sorted(lacking))}")
    if kind not in ("formula", "missing") and not is_printed(printed):
        raise ValueError(f"{row}, {column}: expected a number, such as 41.5±0.1, got {printed!r}")
    seeds = settings.get("seeds")
    if kind in FROM_DATA and (type(seeds) is not int or seeds < 1):
        raise ValueError(f"{row}, {column}: seeds: expected an integer of at least 1, got {seeds!r}")
    read = settings_read(kind, settings) if kind in FROM_DATA else frozenset[str]()
    parts = _parts(table, grid, row, column, {**settings, "kind": kind})
    if parts:
        read = frozenset().union(*(part.read for part in parts)) - set(settings["over"])
    # A text may name other settings: "fedcof:shrinkage={shrinkage}"; of combined cells those of the parts.
    for key, value in settings.items():
        if isinstance(value, str) and "{" in value and not parts:
            settings[key] = value.format_map(settings)
    return Cell(table, grid, row, column, kind, printed, settings, parts, read)


def _parts(table: str, grid: str, row: str, column: str, settings: dict[str, Any]) -> tuple[Cell, ...]:
    """The cells that a cell combines."""
    combine, over = settings.pop("combine", None), settings.pop("over", {})
    if combine is None:
        return ()
    if combine not in ("mean", "difference") or len(over) != 1:
        raise ValueError(
            f"{row}, {column}: combine: expected mean or difference, and one setting in over, got "
            f"{combine!r} and {over!r}"
        )
    ((name, values),) = over.items()
    return tuple(_cell(table, grid, row, column, "–", {**settings, name: value}) for value in values)
