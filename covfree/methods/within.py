"""Estimators of the within-class scatter: each is a `Within`, a record of functions of clients' rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.types import Moments, Rows
from covfree.estimators import Freedom, Weighting, first_moments, within_factor
from covfree.estimators.class_scatter import row_scatter
from covfree.estimators.directed import directed_factor, directed_freedom, directed_moments
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows, class_weights
from covfree.methods.rounds import bound


@dataclass(frozen=True)
class Within:
    """The functions that estimate the within-class scatter Ŵ from what clients send (`Rows`); hashable.

    Attributes:
        first: ``(rows, num_classes) -> first``: sums over all rows. They are `Moments`, or a record with a
            field ``moments``, and an argument of all other functions.
        factor: ``(rows, first) -> Y``: a matrix for a part of the rows. If ``inner`` is None, Ŵ is the sum of
            YᵀY over all parts.
        freedom: ``(first) -> Freedom``: the degrees of freedom of Ŵ. Their `Freedom.expected` is the number
            by which Ŵ is divided to estimate the covariance: N − C for N examples of C classes, or fewer if a
            class has a single row (one mean) and so shows no scatter.
        inner: ``(rows, first) -> array``: what must be added to the sum of YᵀY if clients also send
            variances, the scatter of examples about the mean of their row: its diagonal, or one number for
            all features. None if clients send no variances.
        class_weight: ``(first) -> w``, [classes], if Ŵ = Σ_r w_c n_r (x_r − μ_c)(x_r − μ_c)ᵀ. Here row r is
            the mean x_r of n_r examples of class c, whose mean is μ_c. None if Ŵ is not such a sum.
    """

    first: Callable[[Rows, int], Any]
    factor: Callable[[Rows, Any], jax.Array]
    freedom: Callable[[Any], Freedom]
    inner: Callable[[Rows, Any], jax.Array] | None = None
    class_weight: Callable[[Any], jax.Array] | None = None


def moments_of(first: Any) -> Moments:
    """Return each class's sums and counts (`Moments`) from the result ``first`` of `Within.first`.

    ``first`` is such a `Moments`, or has one as its field ``moments``.
    """
    return first if isinstance(first, Moments) else first.moments


def moments_in(state: Any) -> Moments | None:
    """Find the class sums and counts (`Moments`) in a server's state, a pytree; None if it has none.

    If there are several, return the first.
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Moments))
    return next((node for node in nodes if isinstance(node, Moments)), None)


def from_means(weighting: Weighting) -> Within:
    """Make FedCOF's estimator of the within-class scatter from the means that clients send of their classes.

    It is a `Within`, a record of functions. ``weighting`` says how classes are weighted, see `class_weights`.
    If there are K_c means of class c, they have K_c − 1 degrees of freedom.
    """
    return Within(
        first_moments,
        bound(within_factor, weighting=weighting),
        bound(_weighted_freedom, weighting=weighting),
        class_weight=bound(class_weights, weighting=weighting),
    )


def _weighted_freedom(moments: Moments, *, weighting: Weighting) -> Freedom:
    return Freedom.of_classes(moments, class_weights(moments, weighting))


def from_variances() -> Within:
    """Make the estimator for clients that send variances beside their class means.

    Ŵ is the sum of two scatters: of the clients' class means about the class means of all examples, and of
    examples about their client's class means. The second is computed from the variances.
    """
    return Within(example_moments, centred_rows, Freedom.of_classes, _sent_variances)


def _sent_variances(rows: Rows, moments: Moments) -> jax.Array:
    """Return the scatter of examples about their rows' means, from covariances that clients sent.

    It is Σ_r (n_r − 1) S_r: row r is the mean of n_r examples, and S_r = ``rows.covariance[r]`` is their
    covariance (or its diagonal, or one variance).
    """
    if rows.covariance is None:
        raise ValueError("rows: expected a covariance with each row, as the method sends it; got none")
    return jnp.asarray(row_scatter(rows, moments.total.shape[0]))


def from_directions() -> Within:
    """Make the estimator from clients' class means and residual directions (see `fedcof_residuals`)."""
    return Within(directed_moments, directed_factor, directed_freedom)
