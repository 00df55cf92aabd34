"""What a client sends: the same for simulation, accounting and a real federation; and the server's door."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from covfree.checks import check, check_rows
from covfree.methods import Method
from covfree.statistics import class_covariances, class_means, gram
from covfree.statistics.groups import as_examples
from covfree.types import AnyArray, PRNGKey, Rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Message:
    """What one client sends: class means and counts, and with some methods matrices beside them.

    Attributes:
        rows: class means of the classes that the client holds.
        gram: Fed3R's F Fᵀ; its class sums b are the means times their counts.
        covariances: the oracle's unbiased covariance of each row's examples, 0 with fewer than 2.
    """

    rows: Rows
    gram: Float[AnyArray, "dim dim"] | None = None
    covariances: Float[AnyArray, "rows dim dim"] | None = None


def client_message(
    method: Method,
    features: Float[AnyArray, "examples dim"],
    labels: Int[AnyArray, " examples"],
    *,
    num_classes: int,
    key: PRNGKey | None = None,
) -> Message:
    """What one client sends to the server, without the classes that it lacks.

    Runs on the client, eagerly: the size of the result depends on the data. For ``fed3r`` without
    between-class scatter this is the sum of both rounds' sizes, not the second round's content, which needs
    the global means.

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
    if method.message == "gram":
        # A client without examples sends nothing, not d² zeros.
        matrix = gram(features, labels, num_classes).gram if np.any(rows.count) else None
        return Message(_present(rows), gram=matrix)
    covariances = class_covariances(features, labels, num_classes)
    return Message(_present(rows), covariances=covariances[np.asarray(rows.count) > 0])


def _present(rows: Rows) -> Rows:
    kept = np.asarray(rows.count) > 0
    return replace(jax.tree.map(lambda leaf: leaf[kept], rows), client=None)


@dataclass(frozen=True)
class Collected:
    """What a server could use of the messages, and what it set aside.

    Attributes:
        rows: rows of all sound messages; ``client`` is the message's place among all of them.
        rejected: for each client whose message was set aside, why.
    """

    rows: Rows
    rejected: Mapping[Hashable, str]


def collect(
    messages: Mapping[Hashable, Rows],
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Hashable, int] | None = None,
) -> Collected:
    """Put the clients' rows together; a bad message is set aside and named, the others count.

    Args:
        messages: rows by client.
        num_classes: C.
        dim: d; by default that of most messages.
        num_examples: how many examples each client says that it has, where it says so; a message whose
            counts do not sum to it was cut short or altered.

    Returns:
        The rows of the sound messages, and the reason for each message that was set aside.

    Raises:
        ValueError: if no message is sound; it names the first reasons.

    >>> import jax.numpy as jnp
    >>> good = Rows(jnp.ones((1, 2)), jnp.array([3]), jnp.array([0]))
    >>> bad = Rows(jnp.full((1, 2), jnp.nan), jnp.array([3]), jnp.array([0]))
    >>> collect({"a": good, "b": bad}, num_classes=1).rejected
    {'b': 'mean: row 0 (class 0) holds nan at position 0; expected finite numbers'}
    """
    if dim is None:
        sizes = [np.shape(rows.mean) for rows in messages.values() if isinstance(rows, Rows)]
        dims = [size[1] for size in sizes if len(size) == 2]
        # The smaller of two that are as frequent, whatever the order of the clients.
        dim = max(sorted(set(dims)), key=dims.count, default=None)
    sound: list[Rows] = []
    rejected: dict[Hashable, str] = {}
    for index, (client, rows) in enumerate(messages.items()):
        try:
            if not isinstance(rows, Rows):
                raise TypeError(f"message: expected Rows, got {type(rows).__name__}")
            check_rows(rows, num_classes=num_classes, dim=dim)
            if num_examples is not None and client in num_examples:
                _check_sum(rows, num_examples[client])
        except (TypeError, ValueError) as error:
            rejected[client] = str(error)
        else:
            number = jnp.full(np.shape(rows.label), index, jnp.int32)
            sound.append(replace(rows, client=number))
    if not sound:
        reasons = "; ".join(f"client {client!r}: {reason}" for client, reason in list(rejected.items())[:3])
        raise ValueError(
            f"messages: expected at least one sound message, got none of {len(messages)}. {reasons}"
        )
    merged = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *sound)
    return Collected(merged, rejected)


def _check_sum(rows: Rows, num_examples: int) -> None:
    total = np.asarray(rows.count)[np.asarray(rows.label) >= 0].sum()
    if total != num_examples:
        raise ValueError(
            f"count: counts sum to {total}; expected the {num_examples} examples that were announced"
        )
