"""The ridge regression head."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.linalg import Scatter, as_scatter, factorise, solve
from covfree.core.types import AnyArray, LinearHead, Moments, Scalar
from covfree.heads.columns import fitting, head_for_present, resolved_sums, unit_columns
from covfree.statistics.gram import TargetSums

# `_with_offset` takes a Schur complement for rounding error if it is below this multiple of eps·(N + λ), with
# N examples and the ridge λ.
_ROUNDING = 32


def ridge_head(
    gram: Float[AnyArray, "dim dim"] | Scatter,
    moments: Moments,
    *,
    ridge: Scalar = 0.0,
    unit: bool = True,
    bias: bool = False,
) -> LinearHead:
    """Make a classifier by ridge regression to one-hot labels: W = (G + λI)⁻¹ B, columns scaled to norm 1.

    Args:
        gram: G, such as Fed3R's F Fᵀ, or `total_gram` of a within-class scatter, with or without the scatter
            between classes (FedCOF leaves it out).
        moments: `first_moments` of all rows; B = [N_1 μ_1 … N_C μ_C] has the class sums as columns.
        ridge: λ, at least 0. If G + λI is singular, the solution of minimum norm is taken.
        unit: whether to scale columns to norm 1, as Fed3R and FedCOF do; static. Unscaled columns favour
            classes of many examples. With norm 1, the column of a class whose features sum to 0, within
            rounding, stays 0.
        bias: whether a constant 1 is appended to the features, as in Fed3R's own code; static. Then (G + λI)
            W + s b = B and sᵀ W + (N + λ) b = (N_1 … N_C), with b a row, s = Σ_c N_c μ_c and N = Σ_c N_c. If
            ``unit``, each b_c is divided by the norm of its column of W. In N + λ, λ is ``ridge`` plus the
            multiple of I in G (`Scatter.shift`).

    Returns:
        The head; its bias is 0 if ``bias`` is False. Absent classes are marked.

    Raises:
        ValueError: if G and the moments differ in size.

    Source: Fed3R (Fanì et al. 2024), eq. 4 and Alg. 1; FedCOF (Goswami et al. 2024), Alg. 1.

    >>> import jax.numpy as jnp
    >>> moments = Moments(jnp.array([1, 1]), jnp.array([1, 1]), jnp.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> ridge_head(jnp.diag(jnp.array([4.0, 9.0])), moments, ridge=1.0).weight
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    system = fitting("gram", gram, moments).shifted(ridge)
    factors = factorise(system)
    sums = (resolved_sums(moments) if unit else moments.total).T
    if not bias:
        return ridge_head_of(solve(factors, sums), moments, unit=unit)
    counts, corner = moments.count.astype(sums.dtype), moments.num_examples + system.shift
    weight, offset = _with_offset(factors, sums, sums.sum(1), counts, corner)
    if unit:
        scaled = unit_columns(weight)
        # Compute ‖w‖ as wᵀ(w/‖w‖), without squares, which may vanish.
        norm = (weight * scaled).sum(0)
        weight, offset = scaled, offset / jnp.where(norm > 0, norm, 1)
    return head_for_present(weight, offset, moments.present)


def regression_head(sums: TargetSums, *, ridge: Scalar = 0.0, bias: bool = True) -> LinearHead:
    """Make a head by ridge regression; its scores Wᵀx + b are predictions of the targets.

    (W, b) minimises Σ w ‖y − Wᵀx − b‖² + λ (‖W‖² + ‖b‖²) over examples of weight w with features x and
    targets y; so does `ridge_head` for one-hot targets with ``bias=True, unit=False``. The predictions
    estimate the mean of the targets given the features. With soft labels, predict the class of the largest
    score; with several labels per example, predict the labels with scores above 1/2.

    Args:
        sums: `target_sums`, added up over all clients. As features are not centred, rounding errors grow by a
            factor of 1 + m²/s² for features of mean m and standard deviation s.
        ridge: λ, at least 0. If the system is singular, W is the solution of minimum norm.
        bias: whether there is an intercept b; static.

    Returns:
        The head, with a column for each target.

    Source: Fed3R (Fanì et al. 2024), eq. 2 to 4, without the scaling of columns.

    >>> import covfree, jax.numpy as jnp
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> head = regression_head(covfree.target_sums(x, 3 * x + 1))
    >>> head(jnp.array([[5.0]])).round(3).tolist()
    [[16.0]]
    """
    system = as_scatter(sums.gram).shifted(ridge)
    factors = factorise(system)
    if not bias:
        weight = solve(factors, sums.cross)
        return LinearHead(weight, jnp.zeros_like(weight[0]))
    corner = sums.weight + system.shift
    return LinearHead(*_with_offset(factors, sums.cross, sums.feature_sum, sums.target_sum, corner))


def _with_offset(
    factors: Any, cross: Array, feature_sum: Array, target_sum: Array, corner: Array
) -> tuple[Array, Array]:
    """Solve a ridge regression with a bias: return W and b with (G + λI) W + s b = B, sᵀ W + (N + λ) b = t.

    Args:
        factors: ``factorise(G + λI)``, with G the Gram matrix and λ the ridge.
        cross: B = Σ x yᵀ over features x and targets y; with one-hot targets each class's sum of features.
        feature_sum: s = Σ x.
        target_sum: t = Σ y; with one-hot targets the number of examples of each class.
        corner: N + λ, for N examples, or examples of total weight N.
    """
    total = feature_sum[:, None]
    solved = solve(factors, jnp.concatenate([cross, total], axis=1))
    weight, direction = solved[:, :-1], solved[:, -1:]
    # ``rest`` is the Schur complement N + λ − sᵀ(G + λI)⁻¹s. It is above 0, unless λ is 0 and some
    # combination of the features is constant. Then W contains the intercept, and b is 0.
    rest = corner - (total * direction).sum()
    resolved = rest > _ROUNDING * jnp.finfo(cross.dtype).eps * corner
    offset = (target_sum - (total * weight).sum(0)) / jnp.where(resolved, rest, 1)
    offset = jnp.where(resolved, offset, 0)
    return weight - direction * offset[None, :], offset


def ridge_head_of(weight: Float[Array, "dim classes"], moments: Moments, *, unit: bool = True) -> LinearHead:
    """Make the head of `ridge_head`, without bias, from the weights that solve the ridge regression.

    They are ``weight`` = (G + λI)⁻¹ B, in the symbols of `ridge_head`. With ``unit``, each class's column is
    scaled to norm 1. Classes without an example in ``moments`` are marked absent.
    """
    if unit:
        weight = unit_columns(weight)
    return head_for_present(weight, jnp.zeros_like(weight[0]), moments.present)
