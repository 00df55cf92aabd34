"""Checks of received messages: which are sound, and which belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_positive, check_row_structure, check_strength
from covfree.core.row_types import RowTypes, count_sum
from covfree.core.types import Message, Rows, accumulation_dtype
from covfree.protocol.squares import bordered, is_positive, rounding, unit_diagonal
from covfree.protocol.values import check_rows, largest_sum, sound_rows, square_sums


@dataclass(frozen=True)
class Bounds:
    """Bounds that every message must keep.

    Attributes:
        num_classes: C.
        dim: d; None for any.
        num_examples: the number of examples that a client announced, for those that did.
        max_count: most examples of a client; None for any number.
        max_norm: the largest norm of a feature vector; None for any.
    """

    num_classes: int
    dim: int | None = None
    num_examples: Mapping[Hashable, int] = field(default_factory=dict)
    max_count: int | float | None = None
    max_norm: int | float | None = None

    def __post_init__(self) -> None:
        """Raise an error unless all of them are valid bounds."""
        check_positive("num_classes", self.num_classes)
        if self.dim is not None:
            check_positive("dim", self.dim)
        if not isinstance(self.num_examples, Mapping):
            raise TypeError(f"num_examples: expected a number by client, got {self.num_examples!r}")
        named = {f"num_examples[{client!r}]": number for client, number in self.num_examples.items()}
        for name, value in {**named, "max_count": self.max_count, "max_norm": self.max_norm}.items():
            if value is not None:
                check_strength(name, value)

    def check_announced(self, senders: Collection[Hashable]) -> None:
        """Raise if ``num_examples`` names clients, and none of them is among the senders."""
        if self.num_examples and senders and not any(client in senders for client in self.num_examples):
            named, sent = (", ".join(map(repr, list(names)[:3])) for names in (self.num_examples, senders))
            raise ValueError(f"num_examples: expected clients that sent, such as {sent}; got {named}")


def sort_out(
    messages: Mapping[Hashable, Message], bounds: Bounds, before: Message | None
) -> tuple[dict[Hashable, Message], dict[Hashable, str]]:
    """The sound messages, as `sound_message` gives them, and why each of the others is not sound.

    Args:
        messages: by client.
        bounds: what they are held against.
        before: those of earlier rounds in one, whose parts new ones must have.
    """
    sound, rejected = {}, {}
    for client, message in messages.items():
        try:
            sound[client] = sound_message(message, bounds, bounds.num_examples.get(client))
        except (TypeError, ValueError) as error:
            rejected[client] = str(error)
    # Solutions have become means; what they were is in the messages.
    for client, reason in unlike({client: messages[client] for client in sound}, before).items():
        rejected[client] = reason
        del sound[client]
    return sound, rejected


def sound_message(message: Message, bounds: Bounds, num_examples: int | None = None) -> Message:
    """A message as the server adds it up: in data types that hold sums, with means in the place of solutions.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or a value is wrong.
    """
    if not isinstance(message, Message):
        raise TypeError(f"message: expected a Message, got {type(message).__name__}")
    check_row_structure(message.rows, dim=bounds.dim)
    types = RowTypes.of(message.rows, count_sum(message.rows.count))
    rows = sound_rows(message.rows, types, num_classes=bounds.num_classes)
    total = _check_counts(message.rows, bounds.max_count, num_examples)
    matrix = _sound_matrix(message, total)
    if message.solved and matrix is not None:
        rows = _with_means(rows, matrix)
        check_rows(rows, num_classes=bounds.num_classes)
    if bounds.max_norm is not None:
        _check_norms(rows, None if message.solved else matrix, total, bounds.max_norm)
    return Message(rows, matrix, sends=message.sends)


def common_dim(messages: Iterable[Any]) -> int | None:
    """The dimension that all messages with well-formed rows have; None if there is none.

    Raises:
        ValueError: if they differ: the server knows its features, and a vote would leave that to the senders.
    """
    dims = Counter(np.shape(message.rows.mean)[1] for message in messages if _has_rows(message))
    if len(dims) > 1:
        found = ", ".join(f"{dim} ({number})" for dim, number in sorted(dims.items()))
        raise ValueError(
            "dim: expected the number of features, as messages differ in it; got None and messages of "
            f"{found}"
        )
    return next(iter(dims), None)


def _has_rows(message: Any) -> bool:
    try:
        check_row_structure(message.rows)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _parts(message: Message) -> dict[str, int]:
    """Dimensions of each part that may be there or not, 0 where it is not; and whether it is a solution."""
    rows = message.rows
    parts = {"covariance": rows.covariance, "sketch": rows.sketch, "matrix": message.matrix}
    sizes = {name: 0 if part is None else np.ndim(part) for name, part in parts.items()}
    return {**sizes, "solved": bool(message.solved)}


def unlike(sound: Mapping[Hashable, Message], before: Message | None) -> dict[Hashable, str]:
    """Why each message that does not hold the parts that others hold cannot be put together with them.

    The others are those of earlier rounds, else most of this one, whatever the order of the clients. A
    message without rows may hold any parts, as it adds nothing.
    """
    parts = {client: _parts(message) for client, message in sound.items() if len(message.rows.count)}
    structures = Counter(tuple(own.items()) for own in parts.values())
    # The one with fewer parts of two that are as frequent.
    ordered = sorted(structures, key=lambda structure: tuple(size for _, size in structure))
    expected = dict(max(ordered, key=structures.__getitem__, default=()))
    if before is not None and len(before.rows.count):
        expected = _parts(before)
    reasons = {}
    for client, own in parts.items():
        for name in own:
            if own[name] != expected[name]:
                wanted, got = _described(name, expected[name]), _described(name, own[name])
                reasons[client] = f"{name}: expected {wanted} as others send, got {got}"
                break
    # The same parts may be of another method. A message made by hand does not say.
    kinds = {client: sound[client].sends for client in parts if client not in reasons}
    frequent = Counter(kind for kind in kinds.values() if kind is not None)
    usual = before.sends if before is not None and len(before.rows.count) else None
    usual = usual or max(sorted(frequent), key=frequent.__getitem__, default=None)
    for client, kind in kinds.items():
        if kind not in (None, usual):
            reasons[client] = f"sends: expected {usual!r} as others send, got {kind!r}"
    return reasons


def _described(name: str, size: int) -> str:
    if name == "solved":
        return str(bool(size))
    return "none" if size == 0 else f"an array of {size} dimensions"


def _check_counts(rows: Rows, max_count: int | float | None, num_examples: int | float | None) -> float:
    """The number of examples behind the rows, or raise unless it is as announced and within the bound."""
    count = np.asarray(rows.count)
    total = count_sum(count[np.asarray(rows.label) >= 0])
    # The parts of a class that a mixture's components hold add up but for rounding.
    slack = 0 if count.dtype.kind in "iu" else 1e-5
    if num_examples is not None and not np.isclose(total, num_examples, rtol=slack):
        raise ValueError(f"count: counts sum to {total:.15g}; expected the {num_examples} examples announced")
    if max_count is not None and total > max_count * (1 + slack):
        raise ValueError(f"count: counts sum to {total:.15g}; expected at most max_count = {max_count}")
    if rows.sketch is not None:
        degrees = max((float(n) for n in count[np.asarray(rows.sketch)]), default=0.0)
        for most in (num_examples, max_count):
            if most is not None and degrees > most:
                raise ValueError(
                    f"count: residual directions show {degrees:.15g} degrees of freedom; expected at most "
                    f"{most}, the number of examples"
                )
    return total


def _sound_matrix(message: Message, total: float) -> np.ndarray | None:
    """The matrix in float32 at least, or raise unless it can be F Fᵀ of the examples behind the rows."""
    dim = np.shape(message.rows.mean)[1]
    if message.matrix is None:
        if message.solved:
            raise ValueError("matrix: expected the one that the solution was computed with, got none")
        return None
    came = np.asarray(message.matrix)
    if not jnp.issubdtype(came.dtype, jnp.floating):
        raise TypeError(f"matrix: expected floats, got {came.dtype}")
    if came.shape != (dim, dim):
        raise ValueError(f"matrix: expected shape {[dim, dim]}, got {list(came.shape)}")
    with np.errstate(over="ignore"):
        matrix = came.astype(accumulation_dtype(came.dtype), copy=False)
    if not np.isfinite(matrix).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(matrix))[0])
        raise ValueError(f"matrix: holds {came[place]} at {place}; expected finite numbers")
    if (trace := float(np.trace(matrix, dtype=np.float64))) > (most := largest_sum(matrix.dtype)):
        raise ValueError(
            f"matrix: has a trace of {trace:.2g}; expected at most {most:.2g}, as larger sums could overflow"
        )
    rows = message.rows
    tolerance = rounding(total, came.dtype, np.asarray(rows.mean).dtype)
    scaled, size = unit_diagonal("matrix:", matrix, total, tolerance)
    # AFL's solution is no part of the matrix: there is nothing to compare it with.
    border = np.zeros((0, dim), np.float32)
    if not message.solved:
        labels, sums = _root_sums(rows)
        border = (sums / size).astype(np.float32)
        if (np.abs(border) > 1 + 2 * tolerance).any():
            c, i = (int(place) for place in np.unravel_index(np.argmax(np.abs(border)), border.shape))
            raise ValueError(
                f"matrix: holds {came[i, i]} at {(i, i)}; expected at least {sums[c, i] ** 2:.7g}, the count "
                f"times the squared mean of class {labels[c]}"
            )
    if not is_positive(bordered(scaled, border), tolerance):
        if not len(border) or not is_positive(scaled, tolerance):
            raise ValueError("matrix: has a negative eigenvalue; expected F Fᵀ, a sum of squares")
        raise ValueError(
            "matrix: has a negative eigenvalue without the counts times the squared means of the rows; "
            "expected F Fᵀ of the examples behind them"
        )
    return matrix


def _root_sums(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and √N_c μ_c of each: their squares are the part of F Fᵀ that the class means explain."""
    label, count = np.asarray(rows.label), np.asarray(rows.count).astype(np.float64)
    used = (label >= 0) & (count > 0)
    labels, place = np.unique(label[used], return_inverse=True)
    sums, counts = np.zeros((len(labels), np.shape(rows.mean)[1])), np.zeros(len(labels))
    np.add.at(sums, place, np.asarray(rows.mean)[used].astype(np.float64) * count[used][:, None])
    np.add.at(counts, place, count[used])
    return labels, sums / np.sqrt(counts)[:, None]


