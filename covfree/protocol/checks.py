"""Check one message by the server's rules, and convert it to the form in which it is merged with others."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_positive, check_row_structure, check_strength
from covfree.core.row_types import RowTypes, count_sum
from covfree.core.types import AnyArray, Message, Rows, accumulation_dtype
from covfree.methods import Method
from covfree.protocol.kinds import Kind, elsewhere, renumbered
from covfree.protocol.values import (
    check_rows,
    is_positive,
    largest_sum,
    rounding,
    sound_rows,
    square_sums,
    unit_diagonal,
)

# A bound: a number, "derived" from the messages, or None for no bound.
Bound: TypeAlias = int | float | Literal["derived"] | None


@dataclass(frozen=True)
class Rules:
    """The rules by which messages are checked, such as bounds on counts: the arguments of `collect`."""

    num_classes: int
    dim: int | None = None
    method: Method[Any] | None = None
    class_names: tuple[str, ...] | None = None
    extractor: str | None = None
    num_examples: Mapping[Hashable, int] = field(default_factory=dict)
    max_count: Bound = None
    max_norm: Bound = None
    judge_sites: bool = False

    def __post_init__(self) -> None:
        """Check the fields; raise an error if one is invalid."""
        check_positive("num_classes", self.num_classes)
        if self.dim is not None:
            check_positive("dim", self.dim)
        if not isinstance(self.num_examples, Mapping):
            raise TypeError(f"num_examples: expected a number by client, got {self.num_examples!r}")
        named = {f"num_examples[{client!r}]": number for client, number in self.num_examples.items()}
        for name, value in {**named, "max_count": self.max_count, "max_norm": self.max_norm}.items():
            if value is not None and (value != "derived" or name in named):
                check_strength(name, value)
        if self.method is not None and not self.method.message_rounds:
            self.method.check_message()
        # Compute the kind now: a faulty method must raise its error here, not cause messages to be rejected.
        _ = self.kind

    @cached_property
    def kind(self) -> Kind | None:
        """The kind (parts and metadata) of message that the method's clients send; None without a method."""
        if (method := self.method) is None:
            return None
        plain = replace(method, feature_map=None, transforms=())
        found: list[Kind] = []

        def made(features: jax.Array, labels: jax.Array, key: jax.Array) -> AnyArray:
            message = plain.made(features, labels, 2, key)
            found.append(Kind.of(message))
            return message.rows.count

        jax.eval_shape(made, jnp.zeros((4, 8)), jnp.zeros(4, jnp.int32), jax.random.key(0))
        return found[0]._replace(sends=method.sends, class_names=self.class_names, extractor=self.extractor)

    def difference(self, own: Kind) -> str | None:
        """Say how a message differs in kind from what the method's clients send; None if it does not differ.

        ``own`` is the message's `Kind`: which arrays and metadata it has. Without a method, only class names
        and extractor are compared.
        """
        names = own.class_names
        # If the server knows the class names, a message may have the names of the first classes only.
        least = self.num_classes if self.class_names is None else 1
        if names is not None and not least <= len(names) <= self.num_classes:
            return f"class_names: expected {self.num_classes} names, got {len(names)}"
        if self.method is None or self.kind is None:
            return renumbered(names, self.class_names) or elsewhere(own.extractor, self.extractor)
        return own.difference(self.kind, f"as clients of {self.method.name!r} send")

    def check_announced(self, senders: Collection[Hashable]) -> None:
        """Raise a ValueError if ``num_examples`` names clients, but none of them is among the senders."""
        if self.num_examples and senders and not any(client in senders for client in self.num_examples):
            named, sent = (", ".join(map(repr, list(names)[:3])) for names in (self.num_examples, senders))
            raise ValueError(f"num_examples: expected clients that sent, such as {sent}; got {named}")


def check_known(rows: Rows, num_classes: int, whose: str) -> None:
    """Raise a ValueError if a label is not below ``num_classes``; ``whose`` names the rows in the error."""
    last = int(np.asarray(rows.label).max(initial=-1))
    if last >= num_classes:
        raise ValueError(
            f"num_classes: expected at least {last + 1}, as {whose} hold class {last}, got {num_classes}"
        )


def check_message(message: Message, rules: Rules, announced: int | None = None) -> Message:
    """Check a client's message; return it in the form in which it is merged with others, see `as_received`.

    Args:
        message: the message.
        rules: the rules that it must satisfy.
        announced: the number of examples that the client announced; None if it announced none.

    Raises:
        TypeError: if it is no `Message`, or a data type is wrong.
        ValueError: if the message breaks a rule.
    """
    # The order matters: each check relies on those before it.
    if not isinstance(message, Message):
        raise TypeError(f"message: expected a Message, got {type(message).__name__}")
    rows = message.rows
    check_row_structure(rows, dim=rules.dim)
    if len(rows.count) and (reason := rules.difference(Kind.of(message))) is not None:
        raise ValueError(reason)
    sound_rows(rows, RowTypes.of(rows), num_classes=rules.num_classes)
    total = count_sum(np.asarray(rows.count)[np.asarray(rows.label) >= 0])
    _check_counts(rows, total, rules, announced)
    _check_matrix(message, total)
    received = as_received(message)
    if message.solved:
        # A ridge solution may imply class means that are invalid.
        check_rows(received.rows, num_classes=rules.num_classes)
    if (most := max_norm_of(rules)) is not None:
        _check_norms(received.rows, None if message.solved else received.matrix, total, most)
    return received


