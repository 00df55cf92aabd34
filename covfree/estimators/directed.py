"""Estimate the within-class scatter from class means and residual directions.

A residual direction is a scaled singular vector of a client's deviations from its class means; see
`directed_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.products import divide_or_zero
from covfree.core.types import Moments, Rows
from covfree.estimators.moments import first_moments, row_counts, row_means
from covfree.estimators.scatter import Freedom, centred_rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DirectedMoments:
    """Sums over what clients send: class means, and residual directions.

    A residual direction is a scaled singular vector of a client's deviations from its class means. If clients
    are split into groups, the groups' sums add up.

    Attributes:
        moments: sums over the class means: each class's number of examples, number of means, and sum of
            features.
        degrees: the sum over the directions of their degrees of freedom (``Rows.count``).
    """

    moments: Moments
    degrees: Float[Array, ""]


def valid_directions(rows: Rows) -> Bool[Array, " rows"]:
    """Return a mask of the residual directions: rows with ``sketch`` set and a count above 0."""
    if rows.sketch is None:
        raise ValueError("rows: expected rows with directions among them, see directed_rows; got none")
    return jnp.asarray(rows.sketch) & (jnp.asarray(rows.count) > 0)


def directed_moments(rows: Rows, num_classes: int) -> DirectedMoments:
    """Sum the class means and the residual directions that clients sent, as `DirectedMoments`.

    ``rows`` contains both. A row with ``sketch`` True is a residual direction; its count is its degrees of
    freedom.
    """
    moments = first_moments(rows, num_classes)
    return DirectedMoments(
        moments, row_counts(rows, valid_directions(rows)).astype(moments.total.dtype).sum()
    )


def directed_factor(rows: Rows, totals: DirectedMoments) -> Float[Array, "rows dim"]:
    """Compute Y, so that YᵀY estimates the within-class scatter, from class means and residual directions.

    A client's mean x_r of n_r examples of class c gives the row √n_r (x_r − μ_c) of Y, with μ_c the mean of
    the class over all clients. In YᵀY these rows give the scatter of clients' means about μ_c. A residual
    direction is itself a row of Y. In YᵀY the directions approximate the scatter of examples about their
    client's class means, or give it exactly if clients send all directions. Padding rows are 0.
    """
    directions = row_means(rows, valid_directions(rows))
    return centred_rows(rows, totals.moments) + directions


def directed_freedom(totals: DirectedMoments) -> Freedom:
    """Return the degrees of freedom of Ŵ: L for the directions, K_c − 1 for a class of K_c means.

    Ŵ is that of `directed_factor`. The scatter of the N examples about the M means has A = N − M degrees of
    freedom; L ≤ A is the sum of the directions' counts. The directions get weight A/L, as they stand for the
    whole scatter. If clients send all directions, L = A. Otherwise L understates the degrees of freedom, as
    leading directions vary less than L random draws. On 13 federations automatic shrinkage was better on
    average with L than with A (experiments/residual_directions.md).
    """
    hidden = totals.moments.hidden_degrees
    seen = (totals.degrees > 0) & (hidden > 0)
    weight = divide_or_zero(hidden, totals.degrees, seen)
    between = Freedom.of_classes(totals.moments)
    return between.joined(Freedom(jnp.where(seen, totals.degrees, 0)[None], weight[None]))
