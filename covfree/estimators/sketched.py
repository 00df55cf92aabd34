"""The within-class scatter from class means and residual sketches: exact in expectation under any shift."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.estimators.moments import first_moments, row_counts, row_means
from covfree.estimators.scatter import Freedom, centred_rows
from covfree.types import Moments, Rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SketchMoments:
    """Phase one of sketched rows; adds up over any split of them.

    Attributes:
        moments: counts, rows and sums of each class, from the means.
        count: sum of the sketches' counts, m Σ_k a_k with a_k the degrees of freedom inside client k's rows.
        square: sum of their squares, m Σ_k a_k².
    """

    moments: Moments
    count: Float[Array, ""]
    square: Float[Array, ""]


def valid_sketches(rows: Rows) -> Bool[Array, " rows"]:
    """Rows that are sketches: marked so, with a count above 0.

    Raises:
        ValueError: if the rows do not say which of them are sketches.
    """
    if rows.sketch is None:
        raise ValueError("rows: expected rows with sketches among them, see sketched_rows; got none")
    return jnp.asarray(rows.sketch) & (jnp.asarray(rows.count) > 0)


def sketched_moments(rows: Rows, num_classes: int) -> SketchMoments:
    """Phase one: the class moments, and how much the sketches stand for.

    Args:
        rows: class means and sketches, from `sketched_rows`, all of them or a part.
        num_classes: C, static.

    Raises:
        ValueError: if no sketches are marked, or shapes do not fit.
    """
    moments = first_moments(rows, num_classes)
    count = row_counts(rows, valid_sketches(rows)).astype(moments.total.dtype)
    return SketchMoments(moments, count.sum(), jnp.square(count).sum())


def sketched_factor(rows: Rows, moments: Moments) -> Float[Array, "rows dim"]:
    """Rows Y with YᵀY = Ŵ: √n_r (x_r − μ_c) of each mean, and the sketches as they are.

    Ŵ = Σ_r n_r (x_r − μ_c)(x_r − μ_c)ᵀ + Σ_k Σ_j y_kj y_kjᵀ. The first sum is what of the examples' scatter
    is seen between the rows; over the secret signs the second is, in expectation, exactly what is hidden
    inside them. So Ŵ is unbiased for the examples' own within-class scatter, whatever the data: any client
    shift, any covariances, even one client.

    Args:
        rows: class means and sketches, all of them or a part.
        moments: class moments of *all* rows.

    Returns:
        The factor; 0 in padding rows.

    Raises:
        ValueError: if no sketches are marked.

    Source: covfree.

    >>> import jax, jax.numpy as jnp
    >>> from covfree.statistics.sketches import sketched_rows
    >>> x, y = jnp.array([[1.0], [3.0], [9.0], [9.5]]), jnp.array([0, 0, 0, 1])
    >>> k, key = jnp.array([7, 7, 2, 2]), jax.random.key(0)
    >>> rows = sketched_rows(x, y, k, num_rows=3, num_clients=2, num_sketches=400, key=key)
    >>> factor = sketched_factor(rows, sketched_moments(rows, 2).moments)
    >>> float(jnp.abs((factor**2).sum() - 104 / 3)) < 0.4  # 104/3, four standard deviations
    True
    """
    sketches = row_means(rows, valid_sketches(rows))
    return centred_rows(rows, moments, jnp.ones_like(moments.total[:, 0])) + sketches


def sketched_freedom(totals: SketchMoments) -> Freedom:
    """What Ŵ/(N − C) rests on: K_c − 1 degrees between the rows of each class, and the sketches.

    With A = Σ_k a_k = N − M degrees hidden inside the M rows, all clients' m sketches together are worth
    ν = A² / Σ_k a_k (a_k + m − 1)/m degrees: m·K for K like clients with a_k far above m, and never more
    than the A that the examples have.

    Taken for granted: every client whose rows hide anything sends the same number of sketches.
    """
    moments = totals.moments
    scale = 1 / jnp.maximum(moments.within_degrees, 1)
    hidden = (moments.count - moments.num_rows).astype(scale.dtype).sum()
    seen = (totals.count > 0) & (hidden > 0)
    hidden = jnp.where(seen, hidden, 1)
    # Each client's a_k counts m times: the share is 1/m.
    share = hidden / jnp.where(seen, totals.count, 1)
    noise = totals.square * jnp.square(share) + hidden * (1 - share)
    degrees = jnp.where(seen, jnp.square(hidden) / jnp.where(seen, noise, 1), 0)
    weight = jnp.where(seen, hidden * scale / jnp.where(seen, degrees, 1), 0)
    between = Freedom.of_classes(moments, jnp.full_like(moments.total[:, 0], 1) * scale)
    return between.joined(Freedom(degrees[None], weight[None]))
