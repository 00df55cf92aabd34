"""Simulate clients that join in different rounds: select what the server has received up to a round."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Integer

from covfree.core.types import AnyArray, Rows


def arrived(rows: Rows, first_round: Integer[AnyArray, " clients"], after: int | Integer[Array, ""]) -> Rows:
    """Select the rows of the clients that took part up to a round; rows of other clients become padding.

    A client's rows count once, however often it takes part. Rows are summed over clients, so the totals
    depend on which clients came, not on their order.

    Args:
        rows: rows of all clients; ``rows.client`` indexes ``first_round``.
        first_round: the round in which each client first takes part, from 0; −1 for never. From
            `covfree.rounds.first_rounds`.
        after: the round, from 0, up to which clients count; may be traced.

    Returns:
        All rows, with count 0 for clients that have not taken part.

    Raises:
        ValueError: if ``rows.client`` is None.

    >>> import jax.numpy as jnp
    >>> rows = Rows(jnp.ones((3, 1)), jnp.array([5, 6, 7]), jnp.zeros(3, int), client=jnp.array([0, 1, 2]))
    >>> arrived(rows, jnp.array([0, 3, -1]), after=1).count.tolist()
    [5, 0, 0]
    """
    if rows.client is None:
        raise ValueError("rows: expected to know the client of each row, got None")
    client = jnp.asarray(rows.client)
    first = jnp.asarray(first_round).at[client].get(mode="fill", fill_value=-1)
    here = (client >= 0) & (first >= 0) & (first <= after)
    return replace(rows, count=jnp.where(here, rows.count, 0))
