"""What a method is: a record of pure functions, with its numbers as the leaves of a pytree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.checks import check_positive
from covfree.linalg import Scatter
from covfree.statistics import class_means, client_rows, count_rows, subset_class_means
from covfree.statistics.groups import accumulation_dtype, as_examples
from covfree.types import AnyArray, LinearHead, Message, Rows

# (params, totals of the earlier phases, some rows, num_classes) to terms that add up over rows.
Phase: TypeAlias = Callable[[Any, tuple[Any, ...], Rows, int], Any]

# What leaves a client: its rows; its class means with its Gram matrix, or with its scatter about them; or
# its class means with a covariance each.
MessageKind: TypeAlias = Literal["rows", "gram", "scatter", "covariances"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Factor:
    """A term of a phase that adds up as ``rowsᵀ rows``; any other leaf adds up as it is.

    Kept apart from the product so that whoever runs the phase may choose the product's form: in full, by
    its upper triangle, or not at all where there are few rows (`Scatter.from_factor`).
    """

    rows: Float[Array, "rows dim"]


@runtime_checkable
class Summary(Protocol):
    """How examples become rows; hashable, so that it is part of a compiled function's key."""

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client."""
        ...

    def count(self, labels: np.ndarray, clients: np.ndarray) -> int:
        """Number of rows of all clients."""
        ...

    def all_clients(
        self, features: jax.Array, labels: jax.Array, clients: jax.Array, num_rows: int, key: jax.Array | None
    ) -> Rows:
        """Rows of all clients, padded to ``num_rows``."""
        ...


@dataclass(frozen=True)
class ClassMeans:
    """A row for each class of a client, or for each of ``num_subsets`` random subsets of it."""

    num_subsets: int = 1

    def __post_init__(self) -> None:
        check_positive("num_subsets", self.num_subsets)

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client, with count 0 for the classes it lacks."""
        if self.num_subsets == 1:
            return Rows.from_means(*class_means(features, labels, num_classes))
        if key is None:
            raise ValueError("key: expected a PRNG key as num_subsets > 1 deals examples at random, got None")
        means, counts = subset_class_means(features, labels, num_classes, self.num_subsets, key=key)
        return Rows.from_subset_means(means, counts)

    def count(self, labels: np.ndarray, clients: np.ndarray) -> int:
        """Number of client-class(-subset) groups."""
        return count_rows(labels, clients, self.num_subsets)

    def all_clients(
        self, features: jax.Array, labels: jax.Array, clients: jax.Array, num_rows: int, key: jax.Array | None
    ) -> Rows:
        """Rows of all clients, ordered by client and class."""
        return client_rows(
            features, labels, clients, num_rows=num_rows, num_subsets=self.num_subsets, key=key
        )


@dataclass(frozen=True)
class Examples:
    """Each example is a row: the phases are evaluated where the examples are, and only sums leave it."""

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """The client's examples."""
        features, labels = as_examples(features, labels=labels)
        return Rows.from_examples(features.astype(accumulation_dtype(features)), labels)

    def count(self, labels: np.ndarray, clients: np.ndarray) -> int:
        """Number of examples."""
        return len(labels)

    def all_clients(
        self, features: jax.Array, labels: jax.Array, clients: jax.Array, num_rows: int, key: jax.Array | None
    ) -> Rows:
        """All examples as they are; those without a client become padding."""
        features, labels, clients = as_examples(features, labels=labels, clients=clients)
        rows = Rows.from_examples(
            features.astype(accumulation_dtype(features)), jnp.where(clients >= 0, labels, -1), clients
        )
        short = num_rows - labels.shape[0]
        return (
            rows
            if short <= 0
            else jax.tree.map(lambda x: jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)), rows)
        )


def sent_matrix(matrix: AnyArray | None, name: str) -> AnyArray:
    """Take a part of a message, or raise where the clients did not send it."""
    if matrix is None:
        raise ValueError(f"message: expected a {name} beside the rows, as the method sends it; got none")
    return matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Method:
    """A federated method: how examples become rows, what is summed over rows, and how sums become a head.

    A pytree whose leaves are the numbers in ``params``: a method is passed to compiled functions as an
    argument, so another shrinkage compiles nothing anew, and ``vmap`` and ``grad`` see the number.

    Attributes:
        params: the numbers (and shrinkage rules) that may be swept.
        name: the method's name.
        summary: how examples become rows.
        phases: sums over rows, each given the totals of those before it.
        system: ``(params, *totals) -> Scatter``, the regularised matrix that the head solves with; or None.
        head: ``(params, system, *totals) -> LinearHead``.
        message: what leaves a client.
        merge: ``(params, message, num_classes) -> totals``, the same totals from what clients sent, where
            that is more than rows; None where the server runs the phases over the rows.
    """

    params: Any
    name: str = field(metadata={"static": True})
    summary: Summary = field(metadata={"static": True})
    phases: tuple[Phase, ...] = field(metadata={"static": True})
    system: Callable[..., Scatter] | None = field(metadata={"static": True})
    head: Callable[..., LinearHead] = field(metadata={"static": True})
    message: MessageKind = field(metadata={"static": True})
    merge: Callable[[Any, Message, int], tuple[Any, ...]] | None = field(
        default=None, metadata={"static": True}
    )

    def solve(self, *totals: Any) -> LinearHead:
        """The head from the totals of all phases."""
        system = None if self.system is None else self.system(self.params, *totals)
        return self.head(self.params, system, *totals)
