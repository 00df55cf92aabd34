"""Estimate class covariances from class means (FedCOF), or combine clients' covariances (FedCOF's oracle)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from covfree.core.checks import check_means, check_positive, check_row_structure
from covfree.core.doors import as_counts, compiled
from covfree.core.linalg import Scatter
from covfree.core.products import divide_or_zero, symmetric_product
from covfree.core.types import AnyArray, Moments, Rows, Scalar
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.moments import first_moments, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import Freedom, centred_rows
from covfree.estimators.shrinkage import Shrinkage


def estimate_covariance(
    means: Float[AnyArray, "rows dim"],
    counts: Num[AnyArray, " rows"],
    *,
    shrinkage: Scalar | str | Shrinkage = 0.0,
    axis_name: Hashable | None = None,
) -> Float[Array, "dim dim"]:
    """Estimate the covariance of one class from the spread of its clients' means: FedCOF's estimator.

    Σ̂ = Σ_k n_k (μ_k − μ)(μ_k − μ)ᵀ / (K_c − 1), with μ the weighted mean and K_c the number of rows with a
    count above 0. If the class's features are iid with covariance Σ, a mean of n_k features has covariance
    Σ/n_k. So each √n_k (μ_k − μ) measures Σ, and E[Σ̂] = Σ. For Gaussian features Var[Σ̂_ij] = (Σ_ii Σ_jj +
    Σ_ij²)/(K_c − 1).

    Args:
        means: μ_k, the class's mean at each client.
        counts: n_k, the examples behind each mean; rows with count 0 are ignored, whatever they hold.
        shrinkage: a number γ adds γI (FedCOF eq. 6); ``"auto"`` is `automatic`; or another rule.
        axis_name: one or more mapped axes of ``vmap`` or ``shard_map``, over which the rows are split. Σ̂
            is then computed from all rows, and is the same along the axis. If rows arrive in parts, see
            `covfree.streaming`.

    Returns:
        Σ̂, unbiased for γ = 0. With fewer than two rows Σ̂ is only what the shrinkage adds.

    Raises:
        TypeError: if means are no floats, counts no numbers, or ``shrinkage`` no number, string or rule.
        ValueError: if shapes do not fit, counts or γ are negative or not finite, or the shrinkage is unknown.

    Source: FedCOF (Goswami et al. 2024), eq. 5 and 6. The paper's divisor K − 1 counts clients; for a class
    that some client lacks it must be K_c − 1.

    >>> import jax.numpy as jnp
    >>> estimate_covariance(jnp.array([[0.0, 1.0], [2.0, 1.0]]), jnp.array([4, 4]))
    Array([[8., 0.],
           [0., 0.]], dtype=float32)
    """
    return _estimate_covariance(means, counts, as_shrinkage(shrinkage), axis_name)


@compiled(("axis_name",), check=check_means, padded={"means": 0, "counts": 0})
def _estimate_covariance(
    means: AnyArray, counts: AnyArray, rule: Shrinkage, axis_name: Hashable | None
) -> Array:
    near = across(first_moments(one_class(means, counts), 1), axis_name).mean[0]
    # Subtract a point near the rows: this does not change the result, and means far from 0 would lose digits.
    near = jax.lax.stop_gradient(near)
    rows = one_class(means.astype(near.dtype) - near[None, :], counts)
    moments = across(first_moments(rows, 1), axis_name)
    weight = spread_weight(moments)
    factor = centred_rows(rows, moments, weight)
    statistics = across(rule.statistics(factor, rows, moments, weight), axis_name)
    if axis_name is None:
        covariance = Scatter.from_factor(factor)
    else:
        covariance = Scatter.from_matrix(across(symmetric_product(factor), axis_name))
    return rule.apply(covariance, moments, Freedom.of_classes(moments, weight), statistics).dense()


def one_class(means: AnyArray, counts: AnyArray) -> Rows:
    """Make `Rows` of class 0 from means and counts."""
    return Rows(means, counts, jnp.zeros(means.shape[0], jnp.int32))


def across(terms: Any, axis_name: Hashable | None) -> Any:
    """Add up arrays over the devices or calls that share the mapped axis ``axis_name``, by ``jax.lax.psum``.

    ``terms`` is a pytree of arrays. If ``axis_name`` is None, it is returned as it is.
    """
    return terms if axis_name is None else jax.lax.psum(terms, axis_name)


def spread_weight(moments: Moments) -> Float[Array, " classes"]:
    """Return [1/(K − 1)], for the K means (rows) of one class; [0] if K < 2.

    This factor turns the scatter of the class's means into an estimate of its covariance. ``moments`` are
    those of these K rows alone.
    """
    return divide_or_zero(1, moments.spread_degrees[None])


def estimate_covariances(
    rows: Rows, num_classes: int, *, shrinkage: Scalar | str | Shrinkage = 0.0
) -> Float[Array, "classes dim dim"]:
    """Estimate the covariance of every class, as `estimate_covariance` does.

    Args:
        rows: rows of all classes.
        num_classes: C, the number of classes, static. The result has C·d² numbers. Linear heads do not need
            it: they use `within_scatter`.
        shrinkage: see `estimate_covariance`; a data-driven rule is applied to each class separately.

    Returns:
        Σ̂_c for each class.

    Raises:
        TypeError: if ``rows`` are no `Rows`.
        ValueError: if shapes do not fit.
    """
    check_row_structure(rows)
    check_positive("num_classes", num_classes)

    rule, counts, labels = as_shrinkage(shrinkage), as_counts(rows.count), row_labels(rows)

    def of_class(label: jax.Array) -> jax.Array:
        return estimate_covariance(rows.mean, jnp.where(labels == label, counts, 0), shrinkage=rule)

    return jax.lax.map(of_class, jnp.arange(num_classes, dtype=jnp.int32))


def _check_covariances(means: Any, counts: Any, covariances: Any) -> None:
    check_means(means, counts)
    wanted = (*np.shape(means), np.shape(means)[1])
    if np.shape(covariances) != wanted:
        raise ValueError(f"covariances: expected {list(wanted)}, got {list(np.shape(covariances))}")


@compiled(check=_check_covariances, padded={"means": 0, "counts": 0, "covariances": 0})
def aggregate_covariances(
    means: Float[AnyArray, "clients dim"],
    counts: Num[AnyArray, " clients"],
    covariances: Float[AnyArray, "clients dim dim"],
) -> Float[Array, "dim dim"]:
    """Combine the clients' covariances of one class into the exact covariance of their pooled examples.

    S = [Σ_k (n_k − 1) S_k + Σ_k n_k (μ_k − μ)(μ_k − μ)ᵀ] / (N − 1), with N = Σ_k n_k and μ = Σ_k n_k μ_k/N.
    FedCOF's eq. 24 writes the second sum as Σ_k n_k μ_k μ_kᵀ − N μμᵀ, which is the same but loses digits in
    float32 if the mean is large.

    Args:
        means: μ_k, the class's mean at each client.
        counts: n_k, the class's examples at each client; clients with count 0 are ignored.
        covariances: S_k, the class's unbiased covariance at each client (any value if n_k < 2).

    Returns:
        The sample covariance of the pooled examples; 0 with fewer than two examples.

    Source: FedCOF (Goswami et al. 2024), eq. 24; CCVR (Luo et al. 2021), eq. 3.
    """
    rows = one_class(means, counts)
    moments = first_moments(rows, 1)
    weight = 1 / jnp.maximum(moments.count.astype(moments.total.dtype) - 1, 1)
    count = row_counts(rows, valid_rows(rows, 1)).astype(weight.dtype)
    inner = jnp.where((count > 1)[:, None, None], covariances, 0)
    scatter = jnp.tensordot(weight * jnp.maximum(count - 1, 0), inner, 1, precision=jax.lax.Precision.HIGHEST)
    return Scatter.from_matrix(scatter).with_factor(centred_rows(rows, moments, weight)).dense()
