"""Clients that differ: class rows as a two-way layout of classes and clients, from sums by client."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from covfree.core.lapack import eigh
from covfree.core.products import product
from covfree.core.types import Moments, Rows
from covfree.estimators.automatic.senders import SAMPLE
from covfree.estimators.moments import row_clients, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import Freedom

# Directions in which clients' offsets reach the covariance less than this share of the mean are left to the
# rest: they tell nothing, and rounding would.
_LEAST_STRENGTH = 1e-3
# The degrees of freedom within clients are to be at least this share of all, or the two are not told apart.
_LEAST_WITHIN = 0.25
# Candidates of tr Δ/tr Σ, 6 % apart: from no offsets to such as drown all else.
_RATIOS = np.concatenate([[0.0], np.logspace(-3, 4, 113)])

# Twice log-likelihoods that differ by less are the same.
_TOLD = 0.01
# Clients may be left out whose rows weigh this little, and all offsets still be told from the rest.
_NEGLIGIBLE = 1e-4


class ClientSums(NamedTuple):
    """Sums over the rows of a sample of clients, those numbered 0 … 255; adds up over any split of the rows.

    Attributes:
        counts: n_ck, examples of class c that client k's rows stand for.
        totals: g_k = Σ_r √(w_c n_r) y_r over client k's rows of all classes, y_r = √(w_c n_r) (x_r − μ_c).
        classes: Σ_r n_r w_c (x_r − μ_c) over the rows of all of them, by class; 0 if of all rows.
    """

    counts: Num[Array, "classes slots"]
    totals: Float[Array, "slots dim"]
    classes: Float[Array, "classes dim"]


class Offsets(NamedTuple):
    """The covariance Σ̂ = Σ_r y_r y_rᵀ in two parts, Σ_j z_j z_jᵀ and what is left; see `offsets_of`.

    z_j = √λ_j δ_j + noise of covariance c Σ, with δ_j independent of each other and as one client's offset;
    what is left holds no offset, but for directions too weak to count. Noise is independent between the parts
    where classes weigh the same, and on average elsewhere.

    Attributes:
        strength: λ_j; 0 where Σ̂ does not hold δ_j.
        vector: z_j; 0 there.
        share: p_cj, the weight of δ_j in the mean of class c.
        unseen: λ of as many more directions, of which only the strength is known.
        copies: how many there are of each of these: 0 where the sums are of all clients.
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
    unseen: Float[Array, " directions"]
    copies: Float[Array, ""]
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
        moments: `first_moments` of *all* rows.
        class_weight: w_c.

    Raises:
        ValueError: if ``rows.client`` is None.
    """
    client = row_clients(rows)
    num_classes = class_weight.shape[0]
    valid = valid_rows(rows, num_classes)
    count = row_counts(rows, valid)
    label = jnp.where(valid, row_labels(rows), 0)
    known = valid & (client >= 0) & (client < SAMPLE)
    slot = jnp.where(known, client, SAMPLE).astype(jnp.int32)
    cell = jnp.where(known, label * SAMPLE + slot, num_classes * SAMPLE)
    counts = jax.ops.segment_sum(count, cell, num_classes * SAMPLE).reshape(num_classes, SAMPLE)
    scaled = factor * jnp.sqrt(class_weight[label] * count.astype(class_weight.dtype))[:, None]
    totals = jax.ops.segment_sum(scaled, slot, SAMPLE)
    classes = jax.ops.segment_sum(scaled, jnp.where(known, label, num_classes), num_classes)
    return ClientSums(counts, totals, classes)


def no_offsets(moments: Moments, freedom: Freedom) -> Offsets:
    """All rows taken as independent: nothing in the first part."""
    dtype, (num_classes, dim) = freedom.weight.dtype, moments.total.shape
    zero = jnp.zeros((), dtype)
    return Offsets(
        strength=jnp.zeros(0, dtype),
        vector=jnp.zeros((0, dim), dtype),
        share=jnp.zeros((num_classes, 0), dtype),
        unseen=jnp.zeros(0, dtype),
        copies=zero,
        noise=zero,
        degrees=freedom.degrees,
        ratio=zero,
        free=jnp.ones((), dtype),
        known=jnp.array(False),
        told_apart=jnp.array(False),
    )


def offsets_of(sums: ClientSums, moments: Moments, freedom: Freedom, level: Float[Array, ""]) -> Offsets:
    r"""Split the covariance at what can hold clients' offsets; the derivation, section 10, has the formulas.

    Where the sums are of a sample of the clients, these are taken for a federation of their own, of which all
    rows are m copies, m the ratio of Σ_c w_c N_c. Copies alike in sign have the directions of one, with
    1/√m of its shares; in m − 1 others the copies differ, which no class mean holds, and their strength is
    Σ_c w_c n_ck.

    Args:
        sums: of *all* rows.
        moments: `first_moments` of all rows.
        freedom: of the covariance: w_c, and K_c − 1.
        level: tr(Σ̂)/d.

    Source: the two-way layout of the analysis of variance (Scheffé 1959, chapter 4), weighted. The likelihood
    is that of variance components (Searle, Casella and McCulloch 1992, chapter 6), in covfree's own use.
    """
    dtype = freedom.weight.dtype
    counts = sums.counts.astype(dtype)
    told = counts.sum(1)
    share = counts / jnp.where(told > 0, told, 1)[:, None]
    reach, whole = freedom.weight * told, freedom.weight * moments.count.astype(dtype)
    held = product(reach[None, :], share)[0]
    strength, vectors = eigh(jnp.diag(held) - product(share.T, reach[:, None] * share))
    holders = held > 0
    mean_strength = held.sum() / jnp.maximum(holders.sum(dtype=dtype), 1)
    used = holders.any() & (strength > _LEAST_STRENGTH * mean_strength)
    inverse = jnp.where(used, 1 / jnp.where(used, strength, 1), 0)
    copies = jnp.where(used.any(), whole.sum() / jnp.where(used.any(), reach.sum(), 1), 1)
    more = jnp.maximum(copies - 1, 0)

    weight = product(share, vectors)
    along = product(share, product(jnp.square(vectors), inverse[:, None]))[:, 0]
    along = along - product(jnp.square(weight), inverse[:, None])[:, 0]
    along += more * product(share, jnp.where(holders, 1 / jnp.where(holders, held, 1), 0)[:, None])[:, 0]
    spent = jnp.clip(reach * along, 0, freedom.degrees)
    directions = used.sum(dtype=dtype)
    noise = (freedom.weight * spent).sum() / jnp.maximum(directions + more * holders.sum(dtype=dtype), 1)
    degrees = freedom.degrees - spent
    # About the means of the sample's own classes.
    totals = sums.totals - product(share.T, sums.classes)
    vector = product(vectors.T, totals) * jnp.sqrt(inverse)[:, None]
    offsets = Offsets(
        strength=jnp.where(used, strength, 0),
        vector=vector,
        share=weight / jnp.sqrt(copies),
        unseen=held,
        copies=more,
        noise=noise,
        degrees=degrees,
        ratio=noise,
        free=noise,
        known=holders.any(),
        told_apart=(more <= _NEGLIGIBLE)
        & (freedom.degrees.sum() - directions >= _LEAST_WITHIN * freedom.degrees.sum()),
    )
    ratio, variance = _ratio(offsets, jnp.square(vector).mean(1), level, freedom.weight)
    free = variance * (freedom.degrees * freedom.weight).sum() / jnp.where(level > 0, level, 1)
    return offsets._replace(ratio=ratio, free=jnp.where(offsets.known, free, 1))


def _ratio(
    offsets: Offsets,
    square: Float[Array, " directions"],
    level: Float[Array, ""],
    weight: Float[Array, " classes"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """ρ and σ² of the greatest likelihood, from ‖z_j‖²/d and tr(Σ̂)/d."""
    used, holders, tiny = offsets.strength > 0, offsets.unseen > 0, jnp.finfo(level.dtype).tiny
    unseen = offsets.copies * holders.sum(dtype=level.dtype)
    degrees = offsets.degrees.sum() + unseen
    number = jnp.maximum(used.sum(dtype=level.dtype) + degrees, 1)

    def likelihood(ratio: jax.Array) -> tuple[jax.Array, jax.Array]:
        scale = jnp.where(used, jnp.maximum(offsets.strength * ratio + offsets.noise, tiny), 1)
        # What is left, the rows of clients unseen with it, as one observation of so many degrees of freedom.
        left = (offsets.degrees * weight).sum() + offsets.copies * offsets.unseen.sum() * ratio
        left = jnp.maximum(left + unseen * offsets.noise, tiny)
        remains = jnp.maximum(level - square.sum(), 0) * degrees / left
        variance = (jnp.where(used, square / scale, 0).sum() + remains) / number
        fit = number * jnp.log(jnp.maximum(variance, tiny)) + jnp.log(scale).sum()
        return -fit - degrees * jnp.log(left), variance

    ratios = jnp.asarray(_RATIOS, level.dtype)
    likelihoods, variances = jax.vmap(likelihood)(ratios)
    # The first that the rows do not tell from the best. Where they tell nothing, as of clients with one row
    # each of equal weight, all ratios are as likely, and rounding must not choose.
    best = jnp.argmax(likelihoods >= likelihoods.max() - _TOLD)
    return ratios[best], variances[best]
