"""Shrinkage that needs no tuning: the error of linear discriminant analysis, foretold from sums alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from covfree.estimators.discriminant import Basis, foretold_error
from covfree.estimators.offsets import ClientSums, client_sums, no_offsets, offsets_of
from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage import Shrinkage, mean_variance
from covfree.linalg import Scatter
from covfree.types import Moments

# Candidates γ/t, a quarter of a decade apart: from "none" to "nearest mean", whatever the features' scale.
_CANDIDATES = np.logspace(-4, 2, 25)
# How far (in decades) γ and s may be from what is expected of them. Candidates of s are as far apart.
_DECADES = 0.4
_SCALE_DECADES = 0.2
_SCALES = 10 ** (_SCALE_DECADES * np.arange(-2, 3))


def automatic() -> Shrinkage:
    r"""(Σ̂ + γI) s/(1 + γ/t) with γ and s chosen from the rows' sums alone: no tuning, no data, any scale.

    t = tr(Σ̂)/d, so that with s = 1 the trace stays what it is. Two things can be said of a candidate (γ, s)
    without an example.

    *What it does to the classifier.* Let H = (Σ̂ + γI)⁻¹. Under linear discriminant analysis, an example
    of class i beats class j by a margin of mean ½ (μ_i − μ_j)ᵀH(μ_i − μ_j) − T/N_i + log(π_i/π_j) s/(1 + γ/t)
    and variance (1 + 1/N_i) (μ_i − μ_j)ᵀHΣH(μ_i − μ_j). T = tr(HΣ) takes off what the class mean owes to its
    own N_i examples, and 1/N_i adds what is not known of it. Σ is unknown, and Σ̂ looks too kind in the
    directions that H prefers; with Σ̂ = Σ_c w_c S_c, random matrix theory gives the deterministic equivalents

        Σ_c (K_c − 1) w_c T / (1 + w_c T) = tr(HΣ̂),    HΣH = HΣ̂H / Σ_c (K_c − 1) w_c / (1 + w_c T)²

    (for equal weights 1/ν, T = tr(HΣ̂)/(1 − κ) and HΣ̂H/(1 − κ)² with κ = tr(HΣ̂)/ν). The error E(γ, s) is the
    mean over classes, weighted by π_i, of the chance to lose to any rival; the margins against two rivals are
    taken to correlate by ½, as they do where class means are equally far apart.

    s is how much class frequencies count beside features: 1 if the head is as sure as it seems, more if
    variance was overlooked, less if Σ̂ holds more of it than an example has, as of clients' offsets. These
    cannot be allowed for where it is not known whose the rows are: there s = 1.

    *What is expected of it.* Foretold from few rows the error is itself uncertain, and with few classes it is
    flat. γ is therefore looked for about γ* = t* min(1, d/ν), with t* the mean variance of an example of its
    class and ν = Σ_c (K_c − 1): to the ν observations come as many of a covariance t*·I as there are
    dimensions, but no more than were made. s is looked for about 1.

    The means of log γ and log s are taken under weights exp(−E Σ_c (K_c − 1) − ½ (log₁₀(γ/γ*)/0.4)² −
    ½ (log₁₀(s)/0.2)²), 25 candidates γ from 10⁻⁴ t to 10² t and 5 candidates s from 0.4 to 2.5: expected
    mistakes among as many examples as there are degrees of freedom, against what was expected.

    *Clients that differ.* Where class means are sent and it is known whose they are, each client k may have
    an offset δ_k of its own, of covariance Δ, in all its features, and the next example is from a client
    unknown; t* is tr(Σ + Δ)/d. `offsets_of` splits Σ̂ into what is free of offsets, to which the above
    applies, and directions z_j = √λ_j δ_j + noise of covariance cΣ. As each z_j is in Σ̂ too,
    a_j = 1/(1 + cT + λ_j T_Δ) of it is seen through H, and (1 + cT) a_j of δ_j, with T_Δ = tr(HΔ) from

        Σ_j (1 − a_j) = Σ_j z_jᵀHz_j,    Σ_j a_j² (λ_j HΔH + c HΣH) = Σ_j [Hz_jz_jᵀH − λ_j (T_Δ a_j)² P_j].

    P_j takes off what δ_j, as part of the class means too, does to the margin of class i over class l:
    (γ_ij − γ_lj)², γ their `Offsets.share`, as the margin's own part of z_j is T_Δ a_j √λ_j (γ_ij − γ_lj).
    For the same reason the mean margin is less by T_Δ (1 + cT) Σ_j a_j γ_ij (γ_ij − γ_lj); and what is not
    known of the class mean adds Σ_j γ_ij² a_j² (1 + cT)² times HΔH and Σ_j γ_ij² a_j² λ_j T_Δ² c times HΣH.
    The sums of these last go over all directions, also those with λ_j = 0, of which Σ̂ knows nothing.

    Where nearly every row is of a client of its own, too little is free of offsets to know Σ by it. Then Δ is
    taken as ρΣ, with ρ from `offsets_of`: a z_j is one more row of Σ̂, of weight v_j = λ_jρ + c, T_Δ = ρT,
    HΔH = ρHΣH, and

        Σ_c ν_c w_c T / (1 + w_c T) + Σ_j v_j T / (1 + v_j T) = tr(HΣ̂),
        HΣH [Σ_c ν_c w_c / (1 + w_c T)² + Σ_j v_j / (1 + v_j T)²] = HΣ̂H − Σ_j λ_j (T_Δ a_j)² P_j,

    with ν_c of the degrees of freedom of class c left beside the z_j.

    Derivatives take γ and s as given. Costs an ``eigh`` of the covariance (or of its dual). Needs totals
    only, no pass over the rows. Where clients are not named, as under secure aggregation, or are numbered
    beyond 255, rows are taken to be independent. Where nothing was observed (ν = 0 or Σ̂ = 0), the mean
    variance of the class means, or 1, is added: the head is then a nearest-mean classifier.

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
        offsets, scales = no_offsets(moments, freedom), np.ones(1)
    else:
        offsets = offsets_of(sums, moments, freedom, level)
        scales = jnp.where(offsets.known, jnp.asarray(_SCALES, level.dtype), 1)
    basis = Basis.of(covariance.scaled(1 / unit), moments, offsets, unit)
    dtype = basis.values.dtype
    candidates, scales = jnp.asarray(_CANDIDATES, dtype), jnp.asarray(scales, dtype)

    error = foretold_error(basis, moments, freedom, offsets, candidates, scales)
    decades, scale_decades = jnp.log10(candidates)[:, None], jnp.log10(scales)[None, :]
    variance = jnp.clip(offsets.free * (1 + offsets.ratio), _CANDIDATES[0], _CANDIDATES[-1])
    expected = variance * jnp.minimum(1, covariance.dim / jnp.maximum(degrees, 1))
    away = (decades - jnp.log10(expected)) / _DECADES, scale_decades / _SCALE_DECADES
    mistakes = degrees * (error - error.min())
    belief = jax.nn.softmax(-mistakes - 0.5 * (jnp.square(away[0]) + jnp.square(away[1])), axis=(0, 1))
    chosen, scale = (jnp.power(10.0, (belief * exponent).sum()) for exponent in (decades, scale_decades))

    count = moments.count.astype(dtype)
    centred = moments.mean - moments.grand_mean[None, :]
    between = (count * jnp.square(centred).mean(1)).sum() / jnp.maximum(count.sum(), 1)
    unseen = jnp.where(between > 0, between, 1)
    scale = scale / (1 + chosen)
    return jnp.where(seen, scale, 1), jnp.where(seen, scale * chosen * unit, unseen)
