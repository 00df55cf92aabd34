"""Compute from examples the `Rows` that clients send, such as class means with counts.

For one client, or for all clients of a simulation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_choice, check_positive
from covfree.core.padding import few_sizes
from covfree.core.types import Rows, accumulation_dtype, is_traced
from covfree.methods.rounds import bound
from covfree.statistics import client_rows, count_rows
from covfree.statistics.directions import directed_rows
from covfree.statistics.groups import as_examples
from covfree.statistics.mixtures import Structure, client_mixtures, mixture_sizes
from covfree.statistics.residuals import count_clients
from covfree.statistics.rows import CovarianceType, check_subsets, client_sizes, pair_sizes, rows_of


def num_means(labels: Any, clients: Any, dim: int, **subsets: Any) -> int:
    """Count the means that clients send: one for each client and class, or for each subset of a class."""
    return count_rows(labels, clients, **subsets)


@dataclass(frozen=True)
class Summary:
    """Functions that turn clients' examples into rows, such as class means, and count rows and operations.

    A summary is hashable, as it is a static argument of compiled functions.

    Attributes:
        name: one word for what is sent; messages carry it.
        make: ``(features, labels, clients, sizes, key) -> Rows`` of all clients, padded to ``sizes``.
        sizes: ``(labels, clients) -> tuple`` of the integers that ``make`` needs, computed on the host, such
            as the numbers of rows and of clients. Upper bounds will do.
        flops: ``(labels, clients, dim) -> int``: operations of all clients, on the host.
        num_rows: ``(labels, clients, dim) -> int``: how many rows all clients send, on the host; by default
            one for each client and class.
        own_sizes: ``(labels, num_classes) -> tuple``, the sizes for a single client; None bounds each size by
            the number of examples.
        alone: ``(features, labels, num_classes) -> Rows`` of a single client; it may return None to fall back
            on ``make``. None if ``make`` is always used.
        counts: whether ``own_sizes`` reads the labels' values. ``jit`` hides these, so a client's rows must
            then be made outside ``jit``.
        stays: whether the rows are the examples, which never leave the client.
    """

    name: str
    make: Callable[[Any, Any, Any, tuple[int, ...], Any], Rows]
    sizes: Callable[[Any, Any], tuple[int, ...]]
    flops: Callable[[Any, Any, int], int]
    num_rows: Callable[[Any, Any, int], int] = num_means
    own_sizes: Callable[[Any, int], tuple[int, ...]] | None = None
    alone: Callable[[Any, Any, int], Rows | None] | None = None
    counts: bool = False
    stays: bool = False

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """Return ``sizes`` that are large enough for any ``num_examples`` examples.

        Each is ``num_examples``, but at least 1: no count of rows, classes or clients is larger.
        """
        none = np.zeros(0, np.int32)
        return (max(1, num_examples),) * len(self.sizes(none, none))

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Make the rows of one client; some may be padding."""
        labels = jnp.where(labels < num_classes, labels, -1)
        rows = None if self.alone is None else self.alone(features, labels, num_classes)
        if rows is None:
            size = labels.shape[0]
            sizes = self.bounds(size) if self.own_sizes is None else self.own_sizes(labels, num_classes)
            rows = self.make(features, labels, jnp.zeros_like(labels), sizes, key)
        return replace(rows, client=None)


def send_class_means(
    num_subsets: int | None = 1, subset_size: int = 2, covariance: CovarianceType | None = None
) -> Summary:
    """Make a summary with which a client sends the mean of each of its classes, or of subsets of each class.

    Args:
        num_subsets: the largest number of subsets of a client's class; 1 for plain class means, None if only
            ``subset_size`` bounds their number.
        subset_size: the smallest number of examples in a subset, unless the class has fewer.
        covariance: the form of covariance that is sent with each mean; None for none.
    """
    check_subsets(num_subsets, subset_size)
    check_choice("covariance", covariance, (None, *get_args(CovarianceType)))
    subsets = {"num_subsets": num_subsets, "subset_size": subset_size}
    return Summary(
        "ClassMeans",
        bound(_class_means, **subsets, covariance=covariance),
        bound(_means_sizes, **subsets),
        bound(_means_flops, covariance=covariance),
        bound(num_means, **subsets),
        bound(_own_means_sizes, num_subsets=num_subsets),
        bound(_own_class_means, covariance=covariance) if num_subsets == 1 else None,
    )


