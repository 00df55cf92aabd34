"""Add clients' uploads: arrays are added, tables are concatenated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.doors import as_array
from covfree.core.sums import Table


def is_table(part: Any) -> bool:
    """Return whether a part of an upload is a `Table`."""
    return isinstance(part, Table)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parts:
    """An upload as lists of arrays: arrays to add over clients, and the arrays of tables, to concatenate.

    Arrays may have one more leading axis, of clients, if several clients' uploads are stacked.

    Attributes:
        sums: the arrays that are added.
        tables: the arrays of each `Table`, which are not added.
        structure: the tree structures of the upload and of its tables; `upload` rebuilds it with them.
    """

    sums: Any
    tables: list[list[Any]]
    structure: Any = field(metadata={"static": True})

    @classmethod
    def of(cls, upload: Any) -> Parts:
        """Make the `Parts` of an upload: arrays to be added over clients, and the arrays of each `Table`."""
        parts, whole = jax.tree.flatten(upload, is_leaf=is_table)
        tables = tuple(jax.tree.structure(part) if is_table(part) else None for part in parts)
        return cls(
            [part for part in parts if not is_table(part)],
            [jax.tree.leaves(part) for part in parts if is_table(part)],
            (whole, tables),
        )

    def upload(self) -> Any:
        """Put the arrays together again: return the upload that `of` took apart."""
        whole, tables = self.structure
        sums, items = iter(self.sums), iter(self.tables)
        parts = [next(sums) if table is None else table.unflatten(next(items)) for table in tables]
        return whole.unflatten(parts)


def add(first: Any, second: Any) -> Any:
    """Add two uploads of the same algorithm and round.

    Addition is associative and commutative, up to the rounding of sums and the order of items in tables.

    >>> import jax.numpy as jnp
    >>> one = {"count": jnp.array(2), "seen": Table(jnp.array([3.0]), jnp.array([True]))}
    >>> both = add(one, one)
    >>> both["count"].item(), both["seen"].items.tolist()
    (4, [3.0, 3.0])
    """

    def plus(a: Any, b: Any) -> Any:
        if is_table(a):
            return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b)
        return jnp.add(a, b)

    return jax.tree.map(plus, first, second, is_leaf=is_table)


def packed(table: list[Any]) -> list[Any]:
    """Return the leaves of a `Table` without padding rows; ``table`` is the list of its leaves.

    This runs on the host, as the new size depends on the values.
    """
    *_, kept = table
    return [as_array(np.asarray(part)[np.asarray(kept)]) for part in table]


def size_in_bytes(tree: Any) -> int:
    """Count the bytes of a pytree when it is sent, without the padding of tables."""

    def size(part: Any) -> int:
        leaves = jax.tree.leaves(part.items if is_table(part) else part)
        whole = sum(int(leaf.size) * jnp.dtype(leaf.dtype).itemsize for leaf in leaves)
        if not is_table(part) or not whole:
            return whole
        return whole // len(part.kept) * int(np.asarray(part.kept).sum())

    return sum(map(size, jax.tree.leaves(tree, is_leaf=is_table)))
