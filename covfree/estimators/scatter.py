"""Compute scatter matrices from rows and the moments of classes, each as one product YᵀY of scaled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter, as_scatter
from covfree.core.products import divide_or_zero, symmetric_product
from covfree.core.sums import deviations
from covfree.core.types import AnyArray, Moments, Rows, Scalar
from covfree.estimators.moments import centred_means, row_counts, row_labels, row_means, valid_rows

Weighting: TypeAlias = Literal["per_class", "pooled"]
# Which scatter matrices a ridge head adds up: within classes, between classes, or both.
ScatterChoice: TypeAlias = Literal["both", "within", "between"]


def class_weights(moments: Moments, weighting: Weighting) -> Float[Array, " classes"]:
    """Compute a weight w_c for each class, such that Σ_c w_c S_c estimates the within-class scatter.

    S_c is the scatter of the rows of class c; `within_scatter` derives both weightings.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    if weighting == "per_class":
        numerator = jnp.maximum(moments.count.astype(moments.total.dtype) - 1, 0)
        denominator = (moments.num_rows - 1).astype(moments.total.dtype)
    else:
        numerator = jnp.broadcast_to(moments.within_degrees, moments.num_rows.shape)
        denominator = jnp.broadcast_to(moments.spread_degrees, moments.num_rows.shape)
    return divide_or_zero(numerator, denominator, (moments.num_rows > 1) & (denominator > 0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Freedom:
    """The degrees of freedom of an estimate Σ̂ = Σ_j w_j S_j, a sum of independent scatters.

    For Gaussian features of one covariance Σ, S_j has a Wishart distribution with ν_j degrees of freedom, so
    that E[Σ̂] = Σ_j w_j ν_j Σ. FedCOF's estimate has one S_j for each class.

    Attributes:
        degrees: ν, degrees of freedom of each scatter.
        weight: w, the weight of each scatter, at least 0.
    """

    degrees: Float[Array, " scatters"]
    weight: Float[Array, " scatters"]

    @classmethod
    def of_classes(cls, moments: Moments, class_weight: Float[Array, " classes"] | None = None) -> Freedom:
        """Return the `Freedom` of Σ̂ = Σ_c w_c S_c, a weighted sum of the classes' scatters.

        S_c is the scatter of the K_c rows of class c, such as clients' class means, about their mean. It has
        K_c − 1 degrees of freedom; they count as 0 if the class's weight w_c (``class_weight``, by default 1)
        is 0.
        """
        if class_weight is None:
            class_weight = jnp.ones_like(moments.total[:, 0])
        degrees = jnp.maximum(moments.num_rows - 1, 0).astype(class_weight.dtype)
        return cls(jnp.where(class_weight > 0, degrees, 0), class_weight)

    @property
    def expected(self) -> Float[Array, ""]:
        """The factor f in E[Σ̂] = f·Σ, see `Freedom`: Σ_j w_j ν_j; 1 if all degrees of freedom ν_j are 0."""
        expected = (self.weight * self.degrees).sum()
        return jnp.where(expected > 0, expected, 1)

    def scaled(self, scale: Scalar) -> Freedom:
        """Return the `Freedom` of ``scale`` · Σ̂: weights are scaled, degrees of freedom stay the same."""
        return Freedom(self.degrees, self.weight * scale)

    def joined(self, other: Freedom) -> Freedom:
        """Return the `Freedom` of the sum of two independent estimates."""
        return Freedom(
            jnp.concatenate([self.degrees, other.degrees]), jnp.concatenate([self.weight, other.weight])
        )

    @property
    def effective(self) -> Float[Array, ""]:
        """The degrees of freedom of the whole estimate Σ̂ = Σ_j w_j S_j: ν = (Σ_j w_j ν_j)² / Σ_j w_j² ν_j.

        This is Satterthwaite's approximation: a single scatter with ν degrees of freedom, scaled, has the
        mean and the variance of Σ̂. If all weights w_j are equal, ν = Σ_j ν_j.
        """
        # Divide by the largest weight, so that squares neither overflow nor vanish.
        largest = self.weight.max(initial=0)
        weight = self.weight / jnp.where(largest > 0, largest, 1)
        square = (jnp.square(weight) * self.degrees).sum()
        return divide_or_zero(jnp.square((weight * self.degrees).sum()), square)


def centred_rows(
    rows: Rows,
    moments: Moments,
    class_weight: Float[Array, " classes"] | None = None,
    centres: Float[Array, "classes dim"] | None = None,
) -> Float[Array, "rows dim"]:
    """Return √(w_c n_r) (x_r − μ_c) for rows of mean x_r and count n_r; 0 in padding rows.

    For the row's class c, w_c is the entry of ``class_weight``, by default 1, and μ_c the row of ``centres``,
    by default the class mean.
    """
    centres = moments.mean if centres is None else centres
    valid = valid_rows(rows, centres.shape[0])
    label = jnp.where(valid, row_labels(rows), 0)
    mean = row_means(rows, valid)
    # Centre before squaring: E[xxᵀ] − μμᵀ would lose digits if the mean is large against the spread.
    centred = deviations(mean, centres, jnp.where(valid, label, centres.shape[0]))
    weight = row_counts(rows, valid).astype(mean.dtype)
    if class_weight is not None:
        weight *= class_weight[label]
    # The inner `where` keeps the derivative of the root finite at 0.
    scale = jnp.where(weight > 0, jnp.sqrt(jnp.where(weight > 0, weight, 1)), 0)
    return centred * scale[:, None]


def gram_factor(rows: Rows, num_classes: int) -> Float[Array, "rows dim"]:
    """Return Y with YᵀY = Σ_r n_r x_r x_rᵀ, the Gram matrix of means x_r of n_r examples.

    Y has a row √n_r x_r for each mean; 0 in padding rows. If the rows are single examples, YᵀY is Fed3R's
    Gram matrix F Fᵀ, with F the features as columns.
    """
    valid = valid_rows(rows, num_classes)
    mean = row_means(rows, valid)
    return mean * jnp.sqrt(row_counts(rows, valid).astype(mean.dtype))[:, None]


def within_factor(
    rows: Rows, moments: Moments, *, weighting: Weighting = "per_class"
) -> Float[Array, "rows dim"]:
    """Compute the factor Y of the `within_scatter` YᵀY: scaled centred rows y_r = √(w_c n_r) (x_r − μ_c).

    Row r is the mean x_r of n_r examples of class c. The class has mean μ_c and weight w_c (`class_weights`).

    Args:
        rows: class rows, all of them or a chunk.
        moments: `first_moments` of *all* rows.
        weighting: see `within_scatter`.

    Returns:
        The factor; 0 in padding rows.
    """
    return centred_rows(rows, moments, class_weights(moments, weighting))


def within_scatter(
    rows: Rows, moments: Moments, *, weighting: Weighting = "per_class"
) -> Float[Array, "dim dim"]:
    r"""Estimate the within-class scatter from class rows, as one product YᵀY.

    The estimated matrix is Σ_c (N_c − 1) V_c, with V_c the covariance and N_c the number of examples of class
    c. Its K_c rows, of means x_r and counts n_r, have the scatter S_c = Σ_r n_r (x_r − μ_c)(x_r − μ_c)ᵀ, and
    E[S_c] = (K_c − 1) V_c:

    - ``"per_class"``: Σ_c (N_c − 1)/(K_c − 1) · S_c, FedCOF's. Unbiased for any covariances V_c, but the
      noisy S_c of a class with few rows has a large weight if the class has many examples. A class with
      K_c = 1 adds 0.
    - ``"pooled"``: (N − C)/Σ_c (K_c − 1) · Σ_c S_c, with N = Σ_c N_c and C classes. Each degree of freedom
      has the same weight. If classes share one covariance, as linear heads assume, this has the least
      variance. If they do not, it estimates another mixture of their covariances.

    On raw examples (`Rows.from_examples`) K_c = N_c, both weights are 1, and this is the exact
    within-class scatter.

    Args:
        rows: class rows, all of them or a chunk (the scatters of chunks add up).
        moments: `first_moments` of *all* rows.
        weighting: ``"per_class"`` or ``"pooled"``.

    Returns:
        The scatter. For a covariance divide it by Σ_c w_c (K_c − 1), with w_c the factor of S_c above; this
        is N − C if every class has at least two rows.

    Raises:
        ValueError: if ``weighting`` is unknown.

    Source: FedCOF (Goswami et al. 2024), eq. 5 and Prop. 2. The divisor is K_c − 1, with the K_c rows that
    hold class c. Eq. 5 prints K − 1, with the number of clients K, so its mean is (K_c − 1)/(K − 1) V_c.

    >>> import jax.numpy as jnp
    >>> from covfree.estimators.moments import first_moments
    >>> rows = Rows(jnp.array([[1.0], [3.0]]), jnp.array([5, 5]), jnp.array([0, 0]))
    >>> within_scatter(rows, first_moments(rows, 1))
    Array([[90.]], dtype=float32)
    """
    factor = within_factor(rows, moments, weighting=weighting)
    return symmetric_product(factor)


def _between_factor(moments: Moments) -> Float[Array, "classes dim"]:
    return centred_means(moments) * jnp.sqrt(moments.count.astype(moments.total.dtype))[:, None]


def between_scatter(moments: Moments) -> Float[Array, "dim dim"]:
    """Compute the exact scatter between classes, Σ_c N_c (μ_c − μ_g)(μ_c − μ_g)ᵀ, from the first moments.

    Class c has N_c examples of mean μ_c, and μ_g is the mean of all examples.

    >>> import jax.numpy as jnp
    >>> from covfree.estimators.moments import first_moments
    >>> rows = Rows(jnp.array([[1.0], [3.0]]), jnp.array([5, 5]), jnp.array([0, 1]))
    >>> between_scatter(first_moments(rows, 2))
    Array([[10.]], dtype=float32)
    """
    factor = _between_factor(moments)
    return symmetric_product(factor)


def total_gram(
    within: Float[AnyArray, "dim dim"] | Scatter, moments: Moments, *, scatter: ScatterChoice = "both"
) -> Scatter:
    """Add up the terms of the examples' Gram matrix F Fᵀ that ``scatter`` selects.

    F has the features as columns. F Fᵀ = W + Σ_c N_c (μ_c − μ_g)(μ_c − μ_g)ᵀ + N μ_g μ_gᵀ: the scatter W
    within classes, the scatter between classes, and the term of the grand mean μ_g. Class c has N_c of the N
    examples and mean μ_c. The last term is always kept, as ridge heads do not centre the features.

    Args:
        within: the within-class scatter, exact or estimated. Its multiple of I (`Scatter.shift`) is
            regularisation and always kept.
        moments: `first_moments` of all rows.
        scatter: ``"both"`` for F Fᵀ itself; ``"within"`` without the scatter between classes, FedCOF's
            choice; ``"between"`` without the scatter within classes.

    Returns:
        The Gram matrix, stored as a factor if ``within`` is a factor and the result has fewer than dim − 1
        rows.

    Raises:
        ValueError: if ``scatter`` is unknown.

    Source: FedCOF (Goswami et al. 2024), Prop. 2; the three choices are those of its Table 7.
    """
    check_choice("scatter", scatter, get_args(ScatterChoice))
    within = as_scatter(within)
    if scatter == "between":
        nothing = jnp.zeros((1, within.dim), within.value.dtype)
        within = Scatter.from_factor(nothing).shifted(within.shift)
    parts = [jnp.sqrt(moments.num_examples) * moments.grand_mean[None, :]]
    if scatter != "within":
        parts.append(_between_factor(moments))
    return within.with_factor(jnp.concatenate(parts))
