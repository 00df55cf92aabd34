"""The within-class scatter from class means and residual directions: exact if clients send all of them."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.estimators.moments import first_moments, row_counts
from covfree.estimators.scatter import Freedom
from covfree.estimators.sketched import valid_sketches
from covfree.types import Moments, Rows


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


def directed_moments(rows: Rows, num_classes: int) -> DirectedMoments:
    """Phase one: the class moments, and the degrees of freedom behind the residual directions.

    Args:
        rows: class means and residual directions, from `directed_rows`, all of them or a part.
        num_classes: C, static.

    Raises:
        ValueError: if no directions are marked, or shapes do not fit.
    """
    moments = first_moments(rows, num_classes)
    return DirectedMoments(moments, row_counts(rows, valid_sketches(rows)).astype(moments.total.dtype).sum())


def directed_freedom(totals: DirectedMoments) -> Freedom:
    """What Ŵ/(N − C) rests on: K_c − 1 degrees between the rows of each class, and those of the directions.

    Of the A = N − M degrees hidden inside the M rows the directions show the largest part, in rank L. They
    count as L degrees that stand for all A. If nothing is left out, L = A, as for the examples' own scatter.
    Else L is on the safe side: leading directions of many examples are less random than as many draws. On ten
    federations (docs/shift.md) automatic shrinkage did better with L degrees than with A, which make it trust
    directions that nobody sent.
    """
    moments = totals.moments
    scale = 1 / jnp.maximum(moments.within_degrees, 1)
    hidden = (moments.count - moments.num_rows).astype(scale.dtype).sum()
    seen = (totals.degrees > 0) & (hidden > 0)
    weight = jnp.where(seen, hidden * scale / jnp.where(seen, totals.degrees, 1), 0)
    between = Freedom.of_classes(moments, jnp.full_like(moments.total[:, 0], 1) * scale)
    return between.joined(Freedom(jnp.where(seen, totals.degrees, 0)[None], weight[None]))
