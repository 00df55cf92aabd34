"""Sums over examples (totals), from which a head is solved. Workers sum parts of the data, in any order.

`zero` makes an empty total, `add` adds examples, `merge` merges two totals, and `finish` solves for the head.
Totals are NumPy arrays and can be pickled. The head equals the head of `fit` within rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer, Shaped

from covfree.core.checks import check, check_positive, check_type
from covfree.core.padding import as_arrays, pad_rows
from covfree.core.row_types import double
from covfree.core.types import AnyArray, H, Message, accumulation_dtype, is_traced
from covfree.engine.batch import solve_totals, state_of_message
from covfree.engine.examples import mapped
from covfree.engine.tables import BLOCK, Layout, MeansTable, one_table, rows_of
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.methods.rounds import option

# Merge only if more rows than this are waiting: each merge reads and writes d² numbers, even for one row.
_WAITING = 2048


def layout_of(method: Method[Any]) -> Layout:
    """Return the `Layout` of a method: which sums over examples it needs.

    Raises:
        ValueError: if clients send neither sums nor one row for each client and class, or if the
            method transforms the rows before clients send them.
    """
    method.check_message()
    if method.transforms:
        raise ValueError(
            f"method: expected one without transforms, as they change a client's whole message; got "
            f"{len(method.transforms)} of {method.name!r}"
        )
    if (kind := method.summary.matrices) is not None:
        return Layout(kind == "sum", "full", kind != "each")
    if option(method.summary.make, "num_subsets") == 1:
        return Layout(True, option(method.summary.make, "covariance"), False)
    raise ValueError(
        f"method: expected one whose clients send sums, or one row for each class, got {method.name!r}: "
        "what its clients send is no sum over their examples; use covfree.fit"
    )


@dataclass(frozen=True, eq=False)
class Aggregate(Generic[H]):
    """Class means and scatter of the examples added so far, from which `finish` makes the method's head.

    `merge` combines two aggregates; it is associative and commutative up to rounding.

    Attributes:
        method: the method.
        num_classes: C.
        layout: which sums are kept, and whether clients are told apart.
        dtype: data type of the features, in which products are computed; None if no examples were added.
        rows: class means, each with its number of examples and perhaps their scatter; None if there are
            none. It has a row for each client and class, sorted by client and then class; or for
            each class, if clients are not told apart.
        waiting: tables that are not merged into ``rows`` yet, such as single examples.
        pooled: [dim, dim] float64, the scatter of examples about the means in ``rows``; None if it is 0 or
            not kept.
    """

    method: Method[H]
    num_classes: int
    layout: Layout
    dtype: np.dtype | None = None
    rows: MeansTable | None = None
    waiting: tuple[MeansTable, ...] = ()
    pooled: np.ndarray | None = None

    @property
    def tables(self) -> tuple[MeansTable, ...]:
        """All tables of this total: ``rows``, if there are any, and the tables in ``waiting``."""
        return self.waiting if self.rows is None else (self.rows, *self.waiting)

    @property
    def num_examples(self) -> int:
        """The number of examples that were added."""
        return sum(int(table.count.sum()) for table in self.tables)

    def __repr__(self) -> str:
        rows = sum(len(table.count) for table in self.tables)
        return f"Aggregate of {self.method.name!r}: {self.num_examples} examples, {rows} rows"

    def __reduce__(self) -> Any:
        # Merge the waiting rows first: they take more space than the rows into which they are merged.
        own = compacted(self)
        return Aggregate, (own.method, own.num_classes, own.layout, own.dtype, own.rows, (), own.pooled)


def zero(method: Method[H], *, num_classes: int) -> Aggregate[H]:
    """Make an empty total, to which `add` adds examples.

    Args:
        method: the method. Its clients must send sums over their examples, such as Gram matrices, or one row
            for each of their classes: the class mean, perhaps with its variances or covariance.
        num_classes: C.

    Raises:
        TypeError: if ``method`` is no method, or ``num_classes`` no integer.
        ValueError: if the method's clients send something else, ``num_classes`` is below 1, or the method has
            transforms, which change the rows that a client sends.

    >>> import covfree, numpy as np
    >>> empty = zero(covfree.fedcof(), num_classes=2)
    >>> left = add(empty, np.array([[0.0], [4.0]]), np.array([0, 1]), np.array([0, 0]))
    >>> right = add(empty, np.array([[5.0], [1.0]]), np.array([1, 0]), np.array([1, 1]))
    >>> finish(merge(left, right))(np.array([[0.0], [5.0]])).argmax(-1).tolist()
    [0, 1]
    """
    check_method(method)
    check_positive("num_classes", num_classes)
    return Aggregate(method, num_classes, layout_of(method))


def add(
    total: Aggregate[H],
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Shaped[AnyArray, " examples"] | None = None,
) -> Aggregate[H]:
    """Return the total with more examples; the given total does not change.

    The cost is that of the examples' Gram matrix if the method needs it, else that of summing the features by
    client and class. Extra memory is needed for a few thousand rows, not for all features.

    Args:
        total: from `zero`, `add` or `merge`.
        features: features of some examples. They may belong to several clients, and need not be all examples
            of a client.
        labels: their classes; below 0 is padding.
        clients: each example's client: an integer (below 0 is padding) or a name (a string). A client must
            have the same number or name in all calls. A name is hashed to 63 bits; the probability that any
            two of a million names share a hash is 5e-8. None if the method does not tell clients apart, as
            with Gram matrices.

    Returns:
        The new total.

    Raises:
        TypeError: if a data type is wrong, ``clients`` are missing, or an array is traced.
        ValueError: if a shape or a value is wrong, or earlier features had another dimension.
    """
    check_type("total", total, Aggregate)
    given = {"features": features, "labels": labels, "clients": clients}
    features, labels, clients = as_arrays(given, given).values()
    clients = _numbered(clients)
    if is_traced(features, labels, clients):
        raise TypeError("features: expected arrays with values; under jit use covfree.accumulate")
    if clients is None and total.layout.by_client:
        raise TypeError(
            f"clients: expected integers, one for each example, as {total.method.name!r} tells clients "
            "apart; got None"
        )
    check(features, labels, clients, num_classes=total.num_classes)
    labels = np.asarray(labels)
    clients = np.zeros(len(labels), np.int64) if clients is None else np.asarray(clients)
    used = np.flatnonzero((labels >= 0) & (clients >= 0))
    for start in range(0, len(used), BLOCK):
        rows = used[start : start + BLOCK]
        total = _added(total, _features_of(total.method, features[rows]), labels[rows], clients[rows])
    return total


def merge(first: Aggregate[H], second: Aggregate[H]) -> Aggregate[H]:
    """Merge two totals (`Aggregate`) of different examples into the total of all these examples.

    Args:
        first: the total of some examples.
        second: the total of others, with the same number of classes and dimension. Its method may differ,
            e.g. in shrinkage, if clients send the same statistics; `finish` uses the method of ``first``.

    Raises:
        TypeError: if an argument is no total.
        ValueError: if the totals differ in dimension, number of classes or what clients send.
    """
    check_type("first", first, Aggregate)
    check_type("second", second, Aggregate)
    for name, own, other in (
        ("method", first.method.sends, second.method.sends),
        ("layout", tuple(first.layout), tuple(second.layout)),
        ("num_classes", first.num_classes, second.num_classes),
    ):
        if own != other:
            raise ValueError(f"second: expected a total with the {name} {own!r} of the first, got {other!r}")
    if not (first.tables and second.tables):
        return first if first.tables else replace(second, method=first.method)
    pooled = [own for own in (first.pooled, second.pooled) if own is not None]
    _check_dim(first, second.tables[0].mean.shape[1], "second")
    merged = sorted(
        (own.rows for own in (first, second) if own.rows is not None), key=lambda own: -own.nbytes
    )
    return _settled(
        replace(
            first,
            dtype=np.result_type(first.dtype, second.dtype),
            rows=merged[0] if merged else None,
            waiting=(*merged[1:], *first.waiting, *second.waiting),
            pooled=sum(pooled[1:], pooled[0]) if pooled else None,
        )
    )


def finish(total: Aggregate[H]) -> H:
    """Solve for the head, as a server does with the messages of all clients.

    Args:
        total: the total of all examples.

    Returns:
        The method's head. It equals the head of `fit` on the same examples within rounding. With more than
        256 clients, automatic shrinkage uses a sample of them; if clients have equal counts, `fit`
        may sample other clients.

    Raises:
        TypeError: if ``total`` is no total.
        ValueError: if there are no examples, or `solve_totals` raises.
    """
    check_type("total", total, Aggregate)
    if not total.tables:
        raise ValueError("total: expected some examples, got none")
    total = compacted(total)
    method, layout, dtype = total.method, total.layout, total.dtype
    table, kind = total.rows, method.summary.matrices
    assert table is not None
    assert dtype is not None
    if not layout.pooled:
        message = Message(rows_of(table, layout, dtype))
        return solve_totals(method, *state_of_message(method, message, total.num_classes))
    # Use float64: a method's merge may subtract products of means from the Gram matrix. In float32 the small
    # difference would be mostly rounding error.
    matrix = np.zeros((table.mean.shape[1],) * 2) if total.pooled is None else total.pooled
    if kind != "sum":
        scaled = table.mean * np.sqrt(table.count)[:, None]
        matrix = matrix + scaled.T @ scaled
        if kind == "solution":
            matrix = matrix + np.float64(method.params.gamma) * np.eye(len(matrix))
    with double():
        message = Message(rows_of(table, layout, np.dtype(np.float64)), matrix)
        leaves, kind = jax.tree.flatten(state_of_message(method, message, total.num_classes))
        leaves = list(map(np.asarray, leaves))
    # Solve in the features' data type, as `fit` does: convert the float64 sums.
    held = [jnp.asarray(leaf.astype(dtype) if leaf.dtype == np.float64 else leaf) for leaf in leaves]
    return solve_totals(method, *jax.tree.unflatten(kind, held))


def _numbered(clients: Any) -> Any:
    """Replace clients' names by 63-bit hashes, the same in all processes; return numbers unchanged."""
    if not isinstance(clients, np.ndarray) or clients.dtype.kind not in "UOT" or clients.ndim != 1:
        return clients
    if not all(isinstance(name, str) for name in clients):
        return clients
    names, place = np.unique(clients, return_inverse=True)
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in names.tolist()]
    return np.array([int.from_bytes(digest) >> 1 for digest in digests], np.int64)[place]


