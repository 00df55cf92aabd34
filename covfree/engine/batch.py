"""Rows or examples that are in memory: to totals, to a head, in one compiled call."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.checks import check
from covfree.engine.parts import consecutive, fits_int32
from covfree.engine.totals import accumulate
from covfree.methods import Method
from covfree.statistics.rows import bucket
from covfree.types import AnyArray, Head, Message, PRNGKey, Rows, is_traced


@jax.jit
def solve_totals(method: Method, *totals: Any) -> Head:
    """The head from totals that were summed elsewhere, e.g. over clients' messages.

    Args:
        method: the method.
        totals: one a phase, as `accumulate` gives them.
    """
    return method.solve(*totals)


@partial(jax.jit, static_argnames="num_classes")
def solve_rows(method: Method, rows: Rows, *, num_classes: int) -> Head:
    """The head from the rows that a server holds.

    Args:
        method: the method; its numbers may be traced, so that ``vmap`` sweeps them.
        rows: all rows; padding changes nothing.
        num_classes: C, static.

    Returns:
        The head.

    >>> import covfree, jax, jax.numpy as jnp
    >>> rows = covfree.Rows(jnp.array([[0.0], [2.0], [5.0], [7.0]]), jnp.ones(4), jnp.array([0, 0, 1, 1]))
    >>> def bias(gamma):
    ...     return solve_rows(covfree.fedcof(shrinkage=gamma), rows, num_classes=2).bias
    >>> jax.vmap(bias)(jnp.array([0.0, 0.1, 1.0])).shape
    (3, 2)
    """
    return method.solve(*accumulate(method, rows, num_classes=num_classes))


@partial(jax.jit, static_argnames="num_classes")
def solve_message(method: Method, message: Message, *, num_classes: int) -> Head:
    """The head from what clients sent: the server's side of a real federation.

    Args:
        method: the method that the clients used for `client_message`.
        message: the messages in one, from `collect`.
        num_classes: C, static.

    Returns:
        The head; equal, within rounding, to that of `fit` on the clients' examples.

    Raises:
        ValueError: if the message lacks what the method sends.

    >>> import covfree, jax.numpy as jnp
    >>> method = covfree.fed3r()
    >>> sent = covfree.client_message(method, jnp.eye(2), jnp.array([0, 1]), num_classes=2)
    >>> received = covfree.collect({"a": sent, "b": sent}, num_classes=2).message
    >>> solve_message(method, received, num_classes=2).weight.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if method.merge is None:
        return method.solve(*accumulate(method, message.rows, num_classes=num_classes))
    return method.solve(*method.merge(method.params, message, num_classes))


def summarise(
    method: Method,
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    key: PRNGKey | None = None,
) -> Rows:
    """What all clients of a simulated federation make of their examples, as one table of rows.

    Args:
        method: the method.
        features: features of all examples.
        labels: their classes; below 0 is padding.
        clients: their clients; below 0 is padding.
        key: PRNG key for methods that draw at random.

    Returns:
        The rows as they leave the clients, padded to a size that federations of about the same size share;
        under ``jit``, to the number of examples.
    """
    if is_traced(labels, clients):
        sizes = method.summary.bounds(labels.shape[0])
    else:
        if not fits_int32(np.asarray(clients)):
            clients = consecutive(np.asarray(clients))
        sizes = tuple(bucket(size) for size in method.summary.sizes(np.asarray(labels), np.asarray(clients)))
    return _summarise(method, features, labels, clients, key, sizes)


@partial(jax.jit, static_argnames="sizes")
def _summarise(
    method: Method, features: Any, labels: Any, clients: Any, key: Any, sizes: tuple[int, ...]
) -> Rows:
    features = method.mapped(features)
    return method.sent(method.summary.all_clients(features, labels, clients, sizes, key), key)


def fit(
    method: Method,
    features: Any,
    labels: Any,
    clients: Any,
    *,
    num_classes: int | None = None,
    key: PRNGKey | None = None,
) -> Head:
    """Simulate a federation in one call: examples of all clients in, the server's head out.

    Args:
        method: e.g. ``covfree.fedcof()``.
        features: [examples, dim], floating point; half precisions are summed in float32.
        labels: [examples], integers; below 0 is padding.
        clients: [examples], integers in any order, gaps allowed; below 0 is padding.
        num_classes: C; by default the largest label plus 1. Needed under ``jit``.
        key: PRNG key for methods that draw at random.

    Returns:
        The head.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or value is wrong; the message names the client and the row.

    >>> import covfree, numpy as np
    >>> features = np.array([[0.0], [1.0], [4.0], [5.0]], np.float32)
    >>> head = fit(covfree.fedcof(), features, np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    >>> head(features).argmax(-1)
    Array([0, 0, 1, 1], dtype=int32)
    """
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"num_classes: expected at least 1, got {num_classes}")
    check(features, labels, clients, num_classes=num_classes)
    if num_classes is None:
        if is_traced(labels):
            raise ValueError("num_classes: expected the number of classes, as labels are traced; got None")
        num_classes = int(np.max(labels, initial=-1)) + 1
        if num_classes < 1:
            raise ValueError("labels: expected at least one label of 0 or above, got none")
    # Clients stay on the host: jax may not hold their numbers.
    clients = clients if isinstance(clients, jax.Array) else np.asarray(clients)
    rows = summarise(method, jnp.asarray(features), jnp.asarray(labels), clients, key=key)
    return solve_rows(method, rows, num_classes=num_classes)


@jax.jit
def evaluate(
    head: Head, features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, ""]:
    """Share of the examples whose class the head predicts, in [0, 1].

    Args:
        head: a classifier.
        features: test features.
        labels: their classes; below 0 is padding. A class that the head never saw counts as an error.

    Returns:
        The accuracy; NaN if there is no example.
    """
    scores = head(features)
    # A head that saw no class at all predicts none, though the largest of equal scores is the first.
    right = (scores.argmax(-1) == labels) & (scores.max(-1) > -jnp.inf) & (labels >= 0)
    return right.sum() / (labels >= 0).sum()
