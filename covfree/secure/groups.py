"""Compute class means of groups of clients by secure sums, so that FedCOF sees no single client's means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_integer
from covfree.core.sums import add_by_group
from covfree.core.types import Message, PRNGKey, Rows
from covfree.secure.summation import secure_sum
from covfree.secure.words import FixedPoint


def group_means(
    messages: Mapping[int, Message],
    size: int,
    bound: float,
    *,
    num_classes: int,
    key: PRNGKey,
    **protocol: Any,
) -> Message:
    """Make one message whose rows are class means of groups of clients, from the clients' class means.

    Clients are assigned at random to groups of ``size`` or more. Within a group, `secure_sum` adds each
    class's counts and sums of features. So the server sees the class means of a group, but of no single
    client. A group counts as one client that has all examples of the group, so FedCOF's estimate of the
    covariance stays unbiased, but comes from fewer class means. A client sends C·(d + 1) words (64-bit
    integers); in plain FedCOF it sends only the classes that it has.

    Args:
        messages: each client's message, by its number; the method must send class means, as `covfree.fedcof`.
        size: the least number of clients in a group, at least 3.
        bound: see `FixedPoint`: at least as large as each count of a class at a client, and as the absolute
            value of each entry in a client's sums of features.
        num_classes: C.
        key: PRNG key that draws the groups.
        protocol: ``threshold``, ``least`` and ``neighbours`` of `secure_sum`.

    Returns:
        A message for `covfree.solve_message`, with a row for each group and class that has examples.

    Raises:
        ValueError: if a message holds more than class means or a label that is no class, or there are fewer
            clients than ``size``.
        Refused: see `secure_sum`.

    Source: covfree. A mean of means, weighted by counts, keeps the estimator unbiased by Proposition 1 of
    Goswami et al. (2024): the group counts as one client that holds all of its examples.
    """
    check_integer("size", size, 3)
    if len(messages) < size:
        raise ValueError(f"size: expected at most {len(messages)} clients, got {size}")
    order = np.asarray(jax.random.permutation(key, np.array(sorted(messages))))
    groups = np.array_split(order, len(order) // size)
    found: list[Rows] = []
    for group, members in enumerate(groups):
        uploads = {int(client): _class_sums(messages[int(client)], num_classes) for client in members}
        point = FixedPoint(bound, len(members))
        total = secure_sum(uploads, point, name=f"class sums of group {group}", **protocol).total
        held = np.flatnonzero(total["count"])
        mean = total["sum"][held] / total["count"][held, None]
        counts, labels = total["count"][held].astype(np.int32), held.astype(np.int32)
        found.append(Rows(mean, counts, labels, np.full(len(held), group, np.int32)))
    rows = jax.tree.map(lambda *parts: jnp.concatenate([jnp.asarray(part) for part in parts]), *found)
    return Message(rows, sends=next(iter(messages.values())).sends)


def _class_sums(message: Message, num_classes: int) -> dict[str, np.ndarray]:
    rows = message.rows
    more = (message.matrix, rows.covariance, rows.sketch)
    if any(part is not None for part in more):
        raise ValueError("messages: expected class means and counts alone, got more")
    count, label = np.asarray(rows.count, np.float64), np.asarray(rows.label)
    used = (count > 0) & (label >= 0)
    if label[used].max(initial=0) >= num_classes:
        raise ValueError(
            f"messages: expected labels below num_classes={num_classes}, got {label[used].max()}"
        )
    mean = np.asarray(rows.mean)
    sums = add_by_group((count[used, None] * mean[used]).astype(mean.dtype), label[used], num_classes)
    return {"sum": sums, "count": add_by_group(count[used], label[used], num_classes)}
