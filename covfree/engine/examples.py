"""Make the rows of a method's rounds from clients' examples, part by part if the features are large."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from covfree.core.checks import check_example_structure
from covfree.core.compiling import jit
from covfree.core.doors import as_int32, within_int32
from covfree.core.forms import zeros_of
from covfree.core.padding import Features, Gathered, as_arrays, blocks, few_sizes, is_large, padded_size
from covfree.core.sums import Compensated
from covfree.core.types import AnyArray, PRNGKey, Rows, accumulation_dtype, is_traced
from covfree.engine.parts import padded_rows
from covfree.engine.reading import add_part, ahead
from covfree.engine.senders import repeated
from covfree.engine.totals import How, InMemory, with_numbers
from covfree.estimators.automatic import SAMPLE, count_keys, projections, sample_numbers
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.methods.rounds import Round, dense

# Large features are summarised a few whole clients at a time: at most this many bytes, or a single client.
_GATHERED = 2**28


def summarise(
    method: Method,
    features: Float[AnyArray | Gathered, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    key: PRNGKey | None = None,
) -> Rows:
    """Make the rows that all clients of a simulated federation send, in one table.

    Features of 1 GiB or more on the host, such as a memory-mapped file, are read a few clients at a time.
    This changes the random subsets that a method draws.

    Args:
        method: the method.
        features: features of all examples.
        labels: the class of each example; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        key: PRNG key for methods that draw at random.

    Returns:
        The rows that clients send, padded so that federations of similar size get equal shapes; if
        labels or clients are traced, padded to the number of examples. If clients' numbers exceed int32, they
        are replaced by 0, 1, … in ascending order.

    Raises:
        TypeError: if ``method`` is no method, or a data type is wrong.
        ValueError: if a shape is wrong, or a label is 2³¹ or above.
    """
    check_method(method)
    given = {"features": features, "labels": labels, "clients": clients}
    features, labels, clients = as_arrays(given, given).values()
    check_example_structure(features, labels, clients)
    if is_large(features):
        return _summarise_in_parts(method, features, np.asarray(labels), np.asarray(clients), key)
    if is_traced(labels, clients):
        sizes = method.summary.bounds(labels.shape[0])
    else:
        clients = within_int32(clients)
        # Count the labels in NumPy, before they become jax arrays: under `jax.checkpoint` these would be
        # traced, without values.
        known = np.asarray(labels).astype(np.int64)
        labels = as_int32("labels", labels)
        sizes = tuple(padded_size(size) for size in method.summary.sizes(known, np.asarray(clients)))
    return _summarise(method.client_part(), features, labels, clients, key, sizes)


@partial(jit, plain="small", static_argnums=5)
def _summarise(
    method: Method, features: Any, labels: Any, clients: Any, key: Any, sizes: tuple[int, ...]
) -> Rows:
    if method.feature_map is not None:
        # Set padding to 0: NaN in it would make a feature map's derivative NaN, though its output is unused.
        kept = (labels >= 0) & (jnp.asarray(clients) >= 0)
        features = method.feature_map(jnp.where(kept[:, None], features, jnp.zeros_like(features)))
    return method.sent(method.summary.make(features, labels, clients, sizes, key), key)


@jit
def mapped(method: Method[Any], features: Any) -> jax.Array:
    """Return the features after the method's feature map, computed in one compiled call."""
    return method.mapped(features)


def examples_of(method: Method[Any], features: Any, labels: Any, clients: Any = None) -> Rows:
    """Convert the examples of all clients to `Rows` of one example each, as rounds over examples take them.

    If the method has a feature map, it is applied to the features first.
    """
    if method.feature_map is not None:
        features = mapped(method.client_part(), features)
    features = jnp.asarray(features)
    return Rows.from_examples(features.astype(accumulation_dtype(features)), labels, clients)


def over_rows(
    method: Method[Any], features: Any, labels: Any, clients: Any, how: How, key: PRNGKey | None
) -> InMemory | InParts:
    """Return a function that computes a round's total: the sum of the clients' terms over all their rows.

    The rows, such as class means, are made by `summarise`, once for all rounds. If instead each row is an
    example, and the features are large, every round reads the features part by part.
    """
    if not is_large(features) or not method.summary.stays or method.transforms:
        return InMemory(with_numbers(summarise(method, features, labels, clients, key=key), few=how.few), how)
    # Each row is one example: read them part by part, as a table of rows would copy the features.
    labels, clients = np.asarray(labels), np.asarray(clients)
    used = (labels >= 0) & (clients >= 0)
    senders, rank = np.unique(clients[used], return_inverse=True)
    numbers = np.full(len(labels), -1, np.int32)
    numbers[used] = _numbers(method, features, labels, np.flatnonzero(used), rank, len(senders))[rank]
    return InParts(method, features, np.where(used, labels, -1), numbers, how)


def _numbers(
    method: Method[Any],
    features: Features,
    labels: np.ndarray,
    used: np.ndarray,
    rank: np.ndarray,
    senders: int,
) -> np.ndarray:
    """Give each client a number from 0; clients 0 to 255 are the sample that automatic shrinkage looks at.

    `sample_numbers` chooses the numbers. The features, which are large, are read only if some clients have
    equal counts of each class.

    Args:
        method: the method, for its feature map.
        features: [examples, dim].
        labels: [examples].
        used: the indices of the examples that are no padding.
        rank: for each of the examples in ``used``, the index of its client.
        senders: the number of clients.

    Returns:
        [senders] the clients' numbers.
    """
    if senders <= SAMPLE:
        return np.arange(senders, dtype=np.int32)
    keys = np.zeros(senders, np.uint32)
    np.add.at(keys, rank, count_keys(np.ones(len(rank)), labels[used], np))
    projected = np.zeros((senders, 1), np.float32)
    for part in blocks(features) if repeated(keys).any() else ():
        found = np.asarray(mapped(method.client_part(), features[part]))
        own = slice(*np.searchsorted(used, (part.start, part.stop)))
        terms = projections(found[used[own] - part.start], np.ones(own.stop - own.start), np)
        if not part.start:
            projected = np.zeros((senders, terms.shape[1]), np.float32)
        np.add.at(projected, rank[own], terms)
    return sample_numbers(keys, projected, senders, np)


