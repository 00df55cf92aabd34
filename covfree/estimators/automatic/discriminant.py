"""Predict the margins of LDA for many strengths γ of shrinkage, from one eigendecomposition.

The margin of a test example is the score of its own class minus the score of another class.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.lapack import eigh
from covfree.core.linalg import Scatter
from covfree.core.products import product
from covfree.core.types import Moments
from covfree.estimators.automatic.offsets import Offsets
from covfree.estimators.automatic.predicted import (
    Margins,
    deterministic_equivalents,
    implied_trace,
    sampled_classes,
)
from covfree.estimators.moments import centred_means
from covfree.estimators.scatter import Freedom

# Eigenvalues up to this many eps of the largest count as rounding (up to 3 eps were observed). `rank_cut`,
# made for solves, is higher: it would also cut true eigenvalues if those of clients' offsets are far larger.
_ROUNDING = 4.0


class Basis(NamedTuple):
    """Class means and clients' offsets in the coordinates in which a covariance is diagonal (its eigenbasis).

    If the covariance is stored as YᵀY + ``floor``·I, the basis spans only the rows of Y: in directions
    orthogonal to them, all eigenvalues are ``floor``.

    Attributes:
        values: the eigenvalues minus ``floor``.
        floor: the multiple of the identity that the covariance contains.
        means: coordinates of the class means minus the grand mean; 0 for an absent class.
        outside: for each pair of class means, the inner product of their components orthogonal to the basis.
        vectors: coordinates of the vectors z_j of `Offsets`, which lie in the span of the basis.
        dim: d, the dimension of the features.
    """

    values: Float[Array, " size"]
    floor: Float[Array, ""]
    means: Float[Array, "classes size"]
    outside: Float[Array, "classes classes"]
    vectors: Float[Array, "directions size"]
    dim: int

    @classmethod
    def of(cls, covariance: Scatter, moments: Moments, offsets: Offsets, unit: Float[Array, ""]) -> Basis:
        """Compute a covariance's eigenbasis, and the coordinates of class means and offsets in it.

        Args:
            covariance: the covariance, divided by ``unit``.
            moments: counts and sums of each class, which give the class means.
            offsets: the vectors z_j.
            unit: a variance; results are relative to it. Class means and z_j are divided by √unit here.
        """
        centred, offset = (rows / jnp.sqrt(unit) for rows in (centred_means(moments), offsets.vector))
        values, vectors = eigh(covariance.core())
        rounding = _ROUNDING * jnp.finfo(values.dtype).eps * values.max(initial=0)
        values = jnp.where(values > rounding, values, 0)
        if not covariance.factored:
            nothing = jnp.zeros((centred.shape[0],) * 2, values.dtype)
            means, offset = product(centred, vectors), product(offset, vectors)
            return cls(values, covariance.shift, means, nothing, offset, covariance.dim)
        factor = covariance.value
        scale = jnp.where(values > 0, 1 / jnp.sqrt(jnp.where(values > 0, values, 1)), 0)

        def coordinates(rows: jax.Array) -> jax.Array:
            return product(product(rows, factor.T), vectors) * scale[None, :]

        means, inside = coordinates(centred), coordinates(offset)
        # A row of `offset` (a z_j of `Offsets`) may be so long that rounding errors exceed its coordinates
        # along eigenvectors of small eigenvalues. To restore these coordinates, add those of the missing part
        # of the row, twice.
        for _ in range(2):
            inside += coordinates(offset - product(product(inside * scale[None, :], vectors.T), factor))
        outside = product(centred, centred.T) - product(means, means.T)
        return cls(values, covariance.shift, means, outside, inside, covariance.dim)


def predicted_margins(
    basis: Basis,
    moments: Moments,
    freedom: Freedom,
    offsets: Offsets,
    candidates: Float[Array, " candidates"],
) -> Margins:
    """Predict the margins of an LDA head on test examples, for each shrinkage γ in ``candidates``.

    A margin is the score of an example's own class minus that of another class. docs/derivation.md,
    section 10, has the formulas.

    Args:
        basis: class means and offsets in the eigenbasis of Σ̂/t, with t = tr(Σ̂)/d the mean variance.
        moments: counts and sums of each class.
        freedom: the weight of each class in Σ̂, and its degrees of freedom.
        offsets: the split of Σ̂ into a part due to client shift and a remainder, see `Offsets`.
        candidates: values of γ, in units of t.

    Returns:
        For each γ, the mean and variance of the margins of each chosen class over each class, see `Margins`.
    """
    values, floor, means, outside, vectors, dim = basis
    count = moments.count.astype(values.dtype)
    chosen, share = sampled_classes(moments)
    log_prior = jnp.log(jnp.where(moments.present, count / jnp.maximum(count.sum(), 1), 1))
    odds = log_prior[chosen][:, None] - log_prior[None, :]
    rival = moments.present[None, :] & (jnp.arange(count.shape[0])[None, :] != chosen[:, None])
    unknown = 1 / jnp.maximum(count[chosen], 1)[:, None]
    strength, used, told_apart = offsets.strength, offsets.strength > 0, offsets.told_apart
    number = used.astype(values.dtype)
    # Estimate T ≈ tr(HΣ), with H = (Σ̂ + γI)⁻¹, from the remainder of Σ̂ if it suffices (``told_apart``),
    # else from the remainder and the z_j, which have covariances (λ_jρ + c)Σ; for the symbols see `Offsets`.
    rows = jnp.concatenate([number, jnp.where(offsets.unseen > 0, offsets.copies, 0)])
    reached = jnp.concatenate([strength, offsets.unseen])
    within = Freedom(
        jnp.concatenate([offsets.degrees, jnp.where(told_apart, 0, rows)]),
        jnp.concatenate([freedom.weight, reached * offsets.ratio + offsets.noise]),
    )
    spectrum = values + floor

    def products(rows: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute weighted squares and products of the rows of a matrix a = ``rows``, one row for each class.

        Returns:
            Two sums over the columns s of a, for each row w of ``weights``: Σ_s w_s a_ls² for each class l,
            [weights, classes]; and Σ_s w_s a_is a_ls for each class i in ``chosen`` and each class l,
            [weights, chosen, classes].
        """
        left = rows[chosen][None, :, :] * weights[:, None, :]
        size = weights.shape[0] * chosen.shape[0]
        cross = product(left.reshape(size, rows.shape[1]), rows.T)
        return product(weights, jnp.square(rows).T), cross.reshape(*left.shape[:2], rows.shape[0])

    def apart(own: jax.Array, cross: jax.Array) -> jax.Array:
        """Return the weighted squared distances Σ_s w_s (a_is − a_ls)² between rows i and l of a matrix a.

        ``own`` and ``cross`` are what `products` returns for the matrix, which has a row for each class, and
        for weights w. The result is [weights, classes i in ``chosen``, classes l].
        """
        return jnp.maximum(own[:, chosen, None] + own[:, None, :] - 2 * cross, 0)

    def one_candidate(gamma: jax.Array) -> tuple[jax.Array, jax.Array]:
        inverse, hidden = 1 / (spectrum + gamma), 1 / (floor + gamma)
        whole = (inverse * spectrum).sum() + (dim - values.shape[0]) * hidden * floor
        # The sum of 1 − z_jᵀHz_j over the z_j of `Offsets`, with H = (Σ̂ + γI)⁻¹. As Σ̂ contains z_j z_jᵀ, each
        # term lies between 0 and 1; it is near 0 if z_j is long.
        left = jnp.where(used, 1 - product(jnp.square(vectors), inverse[:, None])[:, 0], 0).sum()
        in_offsets = jnp.where(told_apart, number.sum() - left, 0)
        trace, optimism = deterministic_equivalents(whole - in_offsets, within)
        noise = 1 + offsets.noise * trace
        # Solve Σ_j 1/(noise + λ_j T_Δ) = left for T_Δ ≈ tr(HΔ), with Δ the covariance of one offset.
        by_offsets = jnp.clip(noise * left, 1e-9 * number.sum(), number.sum())
        offset_trace = jnp.where(
            told_apart, implied_trace(by_offsets, number, strength / noise), offsets.ratio * trace
        )
        part = 1 / (noise + strength * offset_trace)
        square, felt = strength * jnp.square(part), noise * part

        # ``distance`` and ``variance`` are squared distances between class means, (a − b)ᵀM(a − b) for means
        # a and b: with M = H = (Σ̂ + γI)⁻¹, and with M = HΣ̂H. Outside the basis, H is ``hidden``·I.
        own, cross = products(means, jnp.stack([inverse, jnp.square(inverse) * spectrum]))
        out = jnp.stack([hidden, jnp.square(hidden) * floor])[:, None]
        own, cross = (
            own + out * jnp.diagonal(outside)[None, :],
            cross + out[:, :, None] * outside[chosen][None],
        )
        distance, variance = apart(own, cross)
        seen_offset = apart(
            *products(product(means * inverse[None, :], vectors.T), jnp.ones_like(strength)[None])
        )[0]
        own, cross = products(
            offsets.share,
            jnp.stack([jnp.square(offset_trace) * square, offset_trace * felt, jnp.square(felt)]),
        )
        in_means = apart(own[:1], cross[:1])[0]
        variance = jnp.maximum(variance - jnp.where(told_apart, seen_offset, in_means), 0) / optimism
        of_noise = offsets.noise * jnp.where(used, jnp.square(part), 0).sum() * variance
        offset = jnp.maximum(seen_offset - in_means - of_noise, 0)
        offset = offset / jnp.where(square.sum() > 0, square.sum(), 1)
        offset = jnp.where(told_apart, offset, offsets.ratio * variance)
        owed = trace * unknown + own[1][chosen][:, None] - cross[1]
        # Errors of the class mean add to the margin's variance: its noise, and the clients' offsets in it as
        # far as H = (Σ̂ + γI)⁻¹ does not suppress them.
        more_noise = unknown + offsets.noise * own[0][chosen][:, None]
        variance = variance * (1 + more_noise) + offset * (1 + own[2][chosen][:, None])
        return 0.5 * distance - owed, variance

    mean, variance = jax.lax.map(one_candidate, candidates)
    return Margins(mean, variance, odds, rival, share)
