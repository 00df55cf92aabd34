"""How examples become rows: what a client makes of its features, and all clients of a simulation at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_choice, check_positive
from covfree.core.padding import few_sizes
from covfree.core.types import Rows, accumulation_dtype, is_traced
from covfree.statistics import client_rows, count_rows
from covfree.statistics.groups import as_examples
from covfree.statistics.mixtures import Structure, client_mixtures, mixture_sizes
from covfree.statistics.rows import CovarianceType, check_subsets, pair_sizes, rows_of


@runtime_checkable
class Summary(Protocol):
    """How examples become rows; hashable, so that it is part of a compiled function's key."""

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client."""
        ...

    def sizes(self, labels: np.ndarray, clients: np.ndarray) -> tuple[int, ...]:
        """What `all_clients` must know of the federation in advance: sizes, or bounds on them."""
        ...

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """Sizes that any federation of so many examples keeps within."""
        ...

    def all_clients(
        self,
        features: jax.Array,
        labels: jax.Array,
        clients: jax.Array,
        sizes: tuple[int, ...],
        key: jax.Array | None,
    ) -> Rows:
        """Rows of all clients, padded to a number that the sizes decide."""
        ...

    def floats(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> tuple[int, int]:
        """Rows that all clients send, and the floating-point numbers in them."""
        ...

    def flops(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> int:
        """Floating-point operations of all clients together, from features to rows."""
        ...


class OfManyClients(Summary, Protocol):
    """A `Summary` that makes one client's rows as it makes those of many."""

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client, padded to what `own_sizes` say."""
        labels = jnp.where(labels < num_classes, labels, -1)
        rows = self.all_clients(
            features, labels, jnp.zeros_like(labels), self.own_sizes(labels, num_classes), key
        )
        return replace(rows, client=None)

    def own_sizes(self, labels: jax.Array, num_classes: int) -> tuple[int, ...]:
        """Sizes of a federation of this client alone."""
        return self.bounds(labels.shape[0])


@dataclass(frozen=True)
class ClassMeans(OfManyClients):
    """A row for each class of a client, or for each of several random subsets of it.

    Attributes:
        num_subsets: most subsets of a class; None for no bound but ``subset_size``.
        subset_size: examples that a subset has at least, unless the class has fewer.
        covariance: what is sent of the spread about each mean.
    """

    num_subsets: int | None = 1
    subset_size: int = 2
    covariance: CovarianceType | None = None

    def __post_init__(self) -> None:
        check_subsets(self.num_subsets, self.subset_size)
        check_choice("covariance", self.covariance, (None, *get_args(CovarianceType)))

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client: one a class, unless it has fewer examples."""
        if self.num_subsets != 1 or labels.shape[0] < num_classes:
            return super().one_client(features, labels, num_classes, key)
        features, labels = as_examples(features, labels=labels)
        # The class is the row: there is nothing to sort.
        row = jnp.where(labels < num_classes, labels, -1)
        return replace(rows_of(features, row, row, row, num_classes, self.covariance), client=None)

    def own_sizes(self, labels: jax.Array, num_classes: int) -> tuple[int, ...]:
        """A row for each example, or each subset of a class."""
        most = labels.shape[0] if self.num_subsets is None else self.num_subsets * num_classes
        return (max(1, min(labels.shape[0], most)),)

    def sizes(self, labels: np.ndarray, clients: np.ndarray) -> tuple[int, ...]:
        """Number of rows."""
        return (count_rows(labels, clients, self.num_subsets, subset_size=self.subset_size),)

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """A row for each example, at most."""
        return (max(1, num_examples),)

    def all_clients(
        self,
        features: jax.Array,
        labels: jax.Array,
        clients: jax.Array,
        sizes: tuple[int, ...],
        key: jax.Array | None,
    ) -> Rows:
        """Rows of all clients, ordered by client and class."""
        return client_rows(
            features,
            labels,
            clients,
            num_rows=sizes[0],
            num_subsets=self.num_subsets,
            subset_size=self.subset_size,
            covariance=self.covariance,
            key=key,
        )

    def floats(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> tuple[int, int]:
        """A mean a row, and its covariance's diagonal or one variance."""
        (rows,) = self.sizes(labels, clients)
        beside = {None: 0, "diagonal": dim, "spherical": 1}[self.covariance]
        return rows, rows * (dim + beside)

    def flops(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> int:
        """One addition for each number; to square what is left about the mean takes three more."""
        return len(labels) * dim * (1 if self.covariance is None else 4)


@dataclass(frozen=True)
class Examples:
    """Each example is a row: the rounds' terms are made where the examples are, and only sums leave it."""

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """The client's examples."""
        features, labels = as_examples(features, labels=labels)
        return Rows.from_examples(features.astype(accumulation_dtype(features)), labels)

    def sizes(self, labels: np.ndarray, clients: np.ndarray) -> tuple[int, ...]:
        """Number of examples."""
        return (max(1, len(labels)),)

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """A row for each example."""
        return (max(1, num_examples),)

    def all_clients(
        self,
        features: jax.Array,
        labels: jax.Array,
        clients: jax.Array,
        sizes: tuple[int, ...],
        key: jax.Array | None,
    ) -> Rows:
        """All examples as they are; those without a client become padding."""
        features, labels, clients = as_examples(features, labels=labels, clients=clients)
        rows = Rows.from_examples(
            features.astype(accumulation_dtype(features)), jnp.where(clients >= 0, labels, -1), clients
        )
        short = sizes[0] - labels.shape[0]
        return (
            rows
            if short <= 0
            else jax.tree.map(lambda x: jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)), rows)
        )

    def floats(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> tuple[int, int]:
        """All features, where they are sent as they are."""
        kept = int(((np.asarray(labels) >= 0) & (np.asarray(clients) >= 0)).sum())
        return kept, kept * dim

    def flops(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> int:
        """None."""
        return 0


@dataclass(frozen=True)
class Mixtures(OfManyClients):
    """A row for each component of a Gaussian mixture of each client's class, with the component's covariance.

    Attributes:
        num_components: most components of a client's class.
        covariance: structure of the components' covariances.
    """

    num_components: int = 1
    covariance: Structure = "diagonal"

    def __post_init__(self) -> None:
        check_positive("num_components", self.num_components)
        check_choice("covariance", self.covariance, get_args(Structure))

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Rows of one client, padded to what `own_sizes` say."""
        if labels.shape[0] == 0:
            # A mixture is of one example at least; padding is one.
            features, labels = jnp.zeros((1, features.shape[1]), features.dtype), jnp.full(1, -1, jnp.int32)
        return super().one_client(features, labels, num_classes, key)

    def own_sizes(self, labels: jax.Array, num_classes: int) -> tuple[int, ...]:
        """Counted where the labels are known, as a mixture's cost grows with the bounds."""
        if is_traced(labels):
            return self.bounds(labels.shape[0])
        pairs, examples = self.sizes(np.asarray(labels), np.zeros(labels.shape[0], int))
        # Few sizes: compiling takes longer than fitting some empty groups.
        return min(max(num_classes, pairs), few_sizes(pairs)), few_sizes(examples)

    def sizes(self, labels: np.ndarray, clients: np.ndarray) -> tuple[int, ...]:
        """Number of client-class pairs, and examples of the largest."""
        return mixture_sizes(labels, clients)

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """A pair for each example, or all examples in one."""
        return max(1, num_examples), max(1, num_examples)

    def all_clients(
        self,
        features: jax.Array,
        labels: jax.Array,
        clients: jax.Array,
        sizes: tuple[int, ...],
        key: jax.Array | None,
    ) -> Rows:
        """Rows of all clients, ordered by client, class and component."""
        if key is None:
            raise ValueError("key: expected a PRNG key as mixtures start from random examples, got None")
        num_groups, group_size = sizes
        return client_mixtures(
            features,
            labels,
            clients,
            num_groups=num_groups,
            group_size=group_size,
            num_components=self.num_components,
            covariance=self.covariance,
            key=key,
        )

    def _components(self, labels: np.ndarray, clients: np.ndarray) -> np.ndarray:
        return np.clip(pair_sizes(labels, clients) // 2, 1, self.num_components)

    def floats(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> tuple[int, int]:
        """A mean and a covariance for each component, where no class has equal examples."""
        rows = int(self._components(labels, clients).sum())
        return rows, rows * (dim + {"full": dim * dim, "diagonal": dim, "spherical": 1}[self.covariance])

    def flops(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> int:
        """At most, in 50 steps; see `gaussian_mixture`."""
        sizes, components = pair_sizes(labels, clients), self._components(labels, clients)
        step = components * sizes * dim * (3 * dim if self.covariance == "full" else 8)
        if self.covariance == "full":
            step = step + components * dim**3 // 3
        return int(50 * step.sum())
