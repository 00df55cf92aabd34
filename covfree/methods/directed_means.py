"""Class means and residual directions as what a client sends."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from covfree.core.checks import check_positive
from covfree.core.types import Rows
from covfree.methods.summaries import OfManyClients
from covfree.statistics import count_rows
from covfree.statistics.directions import directed_rows
from covfree.statistics.residuals import count_clients
from covfree.statistics.rows import client_sizes


@dataclass(frozen=True)
class DirectedMeans(OfManyClients):
    """A `Summary`: a row for each class of a client, then its residual directions.

    Attributes:
        num_directions: most directions of a client.
        centred: whether they are directions of its residuals, not of its examples. Of examples it sends the
            trace of what the directions leave out too.
    """

    num_directions: int
    centred: bool = True

    def __post_init__(self) -> None:
        check_positive("num_directions", self.num_directions)

    def sizes(self, labels: np.ndarray, clients: np.ndarray) -> tuple[int, ...]:
        """Number of rows that are means, of clients, and of examples of the largest client."""
        largest = client_sizes(labels, clients)[1].max(initial=1)
        return count_rows(labels, clients), max(1, count_clients(labels, clients)), int(largest)

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """A row and a client for each example, or all examples at one client."""
        return (max(1, num_examples),) * 3

    def own_sizes(self, labels: jax.Array, num_classes: int) -> tuple[int, ...]:
        """A row for each class or example, at most, and one client with all examples."""
        size = max(1, labels.shape[0])
        return min(size, num_classes), 1, size

    def all_clients(
        self,
        features: jax.Array,
        labels: jax.Array,
        clients: jax.Array,
        sizes: tuple[int, ...],
        key: jax.Array | None,
    ) -> Rows:
        """Rows of all clients, ordered by client and class, then the directions, ordered by client."""
        num_rows, num_clients, client_size = sizes
        return directed_rows(
            features,
            labels,
            clients,
            num_rows=num_rows,
            num_clients=num_clients,
            client_size=client_size,
            num_directions=self.num_directions,
            centred=self.centred,
        )

    def floats(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> tuple[int, int]:
        """A mean a row, and of each client min(q, n_k − rows, d) directions.

        Of examples min(q, n_k, d) directions, and a number beside each row.
        """
        rows, sizes = client_sizes(labels, clients)
        degrees = sizes - rows if self.centred else sizes
        lines = int(rows.sum() + np.minimum(np.minimum(degrees, self.num_directions), dim).sum())
        return lines, lines * (dim if self.centred else dim + 1)

    def flops(self, labels: np.ndarray, clients: np.ndarray, dim: int) -> int:
        """A mean and a residual, n·d each; then with s = min(n, d) a product and an ``eigh`` of size s."""
        sizes = client_sizes(labels, clients)[1].astype(float)
        smaller = np.minimum(sizes, dim)
        return int((2 * sizes * dim + 2 * sizes * dim * smaller + 9 * smaller**3).sum())
