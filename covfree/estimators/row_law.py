"""Estimate client shift from the distances of clients' class means to the means of the classes.

For a mean x of n examples and a class mean μ, n ‖x − μ‖² grows with n, on average, only if clients differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.forms import zeros_of
from covfree.core.sums import fold_parts
from covfree.core.types import Moments, Rows, Scalar
from covfree.estimators.moments import row_counts, row_labels, valid_rows
from covfree.estimators.scatter import centred_rows

# Rows are sorted by n_r, the number of examples behind row r, into this many bins: two for each doubling, up
# to 2³².
_BINS = 64
# A row with more than this share of its class's examples nearly is the class mean, and is left out.
_LARGEST_SHARE = 0.9
# `client_variance` lowers its slope by this many standard errors: a slope that may be chance counts as 0.
_ERRORS = 2.0
# Iterations of the weighted fit in `client_variance`, whose weights depend on the slope that it fits.
_STEPS = 5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowLaw:
    """Sums of squared distances of rows from their class means, from which client shift is estimated.

    Row r is the mean x_r of n_r examples of class c, such as a client's class mean. μ_c is the mean of all
    N_c examples of the class. The row's scaled squared distance is z_r = n_r ‖x_r − μ_c‖² / (1 − n_r/N_c) /
    (d v), with v the ``variance`` given to `row_law` and d features. Rows with about the same n_r share a
    bin. If the rows are split into parts, the parts' sums add up.

    Attributes:
        num_rows: K_c, the number of rows of each class.
        rows: number of rows in each bin.
        sizes: Σ n_r in each bin.
        squares: Σ z_r in each bin.
        fourths: Σ z_r² in each bin.
    """

    num_rows: Integer[Array, " classes"]
    rows: Float[Array, " bins"]
    sizes: Float[Array, " bins"]
    squares: Float[Array, " bins"]
    fourths: Float[Array, " bins"]


def row_law(rows: Rows, moments: Moments, variance: Scalar) -> RowLaw:
    """Compute how far clients' class means are from the means of all clients: the sums in `RowLaw`.

    `client_variance` estimates client shift from the sums.

    Args:
        rows: clients' class means, all of them or some.
        moments: moments of the class means of *all* clients; ``num_rows`` is not used.
        variance: v in `RowLaw`, an approximate variance within classes, averaged over the features.
    """
    law = partial(_law_of_part, moments=moments, variance=variance)

    def add(total: RowLaw, part: Rows) -> RowLaw:
        return jax.tree.map(jnp.add, total, law(part))

    # Sum in parts: the deviations of all rows would take as much memory as the rows.
    return fold_parts(add, zeros_of(law, rows), rows)


def _law_of_part(rows: Rows, *, moments: Moments, variance: Scalar) -> RowLaw:
    num_classes, dim = moments.total.shape
    valid = valid_rows(rows, num_classes)
    label, count = jnp.where(valid, row_labels(rows), 0), row_counts(rows, valid)
    dtype = count.dtype
    unit = jnp.asarray(variance, dtype)
    factor = centred_rows(rows, moments)
    factor = factor / jnp.sqrt(jnp.where(unit > 0, unit, 1))
    share = count / jnp.maximum(moments.count[label].astype(dtype), 1)
    used = valid & (share <= _LARGEST_SHARE)
    square = jnp.square(factor).sum(1) / dim / (1 - jnp.minimum(share, _LARGEST_SHARE))
    # Bins begin at powers of √2. Adding 0.01 puts a power of two into the bin that begins there, despite the
    # rounding of its logarithm.
    place = jnp.floor(2 * jnp.log2(jnp.maximum(count, 1)) + 0.01).astype(jnp.int32)
    place = jnp.where(used, jnp.minimum(place, _BINS - 1), _BINS)

    def binned(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, place, _BINS)

    held = jax.ops.segment_sum(valid.astype(jnp.int32), jnp.where(valid, label, num_classes), num_classes)
    return RowLaw(
        held, binned(jnp.ones_like(count)), binned(count), binned(square), binned(jnp.square(square))
    )


def client_variance(law: RowLaw) -> Float[Array, ""]:
    """Estimate τ, the strength of client shift: how much clients' means of a class differ beyond chance.

    The model: x_r, a client's mean of n_r examples of class c, has the covariance (1/n_r + τ) V_c, with V_c
    the covariance of the class within clients. Then z_r, the scaled squared distance of x_r from the class
    mean (`RowLaw`), has an expectation proportional to 1 + τ n_r: a line in n_r, level without client shift.
    The line is fitted by weighted least squares; the variance of z_r grows with the square of its mean, so
    the weights are 1/(1 + τ n_r)². The slope is lowered by two standard errors, at most to 0, so that τ is 0
    unless a shift is evident.

    Returns:
        τ, at least 0. If all rows have about equal counts, the slope is unknown, and τ is 0.
    """
    used = law.rows > 0
    number = jnp.where(used, law.rows, 1)
    size, square = law.sizes / number, law.squares / number
    found = jnp.zeros_like(size[0])
    for _ in range(_STEPS):
        weight = jnp.where(used, number / jnp.square(1 + found * size), 0)
        weight = weight / jnp.where(used.any(), weight.sum(), 1)
        size_mean, mean = (weight * size).sum(), (weight * square).sum()
        away = size - size_mean
        spread = (weight * jnp.square(away)).sum()
        varied = spread > 1e-6 * jnp.square(size_mean)
        spread = jnp.where(varied, spread, 1)
        slope = (weight * away * (square - mean)).sum() / spread
        line = mean + slope * away
        residual = jnp.maximum(law.fourths / number - 2 * square * line + jnp.square(line), 0) / number
        error = (jnp.square(weight * away) * residual).sum()
        error = jnp.where(error > 0, jnp.sqrt(jnp.where(error > 0, error, 1)), 0) / spread
        slope = jnp.where(varied, jnp.maximum(slope - _ERRORS * error, 0), 0)
        start = mean - slope * size_mean
        found = jnp.where(start > 0, slope / jnp.where(start > 0, start, 1), found)
    return found
