"""What a client sends: the same for simulation, accounting and a real federation; and the server's door."""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from covfree.checks import check, check_rows
from covfree.estimators import first_moments, within_scatter
from covfree.methods import Method
from covfree.statistics import class_covariances, class_means, gram
from covfree.statistics.groups import accumulation_dtype, as_examples
from covfree.types import AnyArray, Message, PRNGKey, Rows


def client_message(
    method: Method,
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    *,
    num_classes: int,
    key: PRNGKey | None = None,
) -> Message:
    """What one client sends to the server, without the classes that it lacks.

    Runs on the client, eagerly: the size of the result depends on the data.

    Args:
        method: the method.
        features: the client's features.
        labels: their classes; below 0 is padding.
        num_classes: C.
        key: the client's PRNG key, for methods that cut classes into random subsets.

    Returns:
        The message, in float32 (float64 if the features are and x64 is enabled).

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or value is wrong.

    >>> import covfree, jax.numpy as jnp
    >>> rows = client_message(covfree.fedcof(), jnp.eye(2), jnp.array([4, 4]), num_classes=9).rows
    >>> rows.mean.tolist(), rows.count.tolist(), rows.label.tolist()
    ([[0.5, 0.5]], [2], [4])
    """
    check(features, labels, num_classes=num_classes)
    features, labels = as_examples(features, labels=labels)
    if method.message == "rows":
        return Message(_present(method.summary.one_client(features, labels, num_classes, key)))
    rows = Rows.from_means(*class_means(features, labels, num_classes))
    kept = np.asarray(rows.count) > 0
    if method.message == "covariances":
        return Message(_present(rows), covariances=class_covariances(features, labels, num_classes)[kept])
    if not kept.any():
        # A client without examples sends nothing, not d² zeros.
        return Message(_present(rows))
    if method.message == "gram":
        return Message(_present(rows), gram(features, labels, num_classes).gram)
    examples = Rows.from_examples(features.astype(accumulation_dtype(features)), labels)
    return Message(_present(rows), within_scatter(examples, first_moments(examples, num_classes)))


def _present(rows: Rows) -> Rows:
    kept = np.asarray(rows.count) > 0
    return replace(jax.tree.map(lambda leaf: leaf[kept], rows), client=None)


@dataclass(frozen=True)
class Collected:
    """What a server could use of the messages, and what it set aside.

    Attributes:
        message: the sound messages in one: rows one below the other, with ``client`` the message's place
            among all of them; matrices added up.
        rejected: for each client whose message was set aside, why.
    """

    message: Message
    rejected: Mapping[Hashable, str]


def collect(
    messages: Mapping[Hashable, Message],
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Hashable, int] | None = None,
) -> Collected:
    """Put the clients' messages together; a bad one is set aside and named, the others count.

    Args:
        messages: by client. Those without a row (a client without examples) add nothing.
        num_classes: C.
        dim: d; by default that of most messages.
        num_examples: how many examples each client says that it has, where it says so; a message whose
            counts do not sum to it was cut short or altered.

    Returns:
        The sound messages in one, for `solve_message`, and the reason for each that was set aside.

    Raises:
        ValueError: if no message is sound; it names the first reasons.

    >>> import covfree, jax.numpy as jnp
    >>> good = Message(covfree.Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0])))
    >>> bad = Message(covfree.Rows(jnp.full((1, 2), jnp.nan), jnp.array([3]), jnp.array([0])))
    >>> collect({"a": good, "b": bad}, num_classes=1).rejected
    {'b': 'mean: row 0 (class 0) holds nan at position 0; expected finite numbers'}
    """
    sizes = [np.shape(message.rows.mean) for message in messages.values() if isinstance(message, Message)]
    if dim is None:
        dims = [size[1] for size in sizes if len(size) == 2]
        # The smaller of two that are as frequent, whatever the order of the clients.
        dim = max(sorted(set(dims)), key=dims.count, default=None)
    sound: list[Message] = []
    rejected: dict[Hashable, str] = {}
    for index, (client, message) in enumerate(messages.items()):
        try:
            if not isinstance(message, Message):
                raise TypeError(f"message: expected a Message, got {type(message).__name__}")
            check_rows(message.rows, num_classes=num_classes, dim=dim)
            _check_matrices(message)
            if num_examples is not None and client in num_examples:
                _check_sum(message.rows, num_examples[client])
        except (TypeError, ValueError) as error:
            rejected[client] = str(error)
        else:
            number = jnp.full(np.shape(message.rows.label), index, jnp.int32)
            sound.append(replace(message, rows=replace(message.rows, client=number)))
    if not sound:
        reasons = "; ".join(f"client {client!r}: {reason}" for client, reason in list(rejected.items())[:3])
        raise ValueError(f"messages: expected a sound message, got none among {len(messages)}. {reasons}")
    return Collected(_merged(sound), rejected)


def _merged(messages: Sequence[Message]) -> Message:
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(message.rows for message in messages))
    matrices = [message.matrix for message in messages if message.matrix is not None]
    covariances = [message.covariances for message in messages if message.covariances is not None]
    return Message(
        rows,
        # One at a time: K matrices at once would be K·d² numbers.
        matrix=functools.reduce(operator.add, matrices) if matrices else None,
        covariances=np.concatenate(covariances) if covariances else None,
    )


def _check_matrices(message: Message) -> None:
    rows, dim = np.shape(message.rows.mean)
    for name, matrix, shape in (
        ("matrix", message.matrix, (dim, dim)),
        ("covariances", message.covariances, (rows, dim, dim)),
    ):
        if matrix is None:
            continue
        if np.shape(matrix) != shape:
            raise ValueError(f"{name}: expected shape {list(shape)}, got {list(np.shape(matrix))}")
        if not np.isfinite(matrix).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(matrix))[0])
            raise ValueError(f"{name}: holds {np.asarray(matrix)[place]} at {place}; expected finite numbers")


def _check_sum(rows: Rows, num_examples: int) -> None:
    total = np.asarray(rows.count)[np.asarray(rows.label) >= 0].sum()
    if total != num_examples:
        raise ValueError(f"count: counts sum to {total}; expected the {num_examples} examples announced")
