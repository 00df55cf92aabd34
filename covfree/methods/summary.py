"""`Summary`: what clients send; and the summaries of methods whose clients send sums over examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import Message, Rows, accumulation_dtype
from covfree.statistics import class_covariances, class_means, count_rows, gram
from covfree.statistics.directions import count_clients
from covfree.statistics.gram import local_solution
from covfree.statistics.groups import as_examples

# ``(params, message, num_classes) -> state``: the state after all rounds, from all clients' merged message.
Merge: TypeAlias = Callable[[Any, Message, int], tuple[Any, ...]]


def num_means(labels: Any, clients: Any, dim: int, **subsets: Any) -> int:
    """Count the means that clients send: one for each client and class, or for each subset of a class."""
    return count_rows(labels, clients, **subsets)


@dataclass(frozen=True)
class Summary:
    """What clients send, computed for all clients of a simulation or for one; and what that costs.

    A summary is hashable, as it is a static argument of compiled functions.

    Attributes:
        name: a short name of what is sent, which messages carry.
        make: ``(features, labels, clients, sizes, key) -> Rows`` of all clients, padded to ``sizes``: those
            that clients send, such as class means, or a row for each example if clients send sums.
        sizes: ``(labels, clients) -> tuple`` of the integers that ``make`` needs, computed on the host, such
            as the numbers of rows and of clients. Upper bounds will do.
        flops: ``(labels, clients, dim) -> int``: operations of all clients, on the host.
        num_rows: ``(labels, clients, dim) -> int``: how many rows all clients send, on the host; by default
            one for each client and class.
        message: ``(params, features, labels, num_classes, key) -> Message`` of one client; arrays may be
            traced. Rows with count 0 are padding. ``params`` are the method's if ``merge`` is given, else
            None. Without ``message``, a client answers each round with sums over its examples.
        merge: ``(params, message, num_classes) -> state``: the server's state after all rounds of the method
            over rows, from the message into which `collect` merged those of all clients. Without ``merge``,
            the server runs these rounds over the message's rows.
        matrices: the matrices in a message: a ``"gram"`` matrix; a Gram matrix beside a ridge ``"solution"``;
            or a covariance for each of the client's classes, of which the server needs ``"each"`` or the
            ``"sum"``. None for no matrices.
        counts: whether ``message`` reads the labels' values. ``jit`` hides these, so it must then be called
            outside ``jit``.
    """

    name: str
    make: Callable[[Any, Any, Any, tuple[int, ...], Any], Rows]
    sizes: Callable[[Any, Any], tuple[int, ...]]
    flops: Callable[[Any, Any, int], int]
    num_rows: Callable[[Any, Any, int], int] = num_means
    message: Callable[[Any, jax.Array, jax.Array, int, jax.Array | None], Message] | None = None
    merge: Merge | None = None
    matrices: Literal["gram", "solution", "each", "sum"] | None = None
    counts: bool = False

    @property
    def stays(self) -> bool:
        """Whether the rows are the examples, which never leave the client."""
        return self.message is None or self.merge is not None

    def check(self, message: Message) -> None:
        """Raise ValueError if ``message`` lacks the ``matrices`` that clients send."""
        sums = self.matrices in ("gram", "solution")
        found = [message.matrix] if sums else [message.rows.covariance]
        if self.matrices == "sum":
            found.append(message.matrix)
        if self.matrices is not None and all(matrix is None for matrix in found):
            name = "matrix" if sums else "covariance"
            raise ValueError(f"message: expected a {name} beside the rows, as the method sends it; got none")

    def bounds(self, num_examples: int) -> tuple[int, ...]:
        """Return ``sizes`` that are large enough for any ``num_examples`` examples.

        Each is ``num_examples``, but at least 1: no count of rows, classes or clients is larger.
        """
        none = np.zeros(0, np.int32)
        return (max(1, num_examples),) * len(self.sizes(none, none))

    def one_client(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Rows:
        """Return the rows of one client over which rounds run; some may be padding."""
        if self.merge is None and self.message is not None:
            return self.message(None, features, labels, num_classes, key).rows
        return Rows.from_examples(features.astype(accumulation_dtype(features)), labels)


def keep_examples() -> Summary:
    """Make the summary for methods whose clients answer each round with sums over their examples.

    Each row is one example, with count 1. Rows stay at the client, which only computes sums from them.
    """
    return Summary("Examples", _examples, _examples_sizes, _no_flops)


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


def _no_flops(labels: Any, clients: Any, dim: int) -> int:
    return 0


def gram_matrices(merge: Merge) -> Summary:
    """Make the summary with which a client sends its class means and the Gram matrix of its examples.

    The Gram matrix is F Fᵀ, with all of the client's features as columns of F. For ``merge`` see `Summary`.
    """
    return Summary(
        "Gram matrices",
        _examples,
        _examples_sizes,
        _products_flops,
        message=_gram,
        merge=merge,
        matrices="gram",
    )


def own_solutions(merge: Merge) -> Summary:
    """Make the summary with which a client sends its own ridge solution, and its Gram matrix plus γI.

    The solution [dim, classes] takes the place of the class means: column c is sent as the mean of class c.
    γ is ``params.gamma``. For ``merge`` see `Summary`.
    """
    gram = gram_matrices(merge)
    return replace(gram, name="solutions", flops=_solution_flops, message=_solution, matrices="solution")


def class_covariance_matrices(merge: Merge, *, pooled: bool = False) -> Summary:
    """Make the summary with which a client sends, for each class, its mean and its covariance matrix.

    Args:
        merge: see `Summary`.
        pooled: whether the server needs only the sum of the scatter matrices of all classes, not each of
            them.
    """
    kind = "sum" if pooled else "each"
    return replace(gram_matrices(merge), name="class covariances", message=_covariances, matrices=kind)


def _products_flops(labels: Any, clients: Any, dim: int) -> int:
    return len(labels) * (dim + 2 * dim**2)


def _solution_flops(labels: Any, clients: Any, dim: int) -> int:
    solved = count_clients(labels, clients) * dim**3 // 3 + 2 * dim**2 * count_rows(labels, clients)
    return _products_flops(labels, clients, dim) + solved


def _means(features: jax.Array, labels: jax.Array, num_classes: int) -> Rows:
    return Rows.from_means(*class_means(features, labels, num_classes))


def _gram(params: Any, features: jax.Array, labels: jax.Array, num_classes: int, key: Any) -> Message:
    return Message(_means(features, labels, num_classes), gram(features, labels, num_classes).gram)


def _solution(params: Any, features: jax.Array, labels: jax.Array, num_classes: int, key: Any) -> Message:
    own = local_solution(features, labels, num_classes, params.gamma)
    rows = replace(_means(features, labels, num_classes), mean=own.weight.T)
    return Message(rows, own.gram, solved=True)


def _covariances(params: Any, features: jax.Array, labels: jax.Array, num_classes: int, key: Any) -> Message:
    covariances = class_covariances(features, labels, num_classes)
    return Message(replace(_means(features, labels, num_classes), covariance=covariances))
