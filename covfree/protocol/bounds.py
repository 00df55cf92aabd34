"""Derive upper bounds on a client's number of examples, and on norms of features, from all messages.

The bounds are loose, so that no honest client is rejected. They limit how far one message can outweigh all
others; they do not show who lies. ``docs/server.md`` states the rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covfree.core.types import Message
from covfree.protocol.checks import Rules, max_norm_of
from covfree.protocol.sites_model import robust_deviation
from covfree.protocol.values import square_sums

# With fewer clients, no bounds are derived.
_FEWEST = 4
# How far a bound lies above the median, in robust standard deviations of the logarithms. In real federations,
# the largest clients lie 5.3 above it.
_DEVIATIONS = 6.0
# A bound is at least this many times the median: for the examples of a client, for the sum of squares of its
# features, and for their mean square.
_COUNT, _WHOLE, _EACH = 30.0, 100.0, 100.0
# Logarithm of the largest allowed ratio of a bound to the median; a larger one could overflow.
_LARGEST = 200.0


@dataclass(frozen=True)
class Size:
    """How many examples a message has, and how large they are; bounds follow from all messages' sizes.

    A message's rows are class means, or residual directions (singular vectors, marked by `Rows.sketch`).

    Attributes:
        count: the number of examples; or the largest count of a residual direction, if that is larger.
        label: the class of each mean.
        number: for each mean, the number of its examples.
        square: for each mean, the mean of ‖f‖² over the features f of its examples, by `square_sums`.
        directions: Σ‖y‖² over the residual directions y.
        trace: the trace of the message's matrix; 0 without one.
    """

    count: float
    label: np.ndarray
    number: np.ndarray
    square: np.ndarray
    directions: float
    trace: float


def sizes_of(message: Message, owner: np.ndarray | None = None, clients: int = 1) -> Iterator[Size]:
    """Yield the `Size` of a client's message; or, for several clients' merged messages, one for each client.

    In a merged message of ``clients`` clients, row r is from client ``owner[r]``, a number from 0. Its matrix
    is the sum of the clients' matrices, so each client's `Size` gets an equal share of the trace.
    """
    rows = message.rows
    count, label = np.asarray(rows.count).astype(np.float64), np.asarray(rows.label)
    squares = square_sums(rows)
    owner = np.zeros(len(label), np.int32) if owner is None else owner
    order = np.argsort(owner, kind="stable")
    places = np.searchsorted(owner[order], np.arange(clients + 1))
    # The server has only the sum of several clients' matrices, so each client gets the mean trace.
    trace = 0.0 if message.matrix is None else float(np.trace(message.matrix, dtype=np.float64)) / clients
    for start, stop in itertools.pairwise(places):
        own = order[start:stop]
        means, vectors = own[label[own] >= 0], own[label[own] < 0]
        number = max(count[means].sum(), count[vectors].max(initial=0))
        square = squares[means] / count[means]
        yield Size(number, label[means], count[means], square, float(squares[vectors].sum()), trace)


class _Range(NamedTuple):
    """An upper bound on one quantity of clients, such as their number of examples, derived from its values.

    Attributes:
        median: the median of the clients' values above 0.
        most: the bound.
        clients: the number of clients with such a value.
    """

    median: float
    most: float
    clients: int

    def root(self) -> _Range:
        """Take square roots of median and bound: a bound on squared norms becomes a bound on norms."""
        return self._replace(median=self.median**0.5, most=self.most**0.5)

    def __str__(self) -> str:
        return f"{self.most:.4g}, derived from {self.clients} clients (median {self.median:.4g})"


def _range(values: Iterable[float], least: float) -> _Range | None:
    """Derive an upper bound on ``values``, such as numbers of examples; a few outliers hardly change it.

    Only values above 0 are used; return None if there are fewer than four. The bound's logarithm is the
    median of the values' logarithms plus 6 robust standard deviations (`robust_deviation`). The bound is at
    least ``least`` times the median.
    """
    logs = np.log([value for value in values if value > 0])
    if len(logs) < _FEWEST:
        return None
    median, spread = float(np.median(logs)), float(robust_deviation(logs, tail=True))
    factor = math.exp(min(max(_DEVIATIONS * spread, math.log(least)), _LARGEST))
    return _Range(math.exp(median), math.exp(median) * factor, len(logs))


class Limits:
    """Bounds on the size of a message, derived from the sizes of all messages, earlier rounds included."""

    def __init__(self, sizes: list[Size], rules: Rules) -> None:
        sizes = [size for size in sizes if size.count > 0]
        rows = [size for size in sizes if len(size.square)]
        self._rules, self._number = rules, len(sizes)
        self._count = _range([s.count for s in sizes], _COUNT) if rules.max_count == "derived" else None
        self._norms = rules.max_norm == "derived" and max_norm_of(rules) is None
        self._row = _range([float(s.square.mean()) for s in rows], _EACH)
        self._whole_row = _range([float((s.square * s.number).mean()) for s in rows], _EACH)
        self._squares = _range([float(s.square @ s.number) for s in rows], _WHOLE)
        self._sums = {
            name: (
                _range([getattr(s, name) / s.count for s in sizes], _EACH),
                _range([getattr(s, name) for s in sizes], _WHOLE),
            )
            for name in ("directions", "trace")
        }

    def exceeded(self, sizes: Mapping[Hashable, Size]) -> dict[Hashable, str]:
        """Return, for each client whose message exceeds the bounds, the reason."""
        reasons = {client: self._beyond(size) for client, size in sizes.items()}
        return {client: reason for client, reason in reasons.items() if reason is not None}

    def _beyond(self, size: Size) -> str | None:
        """Return the reason why a message of this size exceeds the bounds; None if it does not."""
        if self._count is not None and size.count > self._count.most:
            return f"count: counts sum to {size.count:.15g}; expected at most {self._count}; see max_count"
        if not self._norms:
            return None
        if self._row is not None and self._whole_row is not None and self._squares is not None:
            # The fewer examples a mean has, the longer noise makes it, so its bound is at least ``few``.
            few = _EACH * self._whole_row.median / np.maximum(size.number, 1)
            excess = size.square / np.maximum(self._row.most, few)
            if (excess > 1).any():
                row = int(np.argmax(excess))
                return (
                    f"mean: a row of class {size.label[row]} implies features with a root-mean-square norm "
                    f"of {size.square[row] ** 0.5:.4g} or more; expected at most {self._row.root()}; "
                    "see max_norm"
                )
            if (whole := float(size.square @ size.number)) > self._squares.most:
                return f"mean: squares sum to {whole:.4g}; expected at most {self._squares}; see max_norm"
        for name, (each, whole) in self._sums.items():
            found = getattr(size, name)
            if each is None or whole is None:
                continue
            if found > max(each.most * size.count, _EACH * whole.median) or found > whole.most:
                part = "matrix: has a trace" if name == "trace" else "mean: residual directions have squares"
                return f"{part} of {found:.4g}; expected at most {whole}, and {each} an example; see max_norm"
        return None

    def report(self) -> dict[str, str]:
        """Return the bounds in words, as the entries ``max_count`` and ``max_norm`` of a dictionary."""
        few = f"none, as {self._number} clients are too few to derive one from"
        norm = None if self._row is None else self._row.root()
        said, public = {}, max_norm_of(self._rules)
        for name, derived in {"max_count": self._count, "max_norm": norm}.items():
            given = getattr(self._rules, name)
            if given == "derived":
                said[name] = few if derived is None else str(derived)
            else:
                said[name] = "none, switched off" if given is None else f"{given}, as given"
        if self._rules.max_norm == "derived" and public is not None:
            said["max_norm"] = f"{public:.4g}, that of the method's map of features"
        return said