def _with_means(rows: Rows, matrix: np.ndarray) -> Rows:
    """Class means in the place of the columns of a ridge solution: C W = Xᵀ Y, the class sums."""
    sums = np.asarray(rows.mean).astype(np.float64) @ matrix.astype(np.float64)
    means = sums / np.maximum(rows.count, 1)[:, None]
    with np.errstate(over="ignore"):
        return replace(rows, mean=means.astype(np.asarray(rows.mean).dtype))


def _check_norms(rows: Rows, matrix: np.ndarray | None, total: float, max_norm: int | float) -> None:
    """Raise unless the sums of squares are those of features of at most this norm.

    Of n examples of a class the scatter has a trace of at most n·max_norm². The squares of residual
    directions sum to a part of the traces of all classes.
    """
    most = max_norm**2 * (1 + 1e-3)
    count, label = np.asarray(rows.count).astype(np.float64), np.asarray(rows.label)
    squares = square_sums(rows)
    wrong = (squares > count * most) & (count > 0) & (label >= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"mean: row {row} (class {label[row]}) is of features of norm "
            f"{np.sqrt(squares[row] / count[row]):.7g} on average; expected at most max_norm = {max_norm}"
        )
    vectors = np.zeros(len(count), bool) if rows.sketch is None else np.asarray(rows.sketch) & (count > 0)
    if (shown := squares[vectors].sum()) > total * most:
        raise ValueError(
            f"mean: residual directions have squares that sum to {shown:.7g}; expected at most "
            f"{total * max_norm**2:.7g}, the number of examples times the square of max_norm = {max_norm}"
        )
    if matrix is not None and (trace := float(np.trace(matrix, dtype=np.float64))) > total * most:
        raise ValueError(
            f"matrix: has a trace of {trace:.7g}; expected at most {total * max_norm**2:.7g}, the number of "
            f"examples times the square of max_norm = {max_norm}"
        )
