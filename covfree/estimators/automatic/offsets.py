"""Estimate clients' offsets (vectors added to all features of a client) from sums by class and client."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from covfree.core.lapack import eigh
from covfree.core.products import divide_or_zero, product
from covfree.core.types import Moments, Rows
from covfree.estimators.automatic.senders import SAMPLE
from covfree.estimators.moments import row_clients, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import Freedom

# A direction of offsets is split off from Σ̂ only if its strength λ_j (see `Offsets`) is above this share of
# the clients' mean strength; a weaker one would be mostly rounding. Client k has the strength Σ_c w_c n_ck,
# with w_c the weight of class c in Σ̂, and n_ck the number of k's examples of c.
_LEAST_STRENGTH = 1e-3
# Offsets are told apart from differences within clients only if at least this share of Σ̂'s degrees of
# freedom is left after each direction of offsets has taken one.
_LEAST_WITHIN = 0.25
# Candidates of tr Δ/tr Σ: 0, and from 10⁻³ to 10⁴ in steps of 15 %. Δ is the covariance of offsets, Σ the
# covariance within clients.
_RATIOS = np.concatenate([[0.0], np.logspace(-3, 4, 113)])

# Ratios count as equally likely if their log-likelihoods, times 2, differ by less than this. The smallest of
# them is taken.
_TOLD = 0.01
# The sample counts as all clients if the other clients' Σ_c w_c N_c is at most this multiple of the sample's,
# for N_c examples of class c with weight w_c in Σ̂.
_NEGLIGIBLE = 1e-4


class ClientSums(NamedTuple):
    """Sums over the rows of each client in a sample, the clients 0 … 255; they add up over parts of the rows.

    Row r is the mean x_r of n_r examples of class c. The class has mean μ_c, and weight w_c in the covariance
    Σ̂ that is to be shrunk.

    Attributes:
        counts: n_ck, client k's number of examples of class c.
        totals: g_k = Σ_r w_c n_r (x_r − μ_c) over client k's rows of all classes.
        classes: Σ_r w_c n_r (x_r − μ_c) over all sampled clients' rows of class c; 0 if the sample is all
            clients, as deviations from a mean then cancel.
    """

    counts: Num[Array, "classes slots"]
    totals: Float[Array, "slots dim"]
    classes: Float[Array, "classes dim"]


class Offsets(NamedTuple):
    """The estimated covariance Σ̂, split into a part due to client shift, Σ_j z_j z_jᵀ, and a remainder.

    Client shift moves all features of a client by a vector, its offset. Offsets vary over clients with the
    covariance Δ; features of a class at one client have the covariance Σ. The δ_j are independent
    combinations of clients' offsets, each of covariance Δ; z_j = √λ_j δ_j + noise of covariance c Σ. The
    remainder contains no offsets, except in directions too weak to separate. Its noise and that of z_j are
    independent if classes have equal weight, and uncorrelated on average otherwise.

    Attributes:
        strength: λ_j; 0 if Σ̂ does not contain δ_j.
        vector: z_j; 0 where the strength is 0.
        share: p_cj, the weight of δ_j in the mean of class c.
        unseen: strengths λ of further directions, whose vectors are unknown: they stand for the clients
            outside the sample (see `offsets_of`).
        copies: how many directions have each λ in ``unseen``; 0 if the sample is all clients.
        noise: c, in the noise's covariance c Σ.
        degrees: degrees of freedom of the remainder, by class.
        ratio: ρ = tr Δ/tr Σ.
        free: the share of tr Σ̂ that is due to Σ, not to Δ.
        known: whether the rows name their clients.
        told_apart: whether the sample is all clients, or nearly all, and the remainder suffices to estimate
            Σ. If not, Δ = ρΣ is assumed.
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
    factor: Float[Array, "rows dim"],
    rows: Rows,
    moments: Moments,
    class_weight: Float[Array, " classes"] | None,
) -> ClientSums | None:
    """Sum, for each client of a sample, the deviations of its class means from the means over all clients.

    The sample is the clients 0 … 255; see `ClientSums` for the result. Row r is the mean x_r of n_r examples
    of class c at a client. ``factor`` has the scaled deviations y_r = √(w_c n_r) (x_r − μ_c), with w_c the
    class's entry of ``class_weight`` and μ_c the class mean. The result is None if the rows name no clients,
    or the weights are unknown.
    """
    if rows.client is None or class_weight is None:
        return None
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
    """Return the `Offsets` that say: no part of the estimated covariance comes from client shift.

    They are used where the sums of each client (`ClientSums`) are not known. All rows then count as
    independent.
    """
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
    r"""Split the covariance Σ̂ into a part due to clients' offsets and a remainder: an `Offsets`.

    The formulas are in docs/derivation.md, section 10. Symbols are those of `Offsets`.

    If ``sums`` cover only a sample of the clients, all clients together are modelled as m copies of the
    sample. Here m is Σ_c w_c N_c, for N_c examples of class c at all clients, divided by the same sum for the
    sample. Class means then contain the average of δ_j over the copies, so its weight p_cj is 1/√m times that
    for a single copy. Differences between copies are in no class mean. Each client k of the sample gives
    m − 1 of them, of strength λ = Σ_c w_c n_ck for its n_ck examples of class c.

    Args:
        sums: `client_sums` of *all* rows.
        moments: `first_moments` of all rows.
        freedom: the weight w_c of each class in Σ̂, and its degrees of freedom.
        level: tr(Σ̂)/d.

    Source: the weighted two-way layout of the analysis of variance (Scheffé 1959, chapter 4), and the
    likelihood of variance components (Searle, Casella and McCulloch 1992, chapter 6). Their use here is
    covfree's.
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
    inverse = divide_or_zero(1, strength, used)
    copies = jnp.where(used.any(), whole.sum() / jnp.where(used.any(), reach.sum(), 1), 1)
    more = jnp.maximum(copies - 1, 0)

    weight = product(share, vectors)
    along = product(share, product(jnp.square(vectors), inverse[:, None]))[:, 0]
    along = along - product(jnp.square(weight), inverse[:, None])[:, 0]
    along += more * product(share, divide_or_zero(1, held)[:, None])[:, 0]
    spent = jnp.clip(reach * along, 0, freedom.degrees)
    directions = used.sum(dtype=dtype)
    noise = (freedom.weight * spent).sum() / jnp.maximum(directions + more * holders.sum(dtype=dtype), 1)
    degrees = freedom.degrees - spent
    # Convert the sums about all clients' class means to sums about the sample's class means.
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
    """Estimate how large client shift is: return estimates of ρ = tr Δ/tr Σ, and of tr(Σ)/d.

    Both are maximum-likelihood estimates. Δ is the covariance of clients' offsets, and Σ that of the features
    of a class at one client. ``square`` is ‖z_j‖²/d for the vectors z_j in ``offsets``, see `Offsets`.
    ``level`` is tr(Σ̂)/d, and ``weight`` the weight of each class in Σ̂.
    """
    used, holders, tiny = offsets.strength > 0, offsets.unseen > 0, jnp.finfo(level.dtype).tiny
    unseen = offsets.copies * holders.sum(dtype=level.dtype)
    degrees = offsets.degrees.sum() + unseen
    number = jnp.maximum(used.sum(dtype=level.dtype) + degrees, 1)

    def likelihood(ratio: jax.Array) -> tuple[jax.Array, jax.Array]:
        scale = jnp.where(used, jnp.maximum(offsets.strength * ratio + offsets.noise, tiny), 1)
        # What Σ̂ holds beside the z_j is a mix of the remainder and the unseen directions. It counts as one
        # observation, with ``degrees`` degrees of freedom.
        left = (offsets.degrees * weight).sum() + offsets.copies * offsets.unseen.sum() * ratio
        left = jnp.maximum(left + unseen * offsets.noise, tiny)
        remains = jnp.maximum(level - square.sum(), 0) * degrees / left
        variance = (jnp.where(used, square / scale, 0).sum() + remains) / number
        fit = number * jnp.log(jnp.maximum(variance, tiny)) + jnp.log(scale).sum()
        return -fit - degrees * jnp.log(left), variance

    ratios = jnp.asarray(_RATIOS, level.dtype)
    likelihoods, variances = jax.vmap(likelihood)(ratios)
    # Take the smallest ratio that is about as likely as the best. With one row of equal weight from each
    # client, all ratios are equally likely, and rounding must not choose.
    best = jnp.argmax(likelihoods >= likelihoods.max() - _TOLD)
    return ratios[best], variances[best]
