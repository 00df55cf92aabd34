"""Clients that differ: class rows as a two-way layout of classes and clients, from sums by client."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Num

from covfree.estimators.moments import row_clients, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import Freedom
from covfree.lapack import eigh
from covfree.products import product
from covfree.types import Moments, Rows

# Clients that can be told apart, by their number. With more of them the offset of each weighs little.
MOST_CLIENTS = 256
# Directions in which clients' offsets reach the covariance less than this share of the mean are left to the
# rest: they tell nothing, and rounding would.
_LEAST_STRENGTH = 1e-3
# The degrees of freedom within clients are to be at least this share of all, or the two are not told apart.
_LEAST_WITHIN = 0.25
# Candidates of tr Δ/tr Σ, 6 % apart: from no offsets to such as drown all else.
_RATIOS = np.concatenate([[0.0], np.logspace(-3, 4, 113)])


class ClientSums(NamedTuple):
    """Sums over the rows of each of the clients 0 … 255; adds up over any split of the rows.

    Attributes:
        counts: n_ck, examples of class c that client k's rows stand for.
        totals: g_k = Σ_r √(w_c n_r) y_r over client k's rows of all classes, y_r = √(w_c n_r) (x_r − μ_c).
        others: rows of clients with other numbers. With any of them the sums are incomplete, and not used.
    """

    counts: Num[Array, "classes slots"]
    totals: Float[Array, "slots dim"]
    others: Integer[Array, ""]


class Offsets(NamedTuple):
    """The covariance Σ̂ = Σ_r y_r y_rᵀ in two parts, Σ_j z_j z_jᵀ and what is left; see `offsets_of`.

    z_j = √λ_j δ_j + noise of covariance c Σ, with δ_j independent of each other and as one client's offset;
    what is left holds no offset, but for directions too weak to count. Noise is independent between the parts
    where classes weigh the same, and on average elsewhere.

    Attributes:
        strength: λ_j; 0 where Σ̂ does not hold δ_j.
        vector: z_j; 0 there.
        share: γ_cj, the weight of δ_j in the mean of class c.
        noise: c.
        degrees: of freedom of what is left, by class.
        ratio: ρ = tr Δ/tr Σ.
        free: share of tr Σ̂ that Σ makes, not Δ.
        known: whether it is known whose the rows are.
        told_apart: whether enough is left to know Σ by it. If not, Δ is to be taken as ρΣ.
    """

    strength: Float[Array, " directions"]
    vector: Float[Array, "directions dim"]
    share: Float[Array, "classes directions"]
    noise: Float[Array, ""]
    degrees: Float[Array, " classes"]
    ratio: Float[Array, ""]
    free: Float[Array, ""]
    known: Bool[Array, ""]
    told_apart: Bool[Array, ""]


def client_sums(
    factor: Float[Array, "rows dim"], rows: Rows, moments: Moments, class_weight: Float[Array, " classes"]
) -> ClientSums:
    """The sums of some rows, from their factor y_r = √(w_c n_r) (x_r − μ_c).

    Args:
        factor: y_r, 0 in padding rows.
        rows: the rows, with clients.
        moments: phase one of *all* rows.
        class_weight: w_c.

    Raises:
        ValueError: if the rows do not say whose they are.
    """
    client = row_clients(rows)
    num_classes = class_weight.shape[0]
    valid = valid_rows(rows, num_classes)
    count = row_counts(rows, valid)
    label = jnp.where(valid, row_labels(rows), 0)
    known = valid & (client >= 0) & (client < MOST_CLIENTS)
    others = (valid & ~known).sum()
    slot = jnp.where(known, client, MOST_CLIENTS).astype(jnp.int32)

    def add_up() -> ClientSums:
        cell = jnp.where(known, label * MOST_CLIENTS + slot, num_classes * MOST_CLIENTS)
        counts = jax.ops.segment_sum(count, cell, num_classes * MOST_CLIENTS)
        scale = jnp.sqrt(class_weight[label] * count.astype(class_weight.dtype))
        totals = jax.ops.segment_sum(factor * scale[:, None], slot, MOST_CLIENTS)
        return ClientSums(counts.reshape(num_classes, MOST_CLIENTS), totals, others)

    def leave_out() -> ClientSums:
        counts = jnp.zeros((num_classes, MOST_CLIENTS), count.dtype)
        return ClientSums(counts, jnp.zeros((MOST_CLIENTS, factor.shape[1]), factor.dtype), others)

    # Where a client of another number is met nothing will come of the sums, and a million rows need not be
    # gone through.
    return jax.lax.cond(others > 0, leave_out, add_up)


def no_offsets(moments: Moments, freedom: Freedom) -> Offsets:
    """All rows taken as independent: nothing in the first part."""
    dtype, (num_classes, dim) = freedom.weight.dtype, moments.total.shape
    zero = jnp.zeros((), dtype)
    return Offsets(
        strength=jnp.zeros(0, dtype),
        vector=jnp.zeros((0, dim), dtype),
        share=jnp.zeros((num_classes, 0), dtype),
        noise=zero,
        degrees=freedom.degrees,
        ratio=zero,
        free=jnp.ones((), dtype),
        known=jnp.array(False),
        told_apart=jnp.array(False),
    )


def offsets_of(sums: ClientSums, moments: Moments, freedom: Freedom, level: Float[Array, ""]) -> Offsets:
    r"""Split the covariance at what can hold clients' offsets.

    Let the row of class c and client k be x_r = μ_c + δ_k + ε_r, with offsets δ_k of covariance Δ and ε_r of
    covariance Σ/n_r. With h_ck = n_ck/N_c, the mean of class c holds Σ_k h_ck δ_k, and y_r holds
    √(w_c n_r) (δ_k − Σ_l h_cl δ_l): all rows together L δ, with

        M = LᵀL = diag(Σ_c w_c n_ck) − Σ_c w_c N_c h_c h_cᵀ,

    whose eigenvalues λ_j and eigenvectors e_j give independent δ_j = Σ_k e_jk δ_k. The columns L e_j/√λ_j are
    orthonormal, so that z_j = Σ_k e_jk g_k/√λ_j is the rows' part along them: LᵀY has the rows g_k, as each
    class's √n_r y_r add up to 0. Σ_j z_j z_jᵀ is one part of Σ̂, and what is left is free of offsets. In class
    c it has K_c − 1 degrees of freedom but for the part of its rows along the columns, s_c = w_c N_c
    (Σ_k h_ck M⁺_kk − h_cᵀM⁺h_c). Of the noise a z_j holds c = Σ_c w_c s_c over their number, on average.

    Of traces enough is known even where a z_j comes to nearly every row, and next to nothing is left: rows of
    many examples are further apart than noise allows. With σ² = tr Σ/d the mean of ‖z_j‖²/d is σ² (λ_jρ + c),
    and that of tr/d of what is left Σ_c w_c ν_c σ²; ρ and σ² are those of the greatest likelihood, each
    taken as a multiple of χ², by degrees of freedom. Its equations have the truth as their root in the mean,
    whatever the shapes of Σ and Δ.

    Rows are taken as independent where a client has a number of 256 or more.

    Args:
        sums: of *all* rows.
        moments: phase one of all rows.
        freedom: of the covariance: w_c, and K_c − 1.
        level: tr(Σ̂)/d.

    Source: the two-way layout of the analysis of variance (Scheffé 1959, chapter 4), weighted. The likelihood
    is that of variance components (Searle, Casella and McCulloch 1992, chapter 6), in covfree's own use.
    """
    dtype = freedom.weight.dtype
    share = sums.counts.astype(dtype) / jnp.maximum(moments.count, 1).astype(dtype)[:, None]
    reach = freedom.weight * moments.count.astype(dtype)
    held = product(reach[None, :], share)[0]
    strength, vectors = eigh(jnp.diag(held) - product(share.T, reach[:, None] * share))
    mean_strength = held.sum() / jnp.maximum((held > 0).sum(dtype=dtype), 1)
    known = sums.others == 0
    used = known & (strength > _LEAST_STRENGTH * mean_strength)
    inverse = jnp.where(used, 1 / jnp.where(used, strength, 1), 0)
    weight = jnp.where(known, product(share, vectors), 0)
    along = product(share, product(jnp.square(vectors), inverse[:, None]))[:, 0]
    spent = reach * (along - product(jnp.square(weight), inverse[:, None])[:, 0])
    spent = jnp.clip(spent, 0, freedom.degrees)
    strength = jnp.where(used, strength, 0)
    vector = product(vectors.T, sums.totals) * jnp.sqrt(inverse)[:, None]
    noise = (freedom.weight * spent).sum() / jnp.maximum(used.sum(dtype=dtype), 1)
    degrees = freedom.degrees - spent
    ratio, variance = _ratio(
        strength, jnp.square(vector).mean(1), noise, level, Freedom(degrees, freedom.weight)
    )
    free = variance * (freedom.degrees * freedom.weight).sum() / jnp.where(level > 0, level, 1)
    return Offsets(
        strength=strength,
        vector=vector,
        share=weight,
        noise=noise,
        degrees=degrees,
        ratio=ratio,
        free=jnp.where(known, free, 1),
        known=known,
        told_apart=freedom.degrees.sum() - used.sum(dtype=dtype) >= _LEAST_WITHIN * freedom.degrees.sum(),
    )


def _ratio(
    strength: Float[Array, " directions"],
    square: Float[Array, " directions"],
    noise: Float[Array, ""],
    level: Float[Array, ""],
    rest: Freedom,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """ρ and σ² of `offsets_of`, from ‖z_j‖²/d and tr(Σ̂)/d."""
    used, tiny = strength > 0, jnp.finfo(level.dtype).tiny
    left, degrees = (rest.degrees * rest.weight).sum(), rest.degrees.sum()
    remains = jnp.where(
        left > 0, jnp.maximum(level - square.sum(), 0) * degrees / jnp.where(left > 0, left, 1), 0
    )
    number = used.sum(dtype=degrees.dtype) + degrees

    def likelihood(ratio: jax.Array) -> tuple[jax.Array, jax.Array]:
        scale = jnp.where(used, jnp.maximum(strength * ratio + noise, tiny), 1)
        variance = (jnp.where(used, square / scale, 0).sum() + remains) / jnp.maximum(number, 1)
        return -number * jnp.log(jnp.maximum(variance, tiny)) - jnp.log(scale).sum(), variance

    ratios = jnp.asarray(_RATIOS, level.dtype)
    likelihoods, variances = jax.vmap(likelihood)(ratios)
    best = jnp.argmax(likelihoods)
    return ratios[best], variances[best]
