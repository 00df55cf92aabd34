"""Tables of class means with their examples' scatter. Rows of the same client and class can be merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from covfree.core.padding import padded_size
from covfree.core.row_types import summable
from covfree.core.types import Rows
from covfree.engine.parts import padded_rows

# Rows of a block: few enough for accurate float32 sums of products, enough for products at full speed.
BLOCK = 4096


class Layout(NamedTuple):
    """Which sums over examples a method needs. A row is the count and the mean of examples of one class.

    Attributes:
        by_client: whether there is a row for each client and class; otherwise there is one for each class.
        squares: what is kept of the scatter Σ (f − mean)(f − mean)ᵀ of a row's examples f: the whole matrix
            ("full"), its "diagonal", its trace ("spherical"), or nothing (None).
        pooled: whether only the sum of all rows' scatters is kept; otherwise there is one for each row.
    """

    by_client: bool
    squares: Literal["full", "diagonal", "spherical"] | None
    pooled: bool


class MeansTable(NamedTuple):
    """A table whose rows are means of ``count`` examples, with the examples' scatter about each mean.

    Attributes:
        client: [rows] int64; 0 if clients are not told apart.
        label: [rows] int64.
        count: [rows] int64.
        mean: [rows, dim]; float64 once rows are merged.
        squares: float64, Σ (f − mean)(f − mean)ᵀ over the features f behind each row, or its diagonal, or its
            trace; None if all are 0 or not kept for each row.
    """

    client: np.ndarray
    label: np.ndarray
    count: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: np.ndarray
    squares: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """The size of all columns in bytes."""
        return sum(column.nbytes for column in self if column is not None)


def one_table(
    tables: tuple[MeansTable, ...], layout: Layout, dtype: Any
) -> tuple[MeansTable, np.ndarray | None]:
    """Merge tables of rows: all rows of the same client and class become one row, with their weighted mean.

    Returns:
        The merged table, sorted by client and then class. And, if ``layout.pooled``, the scatter of the given
        rows about the merged means, computed in ``dtype``; else None. It is Σ n (x − m)(x − m)ᵀ over the
        given rows, of mean x and count n, where m is the mean of the merged row.
    """
    client, label, count = (np.concatenate(columns) for columns in zip(*(t[:3] for t in tables), strict=True))
    means = np.concatenate([table.mean for table in tables])
    order = np.lexsort((label, client))
    client, label, count = client[order], label[order], count[order]
    first = np.append(True, (client[1:] != client[:-1]) | (label[1:] != label[:-1]))
    start = np.flatnonzero(first)
    size = np.diff(np.append(start, len(order)))
    total = np.add.reduceat(count, start)
    mean = np.empty((len(start), means.shape[1]))
    squares = _squares_of(tables, order, np.cumsum(first) - 1, len(start), layout, means.shape[1])
    pooled = np.zeros((means.shape[1],) * 2) if layout.pooled else None
    for groups in _blocks_of(start, len(order)):
        rows = slice(start[groups.start], start[groups.stop] if groups.stop < len(start) else len(order))
        weight, sizes = count[rows, None], size[groups]
        values = means[order[rows]].astype(np.float64, copy=False)
        plain = (weight == 1).all()
        sums = _sums(values if plain else weight * values, start[groups] - rows.start)
        mean[groups] = sums / total[groups, None]
        if layout.squares is None:
            continue
        values -= np.repeat(mean[groups], sizes, 0)
        if not plain:
            values *= np.sqrt(weight)
        own = np.repeat(np.arange(len(sizes)), sizes)
        if (sizes == 1).any():
            # Leave out groups of a single row, as they have no scatter.
            own, values = own[(sizes > 1)[own]], values[(sizes > 1)[own]]
        if pooled is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values.astype(dtype)
                pooled += values.T @ values
        elif squares is not None and len(own):
            _add_squares(squares[groups], own, values, layout.squares, dtype)
    return MeansTable(client[start], label[start], total, mean, squares), pooled


def _sums(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Sum rows by group; group g starts at row ``start[g]``."""
    if len(values) < 4 * len(start):
        return np.add.reduceat(values, start)
    # If groups have many rows, this is five times faster than `reduceat`.
    return np.stack([part.sum(0) for part in np.split(values, start[1:])])


def _blocks_of(start: np.ndarray, length: int) -> Iterable[slice]:
    """Cut the groups of a table's rows into blocks of at most `BLOCK` rows; yield each as a slice of groups.

    A group with more rows is a block of its own. Group g begins at row ``start[g]``; ``length`` is the number
    of all rows.
    """
    ends, first = np.append(start[1:], length), 0
    while first < len(start):
        last = max(first + 1, int(np.searchsorted(ends, start[first] + BLOCK, side="right")))
        yield slice(first, last)
        first = last


def _squares_of(
    tables: tuple[MeansTable, ...],
    order: np.ndarray,
    group: np.ndarray,
    groups: int,
    layout: Layout,
    dim: int,
) -> np.ndarray | None:
    """Add up the scatters of the rows of each group, from ``MeansTable.squares``; None if none are kept.

    Rows are numbered from 0 through all ``tables``, one table after another. Row ``order[i]`` is in group
    ``group[i]``; ``groups`` is the number of groups. ``layout`` says whether a scatter is a matrix, a
    diagonal or a number, of ``dim`` features.
    """
    if layout.squares is None or layout.pooled:
        return None
    shape = {"full": (dim, dim), "diagonal": (dim,), "spherical": ()}[layout.squares]
    squares, place, first = np.zeros((groups, *shape)), np.empty(len(order), np.int64), 0
    place[order] = group
    for table in tables:
        if table.squares is not None:
            # A table with squares is already merged, so each of its rows is in a group of its own.
            squares[place[first : first + len(table.count)]] += table.squares
        first += len(table.count)
    return squares


def _add_squares(squares: np.ndarray, group: np.ndarray, values: np.ndarray, kind: str, dtype: Any) -> None:
    """Add the scatter of ``values`` in each group to the group's entry in ``squares``.

    ``values`` are deviations from the group's mean, sorted by group. ``kind`` says whether the scatter is
    "full", its "diagonal" or its trace ("spherical").
    """
    start = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    if kind == "full":
        values = values.astype(dtype)
        for first, last in zip(start, np.append(start[1:], len(group)), strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                squares[group[first]] += values[first:last].T @ values[first:last]
        return
    sums = _sums(np.square(values), start)
    squares[group[start]] += sums if kind == "diagonal" else sums.sum(1)


def rows_of(table: MeansTable, layout: Layout, dtype: np.dtype) -> Rows:
    """Convert a `MeansTable` of class means to `Rows`, with means and covariances of type ``dtype``.

    If ``layout.by_client``, clients are renumbered from 0, and padding rows are added at the end: tables of
    similar size then have one shape, and share compiled functions.
    """
    covariance = None
    if table.squares is not None:
        degrees = np.maximum(table.count - 1, 1).reshape(-1, *(1 for _ in table.squares.shape[1:]))
        # A spherical covariance is one number: the mean of the features' variances.
        size = table.mean.shape[1] if layout.squares == "spherical" else 1
        covariance = (table.squares / (degrees * size)).astype(dtype)
    count = summable(table.count)
    with np.errstate(over="ignore"):
        rows = Rows(table.mean.astype(dtype), count, table.label.astype(np.int32), covariance=covariance)
    if not layout.by_client:
        return rows
    client = np.unique(table.client, return_inverse=True)[1].astype(np.int32)
    return padded_rows(replace(rows, client=client), padded_size(len(client)))