def _class_means(
    features: Any, labels: Any, clients: Any, sizes: tuple[int, ...], key: Any, **options: Any
) -> Rows:
    """Compute the class means of all clients as `Rows`, ordered by client and class.

    If ``options`` ask for subsets, see `client_rows`, each random subset of a client's class has its own
    mean. ``sizes[0]`` is the number of rows, padding included.
    """
    return client_rows(features, labels, clients, num_rows=sizes[0], key=key, **options)


def _own_class_means(
    features: Any, labels: Any, num_classes: int, *, covariance: CovarianceType | None
) -> Rows | None:
    """Compute one client's class means without sorting examples: C rows, one for each class, in order.

    Return None if there are fewer examples than classes: `_class_means` then makes fewer rows.
    """
    if labels.shape[0] < num_classes:
        return None
    features, row = as_examples(features, labels=labels)
    return rows_of(features, row, row, row, num_classes, covariance)


def _means_sizes(labels: Any, clients: Any, **subsets: Any) -> tuple[int, ...]:
    return (count_rows(labels, clients, **subsets),)


def _own_means_sizes(labels: Any, num_classes: int, *, num_subsets: int | None) -> tuple[int, ...]:
    most = labels.shape[0] if num_subsets is None else num_subsets * num_classes
    return (max(1, min(labels.shape[0], most)),)


def _means_flops(labels: Any, clients: Any, dim: int, *, covariance: CovarianceType | None) -> int:
    """Count one operation for each feature of each example, or four if variances are computed too."""
    return len(labels) * dim * (1 if covariance is None else 4)


def keep_examples() -> Summary:
    """Make the summary for methods whose clients send sums over their examples.

    Each row is one example, with count 1. Rows stay at the client, which only computes sums from them.
    """
    return Summary("Examples", _examples, _examples_sizes, _no_flops, own_sizes=_own_examples, stays=True)


def _examples(features: Any, labels: Any, clients: Any, sizes: tuple[int, ...], key: Any) -> Rows:
    """Make `Rows` with one row for each example, and padding up to ``sizes[0]`` rows.

    An example without a client (a number below 0) becomes padding.
    """
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    labels = jnp.where(clients >= 0, labels, -1)
    rows = Rows.from_examples(features.astype(accumulation_dtype(features)), labels, clients)
    short = sizes[0] - labels.shape[0]
    if short <= 0:
        return rows
    return jax.tree.map(lambda x: jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)), rows)


def _examples_sizes(labels: Any, clients: Any) -> tuple[int, ...]:
    return (max(1, len(labels)),)


def _own_examples(labels: Any, num_classes: int) -> tuple[int, ...]:
    return (labels.shape[0],)


def _no_flops(labels: Any, clients: Any, dim: int) -> int:
    return 0


def send_mixtures(num_components: int = 1, covariance: Structure = "diagonal") -> Summary:
    """Make a summary with a row for each component of a Gaussian mixture of each client's class.

    Args:
        num_components: the largest number of components of a client's class.
        covariance: structure of the components' covariances, which are sent too.
    """
    check_positive("num_components", num_components)
    check_choice("covariance", covariance, get_args(Structure))
    options = {"num_components": num_components, "covariance": covariance}
    return Summary(
        "Mixtures",
        bound(_mixtures, **options),
        mixture_sizes,
        bound(_mixtures_flops, **options),
        bound(_num_components, num_components=num_components),
        _own_mixtures_sizes,
        counts=True,
    )


def _mixtures(
    features: Any, labels: Any, clients: Any, sizes: tuple[int, ...], key: Any, **options: Any
) -> Rows:
    """Fit a Gaussian mixture to each class of each client; make a row of each component.

    Rows are ordered by client, class and component.
    """
    if key is None:
        raise ValueError("key: expected a PRNG key as mixtures start from random examples, got None")
    if not labels.shape[0]:
        # A mixture needs at least one example, so add padding.
        features, labels = jnp.zeros((1, features.shape[1]), features.dtype), jnp.full(1, -1, jnp.int32)
        clients = labels
    groups, size = sizes
    return client_mixtures(features, labels, clients, num_groups=groups, group_size=size, key=key, **options)


