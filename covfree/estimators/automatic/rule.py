"""Shrinkage that needs no tuning: the error of linear discriminant analysis, foretold from sums alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from covfree.estimators.automatic.discriminant import Basis, foretold_error
from covfree.estimators.automatic.offsets import ClientSums, client_sums, no_offsets, offsets_of
from covfree.estimators.moments import centred_means
from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage_rule import Shrinkage, mean_variance
from covfree.linalg import Scatter
from covfree.types import Moments

# Candidates γ/t, a quarter of a decade apart: from "none" to "nearest mean", whatever the features' scale.
_CANDIDATES = np.logspace(-4, 2, 25)
# How far (in decades) γ and s may be from what is expected of them. Candidates of s are as far apart.
_DECADES = 0.4
_SCALE_DECADES = 0.2
_SCALES = 10 ** (_SCALE_DECADES * np.arange(-2, 3))


def automatic() -> Shrinkage:
    """(Σ̂ + γI) s/(1 + γ/t) with γ and s chosen from the rows' sums alone: no tuning, no data, any scale.

    t = tr(Σ̂)/d, so that with s = 1 the trace stays what it is. γ makes up for small eigenvalues that few rows
    make too small; s is how much class frequencies count beside features. For 25 candidates γ and 5 of s the
    error of linear discriminant analysis is foretold from class means and Σ̂. The choice is a mean of
    candidates, about what is expected of them (`pseudo_observations`), and the more by the error the more
    rows there are. docs/derivation.md has the formulas, in section 10.

    Clients may each have an offset of their own in all features, and the next example is from a client
    unknown. Where class means are sent and it is known whose they are, the offsets are told from the spread
    within clients, or, where too little tells, their size is estimated. Of more than 256 clients a fair
    sample stands for all. Where nobody is named, as under secure aggregation, rows are taken to be
    independent and s = 1.

    Derivatives take γ and s as given. Costs an ``eigh`` of the covariance (or of its dual). Needs totals
    only, no pass over the rows. Where nothing was observed (ν = 0 or Σ̂ = 0), the mean variance of the class
    means, or 1, is added: the head is then a nearest-mean classifier.

    Source: the error estimate extends that of Zollanvari and Dougherty (2015) to weighted classes, many
    rivals and clients' offsets. The choice from it is covfree's.
    """
    return Shrinkage(0.0, _automatic, _by_client)


def _by_client(factor, rows, moments, class_weight):
    if rows.client is None or class_weight is None:
        return None
    return client_sums(factor, rows, moments, class_weight)


@jax.jit
def _automatic(
    strength: jax.Array,
    covariance: Scatter,
    moments: Moments,
    freedom: Freedom,
    sums: ClientSums | None,
) -> tuple[jax.Array, jax.Array]:
    # It hangs on a maximum over candidates, and eigenvectors of equal eigenvalues have no derivative.
    covariance, moments, freedom, sums = jax.lax.stop_gradient((covariance, moments, freedom, sums))
    level, degrees = mean_variance(covariance), freedom.degrees.sum()
    seen = (level > 0) & (degrees > 0)
    # In units of the mean variance everything is of order one, and candidates are plain numbers.
    unit = jnp.where(seen, level, 1)
    if sums is None:
        offsets, scales = no_offsets(moments, freedom), jnp.ones(1, level.dtype)
    else:
        offsets = offsets_of(sums, moments, freedom, level)
        scales = jnp.where(offsets.known, jnp.asarray(_SCALES, level.dtype), 1)
    basis = Basis.of(covariance.scaled(1 / unit), moments, offsets, unit)
    dtype = basis.values.dtype
    candidates = jnp.asarray(_CANDIDATES, dtype)

    error = foretold_error(basis, moments, freedom, offsets, candidates, scales)
    decades, scale_decades = jnp.log10(candidates)[:, None], jnp.log10(scales)[None, :]
    variance = jnp.clip(offsets.free * (1 + offsets.ratio), candidates[0], candidates[-1])
    expected = variance * jnp.minimum(1, covariance.dim / jnp.maximum(degrees, 1))
    away = (decades - jnp.log10(expected)) / _DECADES, scale_decades / _SCALE_DECADES
    mistakes = degrees * (error - error.min())
    doubt = mistakes + 0.5 * (jnp.square(away[0]) + jnp.square(away[1]))
    belief = jnp.exp(doubt.min() - doubt)
    total = belief.sum()
    chosen, scale = (jnp.power(10.0, (belief * x).sum() / total) for x in (decades, scale_decades))

    count = moments.count.astype(dtype)
    between = (count * jnp.square(centred_means(moments)).mean(1)).sum() / jnp.maximum(count.sum(), 1)
    unseen = jnp.where(between > 0, between, 1)
    scale = scale / (1 + chosen)
    return jnp.where(seen, scale, 1), jnp.where(seen, scale * chosen * unit, unseen)
