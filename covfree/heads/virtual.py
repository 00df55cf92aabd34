"""Virtual features: samples that the server draws from the means and covariances of rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_positive, check_row_structure
from covfree.core.doors import compiled
from covfree.core.keys import derive
from covfree.core.lapack import cholesky, eigh
from covfree.core.products import divide_or_zero, product
from covfree.core.types import PRNGKey, Rows
from covfree.estimators.moments import row_counts, row_labels, row_means

# Features per block: enough for a fast product with the root of a covariance.
_BLOCK = 128


@compiled(("num_samples",))
def sample_rows(
    rows: Rows, num_samples: int, *, key: PRNGKey
) -> tuple[Float[Array, "samples dim"], Integer[Array, " samples"]]:
    """Draw features of the classes from normal distributions with the rows' means and covariances.

    Row r, with mean μ_r, covariance S_r and count n_r, gives ⌊s⌋ or ⌈s⌉ features x = μ_r + S_r^½ z, with z
    standard normal and s = num_samples·n_r/Σ n_r. The sampling is systematic, with one random offset.
    Features come in the order of their rows. If rows are components of a mixture, the features are a sample
    of the mixture.

    Memory is num_samples·d numbers beside the rows. Full covariances cost one Cholesky factor (d³/3
    operations) for each row that is drawn, and 2·d² operations for each feature; rows are processed one at a
    time, in blocks of 128 features, so that only a few matrices [dim, dim] are in memory. If a matrix has no
    Cholesky factor because of negative eigenvalues beyond rounding, ``eigh`` is used and these eigenvalues
    are set to 0.

    Args:
        rows: rows with full covariances, their diagonals, or one variance each; without covariances all
            features are means. Rows with count 0 or a label below 0 are padding and are never drawn.
        num_samples: number of features, static.
        key: PRNG key.

    Returns:
        Features, in at least float32, and their labels. If all rows are padding, the features are 0 and the
        labels −1. Derivatives by full covariances exist in forward mode only.

    Raises:
        ValueError: if shapes do not fit, or ``num_samples`` is below 1.
        TypeError: if means are no floats or labels no integers.

    Source: CCVR (Luo et al. 2021); FedPFT (Beitollahi et al. 2024).

    >>> import jax
    >>> rows = Rows(jax.numpy.array([[1.0], [5.0]]), jax.numpy.array([3, 1]), jax.numpy.array([0, 1]))
    >>> features, labels = sample_rows(rows, 4, key=jax.random.key(0))
    >>> features.ravel().tolist(), labels.tolist()
    ([1.0, 1.0, 1.0, 5.0], [0, 0, 0, 1])
    """
    check_row_structure(rows)
    check_positive("num_samples", num_samples)
    label = row_labels(rows)
    valid = (jnp.asarray(rows.count) > 0) & (label >= 0)
    mean = row_means(rows, valid)
    ends = ends_of_draws(
        row_counts(rows, valid).astype(mean.dtype), valid, num_samples, derive(key, "offset")
    )
    # If there is no row to draw, the index is past the last row.
    row = jnp.searchsorted(ends, jnp.arange(num_samples, dtype=ends.dtype), side="right")
    labels = label.at[row].get(mode="fill", fill_value=-1)
    centre = mean.at[row].get(mode="fill", fill_value=0)
    if rows.covariance is None:
        return centre, labels
    covariance = jnp.asarray(rows.covariance)
    dtype = jnp.promote_types(mean.dtype, covariance.dtype)
    noise = jax.random.normal(derive(key, "normal"), (num_samples, mean.shape[1]), dtype)
    if covariance.ndim == 3:
        return centre + _coloured(noise, covariance, ends), labels
    deviation = jnp.sqrt(jnp.maximum(covariance.astype(dtype), 0))
    deviation = deviation.at[row].get(mode="fill", fill_value=0)
    return centre + noise * (deviation if deviation.ndim == 2 else deviation[:, None]), labels


def ends_of_draws(
    count: Float[Array, " rows"], valid: Bool[Array, " rows"], num_samples: Any, key: PRNGKey
) -> Integer[Array, " rows"]:
    """Divide ``num_samples`` samples among rows in proportion to their counts; return each row's end.

    Row r gets the samples ends[r − 1], …, ends[r] − 1, and padding none: with counts 3 and 1 and 8 samples,
    ends are [6, 8]. The sampling is systematic: the rows divide a line of length ``num_samples`` in
    proportion to their counts, and sample i goes to the row at i + u. All samples have the same u, uniform on
    [0, 1).
    """
    total = count.sum()
    edge = jnp.cumsum(count / jnp.where(total > 0, total, 1)) * jnp.asarray(num_samples, count.dtype)
    end = jnp.ceil(edge - jax.random.uniform(key, (), count.dtype)).astype(jnp.int32)
    # Rounding may put the last edge below ``num_samples``: let the last valid row end at ``num_samples`` all
    # the same. Padding after it then gets no sample.
    end = jnp.where(jnp.cumsum(valid) == valid.sum(), num_samples, jnp.clip(end, 0, num_samples))
    return jax.lax.cummax(jnp.where(valid, end, 0))


def _coloured(
    noise: Float[Array, "samples dim"],
    covariance: Float[Array, "rows dim dim"],
    ends: Integer[Array, " rows"],
) -> Float[Array, "samples dim"]:
    """Turn standard normal samples into samples with given covariances, one covariance for each row r.

    The samples ends[r − 1], …, ends[r] − 1 get the covariance of row r, see `ends_of_draws`.
    """
    num_samples = noise.shape[0]
    within = jnp.arange(_BLOCK, dtype=ends.dtype)

    def one_row(row: Any, values: jax.Array) -> jax.Array:
        start = jnp.where(row > 0, ends[row - 1], 0)
        end = ends[row]

        def drawn() -> jax.Array:
            root = root_of(covariance[row].astype(noise.dtype))

            def one_block(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                first, values = carry
                block = jax.lax.dynamic_slice_in_dim(values, first, _BLOCK)
                # Change only this row's samples: the block may extend into the next row's.
                mine = (first + within < end)[:, None]
                block = jnp.where(mine, product(block, root.T), block)
                return first + _BLOCK, jax.lax.dynamic_update_slice_in_dim(values, block, first, 0)

            return jax.lax.while_loop(lambda carry: carry[0] < end, one_block, (start, values))[1]

        return jax.lax.cond(end > start, drawn, lambda: values)

    padded = jnp.pad(noise, ((0, _BLOCK), (0, 0)))
    return jax.lax.fori_loop(0, covariance.shape[0], one_row, padded)[:num_samples]


def root_of(covariance: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Return R with R Rᵀ = S for a covariance S, by factorising the correlation matrix."""
    variance = jnp.diagonal(covariance)
    deviation = jnp.sqrt(jnp.maximum(variance, 0))
    inverse = divide_or_zero(1, deviation)
    correlation = covariance * inverse[:, None] * inverse[None, :]
    # A singular matrix has a Cholesky factor if its diagonal is raised by the size of rounding errors. This
    # share of the variances, 1.5e-4 for 1,280 features in float32, changes no sample noticeably.
    size = covariance.shape[0]
    share = size * jnp.finfo(covariance.dtype).eps
    raised = correlation + jnp.diag(jnp.where(deviation > 0, share, 1))
    factor = cholesky(raised)

    def eigen() -> jax.Array:
        values, vectors = eigh(correlation)
        return vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]

    factor = jax.lax.cond(jnp.isfinite(factor).all(), lambda: factor, eigen)
    return deviation[:, None] * factor
