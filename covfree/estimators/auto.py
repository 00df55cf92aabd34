"""Shrinkage that needs no tuning: the error of linear discriminant analysis, foretold from sums alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from covfree.estimators.discriminant import Basis, foretold_error
from covfree.estimators.offsets import ClientSums, Offsets, client_sums, no_offsets, offsets_of
from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage import Shrinkage, mean_variance
from covfree.linalg import Scatter
from covfree.types import Moments

# Candidates γ/t, a quarter of a decade apart: from "none" to "nearest mean", whatever the features' scale.
_CANDIDATES = np.logspace(-4, 2, 25)
# The weight of a foretold mistake, and how far (in decades) γ may be from what was expected of it. Halving or
# doubling either moves the mean loss against the best γ in hindsight by about 0.05 points.
_MISTAKE_WEIGHT = 2.0
_DECADES = 0.4


def automatic() -> Shrinkage:
    r"""(Σ̂ + γI)/(1 + γ/t) with γ chosen from the rows' sums alone: no tuning, no data, any scale.

    t = tr(Σ̂)/d, so that the trace stays what it is: a covariance that is too large as a whole would let the
    class frequencies outweigh the features. Two things can be said of a candidate γ without an example.

    *What it does to the classifier.* Let H = (Σ̂ + γI)⁻¹. Under linear discriminant analysis, an example
    of class i beats class j by a margin of mean ½ (μ_i − μ_j)ᵀH(μ_i − μ_j) − T/N_i + log(π_i/π_j)/(1 + γ/t)
    and variance (1 + 1/N_i) (μ_i − μ_j)ᵀHΣH(μ_i − μ_j). T = tr(HΣ) takes off what the class mean owes to its
    own N_i examples, and 1/N_i adds what is not known of it. Σ is unknown, and Σ̂ looks too kind in the
    directions that H prefers; with Σ̂ = Σ_c w_c S_c, random matrix theory gives the deterministic equivalents

        Σ_c (K_c − 1) w_c T / (1 + w_c T) = tr(HΣ̂),    HΣH = HΣ̂H / Σ_c (K_c − 1) w_c / (1 + w_c T)²

    (for equal weights 1/ν, T = tr(HΣ̂)/(1 − κ) and HΣ̂H/(1 − κ)² with κ = tr(HΣ̂)/ν). The error E(γ) is the
    mean over classes, weighted by π_i, of the chance to lose to any rival; the margins against two rivals are
    taken to correlate by ½, as they do where class means are equally far apart.

    *What is expected of it.* Foretold from few rows the error is itself uncertain, and with few classes it is
    flat. γ is therefore looked for about γ* = t·min(1, d/ν), with ν = Σ_c (K_c − 1): to the ν observations of
    Σ come as many of a covariance t·I as there are dimensions, but no more than were made. Of t only what is
    free of clients' offsets (below) counts.

    The mean of log γ is taken under weights exp(−2 E(γ) Σ_c (K_c − 1) − ½ (log₁₀(γ/γ*)/0.4)²), 25 candidates
    from 10⁻⁴ t to 10² t: expected mistakes among as many examples as there are degrees of freedom, against
    what was expected.

    *Clients that differ.* Where class means are sent and it is known whose they are, each client k may have
    an offset δ_k of its own, of covariance Δ, in all its features, and the next example is from a client
    unknown. `offsets_of` splits Σ̂ into what is free of offsets, to which the above applies, and directions
    z_j = √λ_j δ_j + noise of covariance cΣ. As each z_j is in Σ̂ too, a_j = 1/(1 + cT + λ_j T_Δ) of it is
    seen through H, and (1 + cT) a_j of δ_j, with T_Δ = tr(HΔ) from

        Σ_j (1 − a_j) = Σ_j z_jᵀHz_j,    Σ_j a_j² (λ_j HΔH + c HΣH) = Σ_j [Hz_jz_jᵀH − λ_j (T_Δ a_j)² P_j].

    P_j takes off what δ_j, as part of the class means too, does to the margin of class i over class l:
    (γ_ij − γ_lj)², γ their `Offsets.share`, as the margin's own part of z_j is T_Δ a_j √λ_j (γ_ij − γ_lj).
    For the same reason the mean margin is less by T_Δ (1 + cT) Σ_j a_j γ_ij (γ_ij − γ_lj); and what is not
    known of the class mean adds Σ_j γ_ij² a_j² (1 + cT)² times HΔH and Σ_j γ_ij² a_j² λ_j T_Δ² c times HΣH.
    The sums of these last go over all directions, also those with λ_j = 0, of which Σ̂ knows nothing.

    Derivatives take γ as given. Costs an ``eigh`` of the covariance (or of its dual). Needs totals only, no
    pass over the rows. Where clients are not named, as under secure aggregation, or are numbered beyond 255,
    or cannot be told from their noise, rows are taken to be independent. Where nothing was observed (ν = 0 or
    Σ̂ = 0), the mean variance of the class means, or 1, is added: the head is then a nearest-mean classifier.

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
    offsets = no_offsets(moments, freedom) if sums is None else offsets_of(sums, moments, freedom)
    level, degrees = mean_variance(covariance), freedom.degrees.sum()
    seen = (level > 0) & (degrees > 0)
    # In units of the mean variance everything is of order one, and candidates are plain numbers.
    unit = jnp.where(seen, level, 1)
    basis = Basis.of(covariance.scaled(1 / unit), moments, offsets, unit)
    candidates = jnp.asarray(_CANDIDATES, basis.values.dtype)

    error = foretold_error(basis, moments, freedom, offsets, candidates)
    exponent = jnp.log10(candidates)
    added = jnp.minimum(1, covariance.dim / jnp.maximum(degrees, 1))
    expected = added * _share_without_offsets(level, offsets, freedom)
    away = (exponent - jnp.log10(expected)) / _DECADES
    mistakes = degrees * (error - error.min())
    belief = jax.nn.softmax(-_MISTAKE_WEIGHT * mistakes - 0.5 * jnp.square(away))
    chosen = jnp.power(10.0, (belief * exponent).sum())

    count = moments.count.astype(candidates.dtype)
    centred = moments.mean - moments.grand_mean[None, :]
    between = (count * jnp.square(centred).mean(1)).sum() / jnp.maximum(count.sum(), 1)
    unseen = jnp.where(between > 0, between, 1)
    scale = 1 / (1 + chosen)
    return jnp.where(seen, scale, 1), jnp.where(seen, scale * chosen * unit, unseen)


def _share_without_offsets(level: jax.Array, offsets: Offsets, freedom: Freedom) -> jax.Array:
    """Mean variance of what is free of offsets, for as many degrees of freedom as all, over that of Σ̂."""
    dim = offsets.vector.shape[1]
    share = 1 - jnp.square(offsets.vector).sum() / (dim * jnp.where(level > 0, level, 1))
    part, whole = ((degrees * freedom.weight).sum() for degrees in (offsets.degrees, freedom.degrees))
    share = share * jnp.where(part > 0, whole / jnp.where(part > 0, part, 1), 1)
    return jnp.clip(share, _CANDIDATES[0], _CANDIDATES[-1])
