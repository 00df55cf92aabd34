"""Choose the shrinkage from predictions of linear discriminant analysis's test error (`automatic`)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from covfree.core.checks import check_strength
from covfree.core.compiling import jit
from covfree.core.linalg import Scatter
from covfree.core.types import Moments, Scalar
from covfree.estimators.automatic.discriminant import Basis, predicted_margins
from covfree.estimators.automatic.offsets import ClientSums, client_sums, no_offsets, offsets_of
from covfree.estimators.automatic.predicted import Margins, predicted_error
from covfree.estimators.moments import centred_means
from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage import Shrinkage, diagonal_loading, mean_variance, relative

# Candidates of γ/t, with t = tr(Σ̂)/d, a quarter of a decade apart: from nearly no shrinkage to nearly the
# nearest-mean head.
_CANDIDATES = np.logspace(-4, 2, 25)
# `automatic` gives log γ and log s (s is its other factor) normal priors with these standard deviations, in
# decades. The second is also the step between candidates of s.
_DECADES = 0.4
_SCALE_DECADES = 0.2
_SCALES = 10 ** (_SCALE_DECADES * np.arange(-2, 3))

# Rules without an argument. If a user passes such a name as a string, the error message suggests the call.
_PLAIN = ("empirical_bayes", "ledoit_wolf", "oas", "pseudo_observations")


def automatic() -> Shrinkage:
    """Shrink to (Σ̂ + γI) s/(1 + γ/t), t = tr(Σ̂)/d; γ and s are chosen from sums over rows, without tuning.

    γ raises the small eigenvalues, which an estimate from few rows makes too small. s scales the matrix, and
    so sets the weight of the features against class frequencies; s = 1 preserves the trace. For each pair of
    25 candidates γ and 5 candidates s, the test error of linear discriminant analysis is predicted from class
    means and Σ̂. The rule takes a weighted geometric mean of the candidates. With few rows, the weights
    centre on s = 1 and on the γ of `pseudo_observations`, whose t is here the variance of single examples,
    clients' offsets included. The more rows there are, the more the predicted error counts. Formulas:
    docs/derivation.md, section 10.

    The rule allows for client shift: each client's features may have an offset, and test examples come from
    unseen clients. If rows name their clients, the offsets are separated from the spread within clients. With
    too little data for that, or with more than 256 clients, of which a sample of 256 is used, only the size
    of the offsets is estimated. If rows name no clients, as under secure aggregation, rows are taken as
    independent and s = 1.

    Derivatives treat γ and s as constants. The rule costs one ``eigh`` of Σ̂ = YᵀY or of a smaller Y Yᵀ, one
    of size 256 if rows name clients, and no further pass over the rows. If no spread was observed (no degrees
    of freedom, or Σ̂ = 0), the rule adds I times the mean variance of the class means, or I if this is 0, so
    that the head is a nearest-mean classifier.

    Source: the error estimate extends the estimate of Zollanvari and Dougherty (2015) to weighted classes,
    many rivals and clients' offsets. The choice of γ and s from it is covfree's.
    """
    return Shrinkage(0.0, _automatic, client_sums)


def is_automatic(node: Any) -> bool:
    """Return whether a node of a pytree is the rule that `automatic` makes."""
    return isinstance(node, Shrinkage) and node.rule is _automatic


def as_shrinkage(shrinkage: Scalar | str | Shrinkage) -> Shrinkage:
    """Convert an argument ``shrinkage`` to a rule; a rule is returned as it is.

    A number γ becomes the rule that adds γI, ``"auto"`` becomes `automatic`, and a share such as ``"10%"``
    becomes `relative`.
    """
    if isinstance(shrinkage, Shrinkage):
        return shrinkage
    if isinstance(shrinkage, str):
        return automatic() if shrinkage == "auto" else _share(shrinkage)
    if callable(shrinkage):
        name = getattr(shrinkage, "__name__", repr(shrinkage))
        raise TypeError(f"shrinkage: expected a number, 'auto' or a rule, got the function {name}; call it")
    return diagonal_loading(check_strength("shrinkage", shrinkage))


def as_matrix_shrinkage(shrinkage: Scalar | str | Shrinkage) -> Shrinkage:
    """Return the rule of `as_shrinkage`, for methods whose clients send matrices, such as covariances.

    Raise ValueError if the rule needs the rows behind the matrices, which their server does not get.
    """
    rule = as_shrinkage(shrinkage)
    if rule.needs_rows:
        raise ValueError(
            "shrinkage: expected a rule that needs only covariances, as clients send no rows; got one that "
            "needs the rows themselves, such as ledoit_wolf(); oas() needs only covariances"
        )
    return rule


def _share(text: str) -> Shrinkage:
    """Parse a share of the mean variance, such as "10%"; return the rule `relative` for this share."""
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else None
    except ValueError:
        share = None
    if share is not None:
        return relative(check_strength("shrinkage", share))
    hint = f"; the rule is covfree.{text}()" if text in _PLAIN else ""
    raise ValueError(
        "shrinkage: expected a number, a share of the mean variance such as '10%', 'auto' or a rule, "
        f"got {text!r}{hint}"
    )


def _automatic(
    strength: jax.Array,
    covariance: Scatter,
    moments: Moments,
    freedom: Freedom,
    sums: ClientSums | None,
) -> tuple[jax.Array, jax.Array]:
    # Keep this a plain function: methods hold it as static data, and a jitted one cannot be copied or
    # pickled.
    case = _case(covariance, moments, freedom, sums)
    return _choice(case, predicted_error(case.margins, case.candidates, case.scales))


class _Case(NamedTuple):
    """What `automatic` needs to choose γ and s, with which it replaces Σ̂ by (Σ̂ + γI) s/(1 + γ/t).

    t = tr(Σ̂)/d is the mean variance of the d features.

    Attributes:
        margins: for each candidate γ, the predicted mean and variance of LDA's margins: an example's score of
            its own class minus the score of another class.
        candidates: the values of γ of which a weighted mean is taken, in units of t.
        scales: the values of s of which a weighted mean is taken.
        expected: the most probable γ before the margins are known, in units of t.
        degrees: ν, the degrees of freedom of Σ̂.
        unit: t; 1 if ``seen`` is False.
        unseen: b in the result Σ̂ + b·I if ``seen`` is False.
        seen: whether the rows show variation within classes: ν and tr Σ̂ are above 0.
    """

    margins: Margins
    candidates: Float[Array, " candidates"]
    scales: Float[Array, " scales"]
    expected: Float[Array, ""]
    degrees: Float[Array, ""]
    unit: Float[Array, ""]
    unseen: Float[Array, ""]
    seen: Bool[Array, ""]


@partial(jit, plain=True)
def _case(covariance: Scatter, moments: Moments, freedom: Freedom, sums: ClientSums | None) -> _Case:
    # Stop derivatives: eigenvectors of equal eigenvalues have none, and `offsets_of` picks from a grid.
    covariance, moments, freedom, sums = jax.lax.stop_gradient((covariance, moments, freedom, sums))
    level, degrees = mean_variance(covariance), freedom.degrees.sum()
    seen = (level > 0) & (degrees > 0)
    # Divide by the mean variance, so that all numbers are of order one.
    unit = jnp.where(seen, level, 1)
    if sums is None:
        offsets, scales = no_offsets(moments, freedom), jnp.ones(1, level.dtype)
    else:
        offsets = offsets_of(sums, moments, freedom, level)
        scales = jnp.where(offsets.known, jnp.asarray(_SCALES, level.dtype), 1)
    basis = Basis.of(covariance.scaled(1 / unit), moments, offsets, unit)
    dtype = basis.values.dtype
    candidates = jnp.asarray(_CANDIDATES, dtype)
    margins = predicted_margins(basis, moments, freedom, offsets, candidates)
    variance = jnp.clip(offsets.free * (1 + offsets.ratio), candidates[0], candidates[-1])
    expected = variance * jnp.minimum(1, covariance.dim / jnp.maximum(degrees, 1))
    count = moments.count.astype(dtype)
    between = (count * jnp.square(centred_means(moments)).mean(1)).sum() / jnp.maximum(count.sum(), 1)
    unseen = jnp.where(between > 0, between, 1)
    return _Case(margins, candidates, scales, expected, degrees, unit, unseen, seen)


@partial(jit, plain=True)
def _choice(case: _Case, error: Float[Array, "candidates scales"]) -> tuple[jax.Array, jax.Array]:
    decades, scale_decades = jnp.log10(case.candidates)[:, None], jnp.log10(case.scales)[None, :]
    away = (decades - jnp.log10(case.expected)) / _DECADES, scale_decades / _SCALE_DECADES
    mistakes = case.degrees * (error - error.min())
    doubt = mistakes + 0.5 * (jnp.square(away[0]) + jnp.square(away[1]))
    belief = jnp.exp(doubt.min() - doubt)
    total = belief.sum()
    chosen, scale = (jnp.power(10.0, (belief * x).sum() / total) for x in (decades, scale_decades))
    scale = scale / (1 + chosen)
    return jnp.where(case.seen, scale, 1), jnp.where(case.seen, scale * chosen * case.unit, case.unseen)