def as_received(message: Message) -> Message:
    """Convert a message to the form in which it is merged with others.

    Padding rows and the ``client`` column are removed, and arrays get data types that can be summed. If the
    client sent a ridge solution, class means are computed from it.
    """
    rows = replace(message.rows, client=None)
    means = np.asarray(rows.label) >= 0
    used = means if rows.sketch is None else means | np.asarray(rows.sketch)
    if not (kept := used & (np.asarray(rows.count) > 0)).all():
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[kept], rows)
    rows = RowTypes.of(rows).cast(rows)
    matrix = message.matrix
    if matrix is not None:
        with np.errstate(over="ignore"):
            matrix = np.asarray(matrix).astype(accumulation_dtype(np.asarray(matrix).dtype), copy=False)
        if message.solved:
            rows = _with_means(rows, matrix)
    return replace(message, rows=rows, matrix=matrix, solved=False)


def _with_means(rows: Rows, matrix: np.ndarray) -> Rows:
    """Compute class means from a ridge solution W and the regularised Gram matrix ``matrix`` of its system.

    In ``rows``, the ``mean`` of a class is a column of W. The columns of ``matrix``·W are the sums of the
    classes' features; divided by the counts, they are the means of the result.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.asarray(rows.mean).astype(np.float64) @ matrix.astype(np.float64)
        means = sums / np.maximum(rows.count, 1)[:, None]
        return replace(rows, mean=means.astype(np.asarray(rows.mean).dtype))


def _check_counts(rows: Rows, total: float, rules: Rules, announced: int | None) -> None:
    """Raise a ValueError if the counts do not sum to the announced number, or sum to above ``max_count``.

    ``total`` is the sum of the counts of rows with a class. The count of a residual direction (a row that
    `Rows.sketch` marks) is a number of degrees of freedom. It must not exceed the announced number or
    ``max_count``.
    """
    most = None if rules.max_count == "derived" else rules.max_count
    count = np.asarray(rows.count)
    # Allow for rounding of float counts: a mixture spreads each class over its components by float weights.
    slack = 0 if count.dtype.kind in "iu" else 1e-5
    if announced is not None and not np.isclose(total, announced, rtol=slack):
        raise ValueError(f"count: counts sum to {total:.15g}; expected the {announced} examples announced")
    if most is not None and total > most * (1 + slack):
        raise ValueError(f"count: counts sum to {total:.15g}; expected at most max_count = {most}")
    if rows.sketch is not None:
        degrees = max((float(n) for n in count[np.asarray(rows.sketch)]), default=0.0)
        for bound in (announced, most):
            if bound is not None and degrees > bound:
                raise ValueError(
                    f"count: residual directions show {degrees:.15g} degrees of freedom; expected at most "
                    f"{bound}, the number of examples"
                )


def _check_matrix(message: Message, total: float) -> None:
    """Raise an error if the message's matrix, if any, is not finite, symmetric and positive semi-definite.

    ``total`` is the number of the client's examples.
    """
    dim = np.shape(message.rows.mean)[1]
    if message.matrix is None:
        if message.solved:
            raise ValueError(
                "matrix: expected the matrix from which the ridge solution was computed, got None"
            )
        return
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
    tolerance = rounding(total, came.dtype, np.asarray(message.rows.mean).dtype)
    scaled = unit_diagonal("matrix:", matrix, total, tolerance)
    if not is_positive(scaled, tolerance):
        raise ValueError("matrix: has a negative eigenvalue; expected F Fᵀ, a sum of squares")


def _check_norms(rows: Rows, matrix: AnyArray | None, total: float, most: float) -> None:
    """Raise a ValueError if a client's rows and matrix imply that features have norms above ``most``.

    The statistics of n examples f of a class must agree with Σ‖f‖² ≤ n·most². The squares of all residual
    directions (the rows that `Rows.sketch` marks) must sum to at most N·most², for N = ``total`` examples in
    all; so must the diagonal of ``matrix``, a Gram matrix.
    """
    square = most**2 * (1 + 1e-3)
    count, label = np.asarray(rows.count).astype(np.float64), np.asarray(rows.label)
    squares = square_sums(rows)
    wrong = (squares > count * square) & (label >= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"mean: row {row} (class {label[row]}) implies features with a root-mean-square norm of "
            f"{np.sqrt(squares[row] / count[row]):.7g} or more; expected at most max_norm = {most:.7g}"
        )
    vectors = np.zeros(len(count), bool) if rows.sketch is None else np.asarray(rows.sketch)
    sums = {"mean: residual directions have squares that sum to": squares[vectors].sum()}
    if matrix is not None:
        sums["matrix: has a trace of"] = float(np.trace(matrix, dtype=np.float64))
    for name, found in sums.items():
        if found > total * square:
            raise ValueError(
                f"{name} {found:.7g}; expected at most {total * most**2:.7g}, the number of examples times "
                f"the square of max_norm = {most:.7g}"
            )


def max_norm_of(rules: Rules) -> int | float | None:
    """Return ``rules.max_norm``; for "derived", the largest norm that the method's feature map gives.

    None if ``max_norm`` is None, or if it is "derived" and the map has no such bound.
    """
    if rules.max_norm != "derived":
        return rules.max_norm
    return None if rules.method is None else getattr(rules.method.feature_map, "max_norm", None)
