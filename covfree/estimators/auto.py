"""Shrinkage that needs no tuning: the error of linear discriminant analysis, foretold from sums alone."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from covfree.estimators.foretold import deterministic_equivalents, mistake_chance, sampled_classes
from covfree.estimators.scatter import Freedom
from covfree.estimators.shrinkage import Shrinkage
from covfree.linalg import Scatter, rank_cut
from covfree.products import product
from covfree.types import Moments

# Candidates γ/t, a quarter of a decade apart: from "none" to "nearest mean", whatever the features' scale.
_CANDIDATES = np.logspace(-4, 2, 25)
# The weight of a foretold mistake; the spread (in decades) of candidates about the most evident one; and the
# least that the evidence may ask for. Picked on 123 federations, where halving or doubling any of them moves
# the mean loss against the best γ in hindsight by about 0.1 points at most.
_MISTAKE_WEIGHT = 2.0
_DECADES = 0.4
_LEAST_EVIDENT = 0.1


def automatic() -> Shrinkage:
    r"""(Σ̂ + γI)/(1 + γ/t) with γ chosen from the rows' sums alone: no tuning, no data, any scale.

    t = tr(Σ̂)/d, so that the trace stays what it is: a covariance that is too large as a whole would let the
    class frequencies outweigh the features. Two things can be said of a candidate γ without an example.

    *What it does to the classifier.* Let H = (Σ̂ + γI)⁻¹. Under linear discriminant analysis, an example
    of class i beats class j by a margin of mean ½ (μ_i − μ_j)ᵀH(μ_i − μ_j) − T/N_i + log(π_i/π_j)/(1 + γ/t)
    and variance (μ_i − μ_j)ᵀHΣH(μ_i − μ_j). T = tr(HΣ) takes off what the class mean owes to its own N_i
    examples. Σ is unknown, and Σ̂ looks too kind in the directions that H prefers; with Σ̂ = Σ_c w_c S_c,
    random matrix theory gives the deterministic equivalents

        Σ_c (K_c − 1) w_c T / (1 + w_c T) = tr(HΣ̂),    HΣH = HΣ̂H / Σ_c (K_c − 1) w_c / (1 + w_c T)²

    (for equal weights 1/ν, T = tr(HΣ̂)/(1 − κ) and HΣ̂H/(1 − κ)² with κ = tr(HΣ̂)/ν). The error E(γ) is the
    mean over classes, weighted by π_i, of the chance to lose to any rival; the margins against two rivals are
    taken to correlate by ½, as they do where class means are equally far apart.

    *How evident it is.* If Σ is inverse-Wishart about t·I with γν/t + d + 1 degrees of freedom, its
    posterior mean is proportional to Σ̂ + γI, and the likelihood of Σ̂ is known in closed form from its
    eigenvalues; let γ* be where it is largest, but at least t/10: it knows nothing of covariances that differ
    between classes, and takes directions in which nothing varies for a reason not to shrink.

    Neither alone is safe: the error is flat or over-confident with few classes, the evidence knows nothing
    of classes. The mean of log γ is taken under weights exp(−2 E(γ) Σ_c (K_c − 1) − ½ (log₁₀(γ/γ*)/0.4)²),
    25 candidates from 10⁻⁴ t to 10² t: expected mistakes among as many examples as there are degrees of
    freedom, against a prior about γ*.

    Derivatives take γ as given. Costs an ``eigh`` of the covariance (or of its dual). Needs totals only, no
    pass over the rows, so that it works with secure aggregation too. Where nothing was observed (ν = 0 or
    Σ̂ = 0), the mean variance of the class means, or 1, is added: the head is then a nearest-mean classifier.
    Rows of one client are taken to be independent: features that shift from client to client rest on fewer
    degrees of freedom than are counted, and γ is then too small.

    Source: the error estimate extends that of Zollanvari and Dougherty (2015) to weighted classes and many
    rivals; the evidence is the marginal likelihood of the Wishart law (e.g. Haff 1980). Their combination is
    covfree's.
    """
    return Shrinkage(0.0, _automatic)


@jax.jit
def _automatic(
    strength: jax.Array, covariance: Scatter, moments: Moments, freedom: Freedom, statistics: Any
) -> tuple[jax.Array, jax.Array]:
    # It hangs on a maximum over candidates, and eigenvectors of equal eigenvalues have no derivative.
    covariance, moments, freedom = jax.lax.stop_gradient((covariance, moments, freedom))
    values, means, outside = _eigenbasis(covariance, moments)
    mean_variance = values.sum() / covariance.dim + covariance.shift
    degrees = freedom.effective
    seen = (mean_variance > 0) & (degrees > 0)
    # In units of the mean variance everything is of order one, and candidates are plain numbers.
    unit = jnp.where(seen, mean_variance, 1)
    values, means, outside = values / unit, means / jnp.sqrt(unit), outside / unit
    floor = covariance.shift / unit
    candidates = jnp.asarray(_CANDIDATES, values.dtype)

    error = _error(values, means, outside, moments, freedom, candidates, covariance.dim, floor)
    known = jnp.where(seen, degrees, 1)
    spectrum = jnp.pad(values, (0, covariance.dim - values.shape[0])) + floor
    evidence = jax.vmap(lambda gamma: _evidence(spectrum, known, gamma))(candidates)
    exponent = jnp.log10(candidates)
    evident = jnp.maximum(exponent[evidence.argmax()], math.log10(_LEAST_EVIDENT))
    away = (exponent - evident) / _DECADES
    mistakes = freedom.degrees.sum() * (error - error.min())
    belief = jax.nn.softmax(-_MISTAKE_WEIGHT * mistakes - 0.5 * jnp.square(away))
    chosen = jnp.power(10.0, (belief * exponent).sum())

    count = moments.count.astype(values.dtype)
    centred = moments.mean - moments.grand_mean[None, :]
    between = (count * jnp.square(centred).mean(1)).sum() / jnp.maximum(count.sum(), 1)
    unseen = jnp.where(between > 0, between, 1)
    scale = 1 / (1 + chosen)
    return jnp.where(seen, scale, 1), jnp.where(seen, scale * chosen * unit, unseen)


def _eigenbasis(
    covariance: Scatter, moments: Moments
) -> tuple[Float[Array, " size"], Float[Array, "classes size"], Float[Array, "classes classes"]]:
    """Eigenvalues, centred class means in the eigenbasis, and what of their products lies outside it.

    From a factor the basis spans its rows alone; every other direction has eigenvalue 0.
    """
    centred = jnp.where(moments.present[:, None], moments.mean - moments.grand_mean[None, :], 0)
    values, vectors = jnp.linalg.eigh(covariance.core())
    values = jnp.maximum(values, 0)
    if not covariance.factored:
        means = product(centred, vectors)
        return values, means, jnp.zeros((centred.shape[0],) * 2, means.dtype)
    values = jnp.where(values > rank_cut(values), values, 0)
    scale = jnp.where(values > 0, 1 / jnp.sqrt(jnp.where(values > 0, values, 1)), 0)
    means = product(product(centred, covariance.value.T), vectors) * scale[None, :]
    return values, means, product(centred, centred.T) - product(means, means.T)


def _error(
    values: Float[Array, " size"],
    means: Float[Array, "classes size"],
    outside: Float[Array, "classes classes"],
    moments: Moments,
    freedom: Freedom,
    candidates: Float[Array, " candidates"],
    dim: int,
    floor: Float[Array, ""],
) -> Float[Array, " candidates"]:
    """Foretold error E of each candidate, in units of the mean variance.

    ``floor`` adds to all eigenvalues, also to the ``dim − size`` that the basis leaves out.
    """
    count = moments.count.astype(values.dtype)
    chosen, share = sampled_classes(moments)
    num_classes = count.shape[0]
    log_prior = jnp.log(jnp.where(moments.present, count / jnp.maximum(count.sum(), 1), 1))
    odds = log_prior[chosen][:, None] - log_prior[None, :]
    rival = moments.present[None, :] & (jnp.arange(num_classes)[None, :] != chosen[:, None])
    own_count = jnp.maximum(count[chosen], 1)[:, None]
    square = jnp.square(means)
    spectrum = values + floor

    def distances(weight: jax.Array, hidden: jax.Array) -> jax.Array:
        """(μ_i − μ_j)ᵀ A (μ_i − μ_j) for A of these eigenvalues, and ``hidden`` outside the basis."""
        own = product(square, weight[:, None])[:, 0] + hidden * jnp.diagonal(outside)
        cross = product(means[chosen] * weight[None, :], means.T) + hidden * outside[chosen]
        return jnp.maximum(own[chosen][:, None] + own[None, :] - 2 * cross, 0)

    def one_candidate(gamma: jax.Array) -> jax.Array:
        inverse, hidden = 1 / (spectrum + gamma), 1 / (floor + gamma)
        trace = (inverse * spectrum).sum() + (dim - values.shape[0]) * hidden * floor
        true_trace, kindness = deterministic_equivalents(trace, freedom)
        mean = 0.5 * distances(inverse, hidden) - true_trace / own_count + odds / (1 + gamma)
        variance = distances(jnp.square(inverse) * spectrum, jnp.square(hidden) * floor) / kindness
        return (share * mistake_chance(mean, variance, rival)).sum()

    return jax.lax.map(one_candidate, candidates)


def _evidence(
    spectrum: Float[Array, " dim"], degrees: Float[Array, ""], gamma: Float[Array, ""]
) -> Float[Array, ""]:
    """Log-likelihood of ν Σ̂ ~ Wishart(ν, Σ) with Σ ~ inverse-Wishart(m, γν·I), m = γν + d + 1.

    Σ_j [lnΓ((m + ν − j)/2) − lnΓ((m − j)/2)] + ½ m d ln(γν) − ½ (m + ν) ln det(γν·I + ν Σ̂), less what
    does not depend on γ; ordered so that large numbers cancel term by term, which float32 needs.
    """
    prior = gamma * degrees
    freedom = prior + spectrum.shape[0] + 1
    index = jnp.arange(spectrum.shape[0], dtype=spectrum.dtype)
    gammas = gammaln((freedom + degrees - index) / 2) - gammaln((freedom - index) / 2)
    scatter = spectrum * degrees
    return (
        gammas - 0.5 * degrees * jnp.log(prior + scatter) - 0.5 * freedom * jnp.log1p(scatter / prior)
    ).sum()