def _own_mixtures_sizes(labels: Any, num_classes: int) -> tuple[int, ...]:
    """Return ``sizes`` for one client's mixtures: bounds on its number of classes and its largest class.

    The size of a class is its number of examples. Both bounds are rounded up to one of few sizes, so that few
    sizes are compiled. If labels are traced, both are the number of the client's examples.
    """
    size = max(1, labels.shape[0])
    if is_traced(labels):
        return size, size
    pairs, examples = mixture_sizes(np.asarray(labels), np.zeros(labels.shape[0], int))
    # Round up, so that few sizes are compiled: compiling takes longer than fitting some empty groups.
    return min(max(num_classes, pairs), few_sizes(pairs)), few_sizes(examples)


def _num_components(labels: Any, clients: Any, dim: int, *, num_components: int) -> int:
    """Count as many components as the numbers of examples allow; equal examples need fewer."""
    return int(np.clip(pair_sizes(labels, clients) // 2, 1, num_components).sum())


def _mixtures_flops(
    labels: Any, clients: Any, dim: int, *, num_components: int, covariance: Structure
) -> int:
    """Return an upper bound on the operations: 50 steps of EM, which may take fewer."""
    sizes = pair_sizes(labels, clients)
    components, full = np.clip(sizes // 2, 1, num_components), covariance == "full"
    step = components * sizes * dim * (3 * dim if full else 8) + components * (dim**3 // 3 if full else 0)
    return int(50 * step.sum())


def send_directions(num_directions: int, centred: bool = True) -> Summary:
    """Make a summary: each client sends its class means, then the leading directions of its examples.

    Args:
        num_directions: the largest number of directions that a client sends.
        centred: if True, directions are singular vectors of the examples minus their class means. If False,
            they are singular vectors of the examples themselves, and the client also sends one number, for
            the scatter that the directions leave out (`directed_rows`).
    """
    check_positive("num_directions", num_directions)
    options = {"num_directions": num_directions, "centred": centred}
    return Summary(
        "DirectedMeans",
        bound(_directions, **options),
        _directions_sizes,
        _directions_flops,
        bound(_num_directed, **options),
        _own_directions_sizes,
    )


def _directions(
    features: Any, labels: Any, clients: Any, sizes: tuple[int, ...], key: Any, **options: Any
) -> Rows:
    """Make the rows of all clients: first their class means, by client and class; then directions, by client.

    A client's directions are its leading singular vectors, see `send_directions`. ``sizes`` bounds, in this
    order, the number of means, the number of clients, and the number of examples of one client.
    """
    rows, senders, most = sizes
    more = {"num_rows": rows, "num_clients": senders, "client_size": most, **options}
    return directed_rows(features, labels, clients, **more)


def _directions_sizes(labels: Any, clients: Any) -> tuple[int, ...]:
    """Return the three numbers that `_directions` gets as ``sizes``.

    They are the number of class means (one for each client and class), the number of clients, and the number
    of examples of the largest client.
    """
    largest = client_sizes(labels, clients)[1].max(initial=1)
    return count_rows(labels, clients), max(1, count_clients(labels, clients)), int(largest)


def _own_directions_sizes(labels: Any, num_classes: int) -> tuple[int, ...]:
    size = max(1, labels.shape[0])
    return min(size, num_classes), 1, size


def _num_directed(labels: Any, clients: Any, dim: int, *, num_directions: int, centred: bool) -> int:
    """Count the rows of `send_directions`.

    A client with n examples of c classes sends c class means and min(num_directions, n − c, d) directions; if
    not ``centred``, min(num_directions, n, d).
    """
    rows, sizes = client_sizes(labels, clients)
    degrees = sizes - rows if centred else sizes
    return int((rows + np.minimum(degrees, min(num_directions, dim))).sum())


def _directions_flops(labels: Any, clients: Any, dim: int) -> int:
    """Return the operations of `send_directions` for all clients together.

    A client with n examples needs 2·n·d operations for means and residuals, 2·n·d·s for the residuals' Gram
    matrix of size s = min(n, d), and 9·s³ for the matrix's ``eigh``.
    """
    sizes = client_sizes(labels, clients)[1].astype(float)
    smaller = np.minimum(sizes, dim)
    return int((2 * sizes * dim + 2 * sizes * dim * smaller + 9 * smaller**3).sum())