def _features_of(method: Method[Any], features: Any) -> np.ndarray:
    """Apply the method's feature map, if it has one; return a new array of float32 or float64.

    The array is always a copy: the caller may overwrite ``features`` before these examples are merged.
    """
    if method.feature_map is not None:
        given = {"features": np.asarray(features)}
        padded = pad_rows(given, {"features": 0})["features"]
        features = mapped(method.client_part(), padded)[: len(given["features"])]
    return np.array(features, accumulation_dtype(features))


def _added(total: Aggregate[H], features: np.ndarray, labels: Any, clients: Any) -> Aggregate[H]:
    """Return the total with more examples, as rows in its ``waiting`` tables, which are merged later.

    The method's feature map has already been applied to ``features``.
    """
    _check_dim(total, features.shape[1], "features")
    clients = clients.astype(np.int64) if total.layout.by_client else np.zeros(len(labels), np.int64)
    block = MeansTable(clients, labels.astype(np.int64), np.ones(len(labels), np.int64), features)
    dtype = np.result_type(features.dtype, *([] if total.dtype is None else [total.dtype]))
    return _settled(replace(total, dtype=dtype, waiting=(*total.waiting, block)))


def _check_dim(total: Aggregate[Any], dim: int, name: str) -> None:
    if total.tables and (known := total.tables[0].mean.shape[1]) != dim:
        raise ValueError(f"{name}: expected the dimension {known} of the examples before, got {dim}")


def _settled(total: Aggregate[H]) -> Aggregate[H]:
    """Return the total, with the tables in ``waiting`` merged into ``rows`` if they have become large.

    They are merged if they have more than ``_WAITING`` rows, and take more memory than ``rows``.
    """
    rows, size = (
        sum(len(table.count) for table in total.waiting),
        sum(table.nbytes for table in total.waiting),
    )
    merged = 0 if total.rows is None else total.rows.nbytes
    return compacted(total) if rows > _WAITING and size > merged else total


def compacted(total: Aggregate[H]) -> Aggregate[H]:
    """Return ``total`` in less memory: its ``waiting`` tables are merged into its table ``rows``.

    The merged table has one row (mean and count) for each client and class, or for each class.
    """
    if not total.waiting:
        return total
    rows, pooled = one_table(total.tables, total.layout, total.dtype)
    if pooled is not None and total.pooled is not None:
        pooled += total.pooled
    return replace(total, rows=rows, waiting=(), pooled=pooled)