def over_examples(
    method: Method[Any], features: Any, labels: Any, clients: Any, how: How
) -> InMemory | InParts:
    """Return a function that computes the total of any round over all examples: ``(round, params, sent)``.

    Examples of clients below 0 are padding. Large features are read part by part.
    """
    if is_large(features):
        labels = np.where(np.asarray(clients) >= 0, np.asarray(labels), -1)
        return InParts(method, features, labels, None, how)
    return InMemory(examples_of(method, features, jnp.where(jnp.asarray(clients) >= 0, labels, -1)), how)


@dataclass(frozen=True, eq=False)
class InParts:
    """A callable that computes a round's total over examples on the host; it reads features part by part.

    Attributes:
        method: the method; its feature map is applied to each part.
        features: [examples, dim], large.
        labels: [examples]; below 0 is padding.
        clients: [examples], as numbered by `_numbers`; None if the rounds do not tell clients apart.
        how: settings of the sum over rows.
    """

    method: Method[Any]
    features: Features
    labels: np.ndarray
    clients: np.ndarray | None
    how: How

    @property
    def num_rows(self) -> int:
        """The number of examples without padding."""
        return int((self.labels >= 0).sum())

    def __call__(self, each: Round, params: Any, sent: Any) -> Any:
        """Apply a round's client function to all examples, part by part, and return the sum of its results.

        In the round ``each``, ``params`` are the method's hyperparameters, and ``sent`` is the server's
        broadcast.
        """
        parts = list(blocks(self.features))
        size, running = parts[0].stop, None
        add = partial(add_part, each.client, params, sent)

        def read(index: int) -> tuple[np.ndarray, ...]:
            features = np.asarray(self.features[parts[index]])
            columns = [self.labels] if self.clients is None else [self.labels, self.clients]
            return _padded(features, size, *(column[parts[index]] for column in columns))

        with closing(ahead(read, range(len(parts)))) as every:
            for part in every:
                rows = examples_of(self.method, *part)
                if running is None:
                    zeros = partial(zeros_of, partial(_terms, each, self.how.num_classes), params, sent, rows)
                    running = Compensated(zeros(), zeros())
                # Wait for each part: otherwise all parts would lie on the device at once.
                running = jax.block_until_ready(add(running, rows, self.how))
        assert running is not None
        return running.value


def _terms(each: Round, num_classes: int, params: Any, sent: Any, rows: Rows) -> Any:
    return dense(each.client(params, sent, rows, num_classes))


def _padded(features: np.ndarray, size: int, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Pad features with zeros, and labels or clients with −1, up to ``size`` rows."""
    short = size - len(features)
    if short:
        features = np.concatenate([features, np.zeros((short, features.shape[1]), features.dtype)])
    return features, *(np.append(column, np.full(short, -1)).astype(np.int32) for column in columns)


def _summarise_in_parts(
    method: Method[Any], features: Features, labels: np.ndarray, clients: np.ndarray, key: PRNGKey | None
) -> Rows:
    """Make the rows of `summarise`; to save memory, gather the features of a few whole clients at a time."""
    labels, clients = np.asarray(as_int32("labels", labels)), within_int32(clients)
    used = np.flatnonzero((labels >= 0) & (clients >= 0))
    order = used[np.argsort(clients[used], kind="stable")]
    ends = np.cumsum(np.unique(clients[used], return_counts=True)[1])
    room = _GATHERED * len(features) // features.nbytes
    parts, first = [], 0
    while first < len(order):
        fitting = ends[ends <= first + room]
        last = int(fitting[-1] if len(fitting) and fitting[-1] > first else ends[ends > first][0])
        # Read rows in the file's order; the order within a client stays the same.
        parts.append(np.sort(order[first:last]))
        first = last
    parts = parts or [order]
    size = few_sizes(max(map(len, parts)))
    own = [method.summary.sizes(labels[part], clients[part]) for part in parts]
    # Pad all parts to the largest size, so that one compiled function serves all.
    sizes = tuple(padded_size(max(each)) for each in zip(*own, strict=True))
    # Leave out the transforms of rows: they draw random numbers for all rows at once, so `_sent` applies them
    # at the end.
    part_of_clients = replace(method.client_part(), transforms=())

    def read(index: int) -> tuple[np.ndarray, ...]:
        part = parts[index]
        return _padded(features[part], size, labels[part], clients[part])

    made = []
    with closing(ahead(read, range(len(parts)))) as every:
        for part in every:
            rows = jax.tree.map(np.asarray, _summarise(part_of_clients, *part, key, sizes))
            made.append(jax.tree.map(lambda leaf, kept=rows.count > 0: leaf[kept], rows))
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *made)
    return _sent(method.client_part(), padded_rows(rows, padded_size(len(rows.count))), key)


@jit
def _sent(method: Method[Any], rows: Rows, key: PRNGKey | None) -> Rows:
    return method.sent(rows, key)
