"""Gaussian classifiers from shared statistics: FedCGS, and methods with a covariance for each class."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice, check_strength
from covfree.core.linalg import Scatter
from covfree.core.types import LinearHead, Message, Moments, Rows, Scalar
from covfree.estimators import Freedom
from covfree.estimators.automatic import as_matrix_shrinkage
from covfree.estimators.class_scatter import class_scatters, class_squares, scatter_about
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads import lda_head
from covfree.heads.gaussian import GaussianHead, gaussian_head, head_of_roots, roots_of
from covfree.methods.fed3r import gram_merge
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round, bound, head_of_moments
from covfree.methods.summaries import send_class_means
from covfree.methods.summary import class_covariance_matrices, gram_matrices

# A feature is taken to vary if its deviation exceeds this multiple of its own rounding.
_ROUNDING = 16


def _total_terms(params: Scalar, sent: tuple[Moments], rows: Rows, num_classes: int) -> Factor:
    (moments,) = sent
    centre = jnp.broadcast_to(moments.grand_mean[None, :], moments.total.shape)
    return Factor(centred_rows(rows, moments, centres=centre))


def _total_system(gamma: Scalar, moments: Moments, scatter: Scatter) -> Scatter:
    return scatter.scaled(1 / jnp.maximum(moments.num_examples - 1, 1)).shifted(gamma)


def _total_merge(gamma: Scalar, message: Message, num_classes: int) -> tuple[Moments, Scatter]:
    """Return the class moments and the total scatter, from the clients' merged message.

    The scatter is the Gram matrix minus N μ_g μ_gᵀ, for N examples of mean μ_g.
    """
    ((moments, gram),) = gram_merge(gamma, message, num_classes)
    mean, count = moments.grand_mean[None, :], moments.num_examples[None]
    return moments, Scatter.from_matrix(scatter_about(mean, count, gram.value))


def fedcgs(shrinkage: Scalar = 0.0) -> Method[LinearHead]:
    """Make FedCGS: a Gaussian head with the total covariance, that of all features regardless of class.

    Clients send class sums, counts and the Gram matrix F Fᵀ of their features (the columns of F), as in
    Fed3R. Let B be the sum of these matrices. There are N examples of mean μ_g, a share π_c of them in class
    c, of mean μ_c. The server computes Σ = (B − N μ_g μ_gᵀ)/(N − 1), and for each class the weights w_c =
    Σ⁻¹ μ_c and the bias b_c = log π_c − ½ μ_cᵀ Σ⁻¹ μ_c. Bytes up: 4·(K·d² + M·d) for K clients, M
    client-class pairs and d features.

    Σ includes the scatter between classes. With the within-class covariance instead, the same formulas are
    linear discriminant analysis (`fedcof`, `fedcof_oracle`).

    Args:
        shrinkage: γ, adds γI to Σ; at least 0. The paper has none.

    Raises:
        ValueError: if ``shrinkage`` is negative or not finite.

    Source: Guan, Zhou and Gu (2025), eq. 10. Its eq. 11 prints Σ in the bias, where eq. 10 and Bayes' rule
    have Σ⁻¹.
    """
    check_strength("shrinkage", shrinkage)
    rounds = CLASS_SUMS, Round(_total_terms, fixed=True)
    return Method(
        shrinkage,
        "fedcgs",
        gram_matrices(_total_merge),
        rounds,
        _total_system,
        bound(head_of_moments, function=lda_head),
    )


class _Numbers(NamedTuple):
    """Hyperparameters of `qda`, which ``vmap`` may sweep.

    Attributes:
        shrinkage: the shrinkage rule of the covariance of all classes together.
        degrees: κ/d, the weight of that covariance in the covariance of each class.
    """

    shrinkage: Shrinkage
    degrees: Scalar


def _scatters_terms(numbers: Any, sent: tuple[Moments], rows: Rows, num_classes: int) -> jax.Array:
    """Compute the scatter of each class, [C, d, d], about its mean; ``sent[0]`` has the class means."""
    return class_scatters(rows, sent[0])


def _squares_terms(numbers: Any, sent: tuple[Moments], rows: Rows, num_classes: int) -> jax.Array:
    return class_squares(rows, sent[0])


CLASS_SCATTERS, _CLASS_SQUARES = Round(_scatters_terms, fixed=True), Round(_squares_terms, fixed=True)


def _examples_terms(numbers: Any, sent: tuple[()], rows: Rows, num_classes: int) -> Moments:
    """Compute each class's number of examples and sum of features, as `Moments`, from clients' class means.

    The result's ``num_rows`` is the number of examples, not of means: clients also send variances, so each
    example counts as an observation.
    """
    return example_moments(rows, num_classes)


def scatters_merge(numbers: Any, message: Message, num_classes: int) -> tuple[Moments, jax.Array]:
    """Compute each class's moments, and its scatter matrix, from the messages of all clients.

    ``message`` is all these messages merged into one: means and covariances of every client's classes. So the
    results are exactly those of the clients' examples together (CCVR eq. 3).

    Returns:
        The moments, and the scatters [classes, dim, dim].
    """
    moments = example_moments(message.rows, num_classes)
    return moments, class_scatters(message.rows, moments)


def _drawn_together(scatter: jax.Array, pooled: jax.Array, number: jax.Array, degrees: Scalar) -> jax.Array:
    """Shrink a class's covariance towards that of all classes: return (S + κΣ̃)/(K − 1 + κ).

    S (``scatter``) is the scatter of the class's K examples or means (``number``), Σ̃ (``pooled``) the shrunk
    covariance of all classes together, and κ (``degrees``) its weight. Instead of matrices, S and Σ̃ may be
    their diagonals.
    """
    own = jnp.maximum(number - 1, 0).astype(scatter.dtype)
    whole = own + degrees
    return (scatter + degrees * pooled) / jnp.where(whole > 0, whole, 1)


def pooled_covariance(shrinkage: Shrinkage, moments: Moments, scatters: jax.Array) -> Scatter:
    """Pool the scatters of all classes into one covariance, and shrink it."""
    freedom = Freedom.of_classes(moments)
    covariance = Scatter.from_matrix(scatters.sum(0) / freedom.expected)
    return shrinkage.apply(covariance, moments, freedom.scaled(1 / freedom.expected), None)


def _least_variance(moments: Moments, pooled: jax.Array) -> jax.Array:
    """Return a lower bound for the variance of each feature: the square of its values' rounding errors.

    The bound is 1 if a feature is 0 in all examples; else it is at least the smallest normal float.
    """
    # Derivatives treat the bound as a constant.
    size = jax.lax.stop_gradient(jnp.square(moments.mean).max(0) + pooled)
    info = jnp.finfo(pooled.dtype)
    smallest = jnp.maximum(jnp.square(_ROUNDING * info.eps) * size, info.tiny)
    return jnp.where(size > 0, smallest, 1)


def _quadratic_head(numbers: _Numbers, system: None, moments: Moments, scatters: jax.Array) -> GaussianHead:
    pooled = pooled_covariance(numbers.shrinkage, moments, scatters).dense()
    dim = pooled.shape[0]
    # Bound variances from below: a feature that never varies would make the covariance singular.
    diagonal = jnp.arange(dim)
    least = _least_variance(moments, jnp.diagonal(pooled))

    def covariance(of_class: tuple[jax.Array, jax.Array]) -> jax.Array:
        scatter, number = of_class
        drawn = _drawn_together(scatter, pooled, number, numbers.degrees * dim)
        return drawn.at[diagonal, diagonal].max(least)

    return head_of_roots(roots_of(covariance, (scatters, moments.num_rows), moments), moments)


def qda(
    shrinkage: Scalar | str | Shrinkage = "auto",
    prior: Scalar = 1.0,
    *,
    covariance: Literal["sent", "means"] = "sent",
) -> Method[GaussianHead]:
    """Make quadratic discriminant analysis: a Gaussian head with a shrunk covariance for each class.

    Σ̃_c = (S_c + κ Σ̃)/(ν_c + κ), where S_c is the class's scatter with ν_c degrees of freedom, Σ̃ the shrunk
    covariance of all classes together, and κ = prior·d for d features. Σ̃_c is the posterior mean of the
    covariance of class c under a prior about Σ̃ with the weight of κ observations. A class with few examples
    has nearly the common covariance. For κ → ∞ the head is linear discriminant analysis. A feature that never
    varies is given the variance of its rounding.

    Takes C·d² memory at the server for C classes. Bytes up: 4·M·(d² + d) for M client-class pairs, as
    FedCOF's oracle; from means alone 4·M·d.

    Args:
        shrinkage: shrinkage of the common covariance, see `fedcof`; not a rule that needs the rows
            themselves, such as `ledoit_wolf`.
        prior: κ/d; must be above 0 if a class has fewer examples than features.
        covariance: ``"sent"`` if clients send a covariance with each class mean; ``"means"`` if it is
            estimated from the scatter of the K_c means, as in FedCOF, with ν_c = K_c − 1.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: Friedman (1989), regularised discriminant analysis, with the weights of an inverse-Wishart prior.
    """
    rule = as_matrix_shrinkage(shrinkage)
    check_strength("prior", prior)
    check_choice("covariance", covariance, ("sent", "means"))
    numbers = _Numbers(rule, prior)
    rounds = CLASS_SUMS, CLASS_SCATTERS
    if covariance == "means":
        return Method(numbers, "qda-means", send_class_means(), rounds, None, _quadratic_head)
    summary = class_covariance_matrices(scatters_merge)
    return Method(numbers, "qda", summary, rounds, None, _quadratic_head)


def _naive_head(prior: Scalar, system: None, moments: Moments, squares: jax.Array) -> GaussianHead:
    pooled = squares.sum(0) / jnp.maximum(moments.spread_degrees, 1)
    # Without a floor, a feature that never varies would dominate the scores.
    floor = _least_variance(moments, pooled)
    pooled = jnp.maximum(pooled, floor)
    drawn = jax.vmap(_drawn_together, (0, None, 0, None))(squares, pooled, moments.num_rows, prior)
    return gaussian_head(jnp.maximum(drawn, floor[None, :]), moments)


def naive_bayes(
    prior: Scalar = 1.0, *, covariance: Literal["sent", "means"] = "sent"
) -> Method[GaussianHead]:
    """Make Gaussian naive Bayes: every class has its own variance of each feature, and no correlations.

    v_c = (s_c + κ v)/(ν_c + κ), where s_c is the diagonal of the class's scatter with ν_c degrees of freedom,
    v the variances of all classes pooled, and κ = prior. The variance of feature j, of mean μ_cj in class c,
    is at least that of its rounding, (16·eps)²(v_j + max_c μ_cj²), so units do not matter. Bytes up: 8·M·d
    for M client-class pairs and d features; from means alone 4·M·d.

    Args:
        prior: κ, how many observations the common variances count for. Must be above 0 if a class may have a
            single example.
        covariance: see `qda`.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 6.6.3. With κ = 0
    equivalent to scikit-learn's ``GaussianNB``, but for the divisor N_c − 1.
    """
    check_strength("prior", prior)
    check_choice("covariance", covariance, ("sent", "means"))
    if covariance == "means":
        rounds = (CLASS_SUMS, _CLASS_SQUARES)
        return Method(prior, "naive-bayes-means", send_class_means(), rounds, None, _naive_head)
    summary = send_class_means(covariance="diagonal")
    rounds = Round(_examples_terms, fixed=True), _CLASS_SQUARES
    return Method(prior, "naive-bayes", summary, rounds, None, _naive_head)
