"""Compute residuals, which are a client's examples minus its own class means.

A client may send vectors that are made from its residuals, such as a few principal directions. `with_vectors`
appends such vectors to the `Rows` of class means.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_positive
from covfree.core.sums import deviations
from covfree.core.types import Rows, accumulation_dtype, is_traced
from covfree.statistics.groups import subset_groups


def count_clients(labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]) -> int:
    """Count the clients that have an example, on the host."""
    labels, clients = np.asarray(labels), np.asarray(clients)
    return len(np.unique(clients[(labels >= 0) & (clients >= 0)]))


class Senders(NamedTuple):
    """The clients that have an example, numbered from 0 in the order of their original numbers.

    Attributes:
        slot: the new number of each example's client; ``len(client)`` for padding.
        size: the number of examples of each client.
        client: each client's original number; −1 in entries without a client.
        hidden: a_k, client k's number of examples minus its number of class means: the degrees of freedom of
            its residuals (examples minus their class mean).
    """

    slot: Integer[Array, " examples"]
    size: Integer[Array, " clients"]
    client: Integer[Array, " clients"]
    hidden: Integer[Array, " clients"]


def senders_of(
    clients: Integer[Array, " examples"],
    row: Integer[Array, " examples"],
    means: Rows,
    num_clients: int,
    client_size: int | None = None,
) -> Senders:
    """Renumber the clients that have examples as 0, 1, …, and count each one's examples (see `Senders`).

    ``clients`` has each example's client. ``means`` are the clients' class means, and ``row`` has, for each
    example, the index of its client's mean of its class in ``means``; −1 for padding. Outside ``jit``, a
    ValueError is raised if there are over ``num_clients`` clients, or one has over ``client_size`` examples.
    """
    check_positive("num_clients", num_clients)
    kept, num_rows = row >= 0, len(means.count)
    owner, _ = subset_groups((clients,), kept, 1, None)
    if not is_traced(owner) and owner.max(initial=-1) >= num_clients:
        raise ValueError(
            f"num_clients: {num_clients} cannot hold all clients: there are {int(owner.max()) + 1}; "
            "see count_clients"
        )
    slot = jnp.where(kept, owner, num_clients)
    # ``hidden``, a client's degrees of freedom, is its number of examples minus its number of rows: each
    # class mean that is subtracted from examples takes one.
    owner_of_row = jax.ops.segment_max(slot, jnp.where(kept, row, num_rows), num_rows)
    seen = means.count > 0
    size = jax.ops.segment_sum(kept.astype(jnp.int32), slot, num_clients)
    if client_size is not None and not is_traced(size) and size.max() > client_size:
        raise ValueError(
            f"client_size: {client_size} cannot hold the examples of all clients: one has {int(size.max())}"
        )
    hidden = size - jax.ops.segment_sum(
        seen.astype(jnp.int32), jnp.where(seen, owner_of_row, num_clients), num_clients
    )
    client = jnp.where(size > 0, jax.ops.segment_max(clients, slot, num_clients), -1)
    return Senders(slot, size, client, hidden)


def with_vectors(
    means: Rows,
    client: Integer[Array, " clients"],
    vectors: Float[Array, "clients vectors dim"],
    count: Integer[Array, "clients vectors"],
    label: int,
) -> Rows:
    """Append vectors of each client to the rows of class means ``means``, as rows with ``sketch`` True.

    Args:
        means: the class means.
        client: the number of each client.
        vectors: each client's vectors.
        count: the count of each vector; with count 0 it becomes padding.
        label: the label of all vectors.
    """
    count = count.reshape(-1)
    labels = jnp.where(count > 0, label, -1).astype(jnp.int32)
    return Rows(
        mean=jnp.concatenate([means.mean, vectors.reshape(-1, vectors.shape[-1])]),
        count=jnp.concatenate([means.count, count]),
        label=jnp.concatenate([means.label, labels]),
        client=jnp.concatenate([cast(jax.Array, means.client), jnp.repeat(client, vectors.shape[1])]),
        sketch=jnp.concatenate([jnp.zeros(len(means.count), bool), count > 0]),
    )


def residuals(
    features: Float[Array, "examples dim"],
    means: Float[Array, "groups dim"],
    group: Integer[Array, " examples"],
) -> Float[Array, "examples dim"]:
    """Subtract from each example the mean of its group, ``means[group]``.

    Examples whose group number is past the end are padding, and become 0.
    """
    kept = (group < means.shape[0])[:, None]
    centre = means.at[group].get(mode="fill", fill_value=0)
    return deviations(jnp.where(kept, features, 0).astype(accumulation_dtype(features)), centre)
