"""The within-class scatter from class means and residual directions: exact if clients send all of them."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.types import Moments, Rows
from covfree.estimators.moments import first_moments, row_counts, row_means
from covfree.estimators.scatter import Freedom, centred_rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DirectedMoments:
    """Phase one of rows with residual directions; adds up over any split of them.

    Attributes:
        moments: counts, rows and sums of each class, from the means.
        degrees: sum of the directions' counts, the degrees of freedom that they stand for.
    """

    moments: Moments
    degrees: Float[Array, ""]


def valid_directions(rows: Rows) -> Bool[Array, " rows"]:
    """Rows that are directions: marked so, with a count above 0.

    Raises:
        ValueError: if the rows do not say which of them are directions.
    """
    if rows.sketch is None:
        raise ValueError("rows: expected rows with directions among them, see directed_rows; got none")
    return jnp.asarray(rows.sketch) & (jnp.asarray(rows.count) > 0)


def directed_moments(rows: Rows, num_classes: int) -> DirectedMoments:
    """Phase one: the class moments, and the degrees of freedom behind the residual directions.

    Args:
        rows: class means and residual directions, from `directed_rows`, all of them or a part.
        num_classes: C, static.

    Raises:
        ValueError: if no directions are marked, or shapes do not fit.
    """
    moments = first_moments(rows, num_classes)
    return DirectedMoments(
        moments, row_counts(rows, valid_directions(rows)).astype(moments.total.dtype).sum()
    )


def directed_factor(rows: Rows, moments: Moments) -> Float[Array, "rows dim"]:
    """Rows Y with YᵀY = Ŵ: √n_r (x_r − μ_c) of each mean, and the residual directions as they are.

    The first part is the scatter of the examples that is seen between the rows. The directions are the
    largest part of what is hidden inside them, or all of it if clients send enough.

    Args:
        rows: class means and directions, all of them or a part.
        moments: class moments of *all* rows.

    Returns:
        The factor; 0 in padding rows.

    Raises:
        ValueError: if no directions are marked.
    """
    directions = row_means(rows, valid_directions(rows))
    return centred_rows(rows, moments, jnp.ones_like(moments.total[:, 0])) + directions


def directed_freedom(totals: DirectedMoments) -> Freedom:
    """What Ŵ/(N − C) rests on: K_c − 1 degrees between the rows of each class, and those of the directions.

    Of the A = N − M degrees hidden inside the M rows the directions show the largest part, in rank L. They
    count as L degrees that stand for all A. If nothing is left out, L = A, as for the examples' own scatter.
    Else L is on the safe side: leading directions of many examples are less random than as many draws. Over
    13 federations (docs/shift.md) automatic shrinkage did better on average with L degrees than with A, which
    make it trust directions that nobody sent.
    """
    moments = totals.moments
    scale = 1 / jnp.maximum(moments.within_degrees, 1)
    hidden = moments.hidden_degrees
    seen = (totals.degrees > 0) & (hidden > 0)
    weight = jnp.where(seen, hidden * scale / jnp.where(seen, totals.degrees, 1), 0)
    between = Freedom.of_classes(moments, jnp.full_like(moments.total[:, 0], 1) * scale)
    return between.joined(Freedom(jnp.where(seen, totals.degrees, 0)[None], weight[None]))
