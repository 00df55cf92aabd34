"""Estimators of the within-class scatter: each is a `Within`, a record of functions of clients' rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.linalg import Scatter
from covfree.core.types import Moments, Rows
from covfree.estimators import Freedom, ScatterChoice, Weighting, first_moments, total_gram, within_factor
from covfree.estimators.class_scatter import row_scatter
from covfree.estimators.directed import directed_factor, directed_freedom, directed_moments
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows, class_weights
from covfree.methods.rounds import bound, moments_of


@dataclass(frozen=True)
class Within:
    """The functions that estimate the within-class scatter Ŵ from the `Rows` that clients send; hashable.

    Attributes:
        first: ``(rows, num_classes) -> first``: sums over all rows. They are `Moments`, or a record with a
            field ``moments``, and an argument of all other functions.
        factor: ``(rows, first) -> Y``: a matrix for a part of the rows. If ``inner`` is None, Ŵ is the sum of
            YᵀY over all parts.
        freedom: ``(first) -> Freedom``: the degrees of freedom of Ŵ. Their `Freedom.expected` is the number
            by which Ŵ is divided to estimate the covariance: N − C for N examples of C classes, or fewer if a
            class has a single row (one mean) and so shows no scatter.
        inner: ``(rows, first) -> array``: the scatter of examples about their row's mean, from variances that
            clients send: its diagonal, or one number for all features. Ŵ is then the sum of YᵀY plus this
            scatter. None if clients send no variances.
        class_weight: ``(first) -> w``, [classes], if Ŵ = Σ_r w_c n_r (x_r − μ_c)(x_r − μ_c)ᵀ. Here row r is
            the mean x_r of n_r examples of class c, whose mean is μ_c. None if Ŵ is not such a sum.
    """

    first: Callable[[Rows, int], Any]
    factor: Callable[[Rows, Any], jax.Array]
    freedom: Callable[[Any], Freedom]
    inner: Callable[[Rows, Any], jax.Array] | None = None
    class_weight: Callable[[Any], jax.Array] | None = None


@dataclass(frozen=True)
class Estimate:
    """How the server of a method like `fedcof` estimates the covariance within classes; hashable.

    Attributes:
        within: the estimator of the within-class scatter.
        covariance: ``(params, *state) -> Scatter``, the shrunk covariance, from the method's ``params`` and
            the server's state after all rounds.
        gram: for a ridge head, the terms of the Gram matrix with which it is solved: the option ``scatter``
            of `total_gram`. None for other heads, which are solved with the covariance.
        made: ``(system, rounds)`` of the method whose estimate this is. If a user replaces one of them, the
            method's estimate becomes None.
    """

    within: Within
    covariance: Callable[..., Scatter]
    gram: ScatterChoice | None
    made: tuple[Any, ...] = field(default=(), compare=False)

    def gram_of(self, covariance: Scatter, first: Any) -> Scatter:
        """Make the Gram matrix of a ridge head from the shrunk covariance and the first round's total.

        The covariance times its degrees of freedom is the scatter within classes; `total_gram` adds the other
        terms.
        """
        assert self.gram is not None
        moments = moments_of(first)
        # The covariance times its degrees of freedom is Ŵ, to which a class with a single row adds nothing.
        # The shift is multiplied by all N − C, as in the paper: γI is added to the covariance of each class,
        # and N_c − 1 times these are summed.
        observed = covariance.unshifted.scaled(self.within.freedom(first).expected)
        shift = covariance.shift * moments.within_degrees
        return total_gram(observed.shifted(shift), moments, scatter=self.gram)


def from_means(weighting: Weighting) -> Within:
    """Make FedCOF's estimator of the within-class scatter from clients' class means.

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

    The within-class scatter is the sum of two scatters: of the clients' class means about the class means of
    all examples, and of examples about their client's class means. The second comes from the variances.
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
