"""Clients that differ: class rows as a two-way layout of classes and clients, from sums by client."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Num

from covfree.estimators.moments import row_clients, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import Freedom
from covfree.products import product
from covfree.types import Moments, Rows

# Clients that can be told apart, by their number. With more of them the offset of each weighs little.
MOST_CLIENTS = 256
# Directions in which clients' offsets reach the covariance less than this share of the mean are left to the
# rest: they tell nothing, and rounding would.
_LEAST_STRENGTH = 1e-3
# The degrees of freedom within clients are to be at least this share of all, or the two are not told apart.
_LEAST_WITHIN = 0.25


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
    """

    strength: Float[Array, " directions"]
    vector: Float[Array, "directions dim"]
    share: Float[Array, "classes directions"]
    noise: Float[Array, ""]
    degrees: Float[Array, " classes"]


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
    none = jnp.zeros((num_classes, 0), dtype)
    return Offsets(none[0], jnp.zeros((0, dim), dtype), none, jnp.zeros((), dtype), freedom.degrees)


def offsets_of(sums: ClientSums, moments: Moments, freedom: Freedom) -> Offsets:
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

    Taken as `no_offsets` where a client has a number of 256 or more, or fewer than a quarter of all degrees
    of freedom would be left.

    Args:
        sums: of *all* rows.
        moments: phase one of all rows.
        freedom: of the covariance: w_c, and K_c − 1.

    Source: the two-way layout of the analysis of variance (Scheffé 1959, chapter 4), weighted.
    """
    dtype = freedom.weight.dtype
    share = sums.counts.astype(dtype) / jnp.maximum(moments.count, 1).astype(dtype)[:, None]
    reach = freedom.weight * moments.count.astype(dtype)
    held = product(reach[None, :], share)[0]
    strength, vectors = jnp.linalg.eigh(jnp.diag(held) - product(share.T, reach[:, None] * share))
    mean_strength = held.sum() / jnp.maximum((held > 0).sum(), 1)
    used = strength > _LEAST_STRENGTH * mean_strength
    degrees = freedom.degrees.sum()
    told_apart = (sums.others == 0) & (degrees - used.sum() >= _LEAST_WITHIN * degrees)
    used = used & told_apart
    inverse = jnp.where(used, 1 / jnp.where(used, strength, 1), 0)
    weight = jnp.where(told_apart, product(share, vectors), 0)
    along = product(share, product(jnp.square(vectors), inverse[:, None]))[:, 0]
    spent = reach * (along - product(jnp.square(weight), inverse[:, None])[:, 0])
    spent = jnp.clip(spent, 0, freedom.degrees)
    return Offsets(
        strength=jnp.where(used, strength, 0),
        vector=product(vectors.T, sums.totals) * jnp.sqrt(inverse)[:, None],
        share=weight,
        noise=(freedom.weight * spent).sum() / jnp.maximum(used.sum(), 1),
        degrees=freedom.degrees - spent,
    )
