"""The summaries of methods whose clients send `Rows`, such as class means with counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_choice, check_positive
from covfree.core.padding import few_sizes
from covfree.core.types import Message, Rows, is_traced
from covfree.methods.rounds import bound
from covfree.methods.summary import Summary, num_means
from covfree.statistics import client_rows, count_rows
from covfree.statistics.directions import count_clients, directed_rows
from covfree.statistics.groups import as_examples
from covfree.statistics.mixtures import Structure, client_mixtures, mixture_sizes
from covfree.statistics.rows import CovarianceType, check_subsets, client_pairs, client_sizes, rows_of


def own_rows(
    params: Any,
    features: jax.Array,
    labels: jax.Array,
    num_classes: int,
    key: Any,
    *,
    make: Callable[..., Rows],
    sizes: Callable[[Any, int], tuple[int, ...]],
) -> Message:
    """Make one client's message: its rows by ``make``, a `Summary.make`, with the ``sizes`` of one client."""
    labels = jnp.where(labels < num_classes, labels, -1)
    rows = make(features, labels, jnp.zeros_like(labels), sizes(labels, num_classes), key)
    return Message(replace(rows, client=None))


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
    make = bound(_class_means, **subsets, covariance=covariance)
    message = bound(own_rows, make=make, sizes=bound(_own_means_sizes, num_subsets=num_subsets))
    if num_subsets == 1:
        message = bound(_own_class_means, covariance=covariance, few=message)
    return Summary(
        "ClassMeans",
        make,
        bound(_means_sizes, **subsets),
        bound(_means_flops, covariance=covariance),
        bound(num_means, **subsets),
        message,
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
    params: Any,
    features: jax.Array,
    labels: jax.Array,
    num_classes: int,
    key: Any,
    *,
    covariance: CovarianceType | None,
    few: Callable[..., Message],
) -> Message:
    """Compute one client's class means without sorting examples: C rows, one for each class, in order.

    With fewer examples than classes, return the message of the function ``few``, which has fewer rows.
    """
    if labels.shape[0] < num_classes:
        return few(params, features, labels, num_classes, key)
    features, row = as_examples(features, labels=jnp.where(labels < num_classes, labels, -1))
    return Message(replace(rows_of(features, row, row, row, num_classes, covariance), client=None))


def _means_sizes(labels: Any, clients: Any, **subsets: Any) -> tuple[int, ...]:
    return (count_rows(labels, clients, **subsets),)


def _own_means_sizes(labels: Any, num_classes: int, *, num_subsets: int | None) -> tuple[int, ...]:
    most = labels.shape[0] if num_subsets is None else num_subsets * num_classes
    return (max(1, min(labels.shape[0], most)),)


def _means_flops(labels: Any, clients: Any, dim: int, *, covariance: CovarianceType | None) -> int:
    """Count one operation for each feature of each example, or four if variances are computed too."""
    return len(labels) * dim * (1 if covariance is None else 4)


def send_mixtures(num_components: int = 1, covariance: Structure = "diagonal") -> Summary:
    """Make a summary with a row for each component of a Gaussian mixture of each client's class.

    Args:
        num_components: the largest number of components of a client's class.
        covariance: structure of the components' covariances, which are sent too.
    """
    check_positive("num_components", num_components)
    check_choice("covariance", covariance, get_args(Structure))
    options = {"num_components": num_components, "covariance": covariance}
    make = bound(_mixtures, **options)
    return Summary(
        "Mixtures",
        make,
        mixture_sizes,
        bound(_mixtures_flops, **options),
        bound(_num_components, num_components=num_components),
        bound(own_rows, make=make, sizes=_own_mixtures_sizes),
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
    """Count the components that clients send, at most: there are fewer if a class has equal examples."""
    return int(np.clip(client_pairs(labels, clients)[1] // 2, 1, num_components).sum())


def _mixtures_flops(
    labels: Any, clients: Any, dim: int, *, num_components: int, covariance: Structure
) -> int:
    """Return an upper bound on the operations: 50 steps of EM, which may take fewer."""
    sizes = client_pairs(labels, clients)[1]
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
    make = bound(_directions, **options)
    return Summary(
        "DirectedMeans",
        make,
        _directions_sizes,
        _directions_flops,
        bound(_num_directed, **options),
        bound(own_rows, make=make, sizes=_own_directions_sizes),
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
