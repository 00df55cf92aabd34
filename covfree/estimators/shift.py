"""Client shift: the true mean of a class differs between clients.

`shift_bias` computes the bias that it causes in FedCOF's covariance; `shift_test` tests for it, from the
class means that clients send.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Num

from covfree.core.checks import check_means
from covfree.core.doors import compiled
from covfree.core.products import divide_or_zero, product, symmetric_product
from covfree.core.types import AnyArray, Moments, Rows
from covfree.estimators.components import client_parts
from covfree.estimators.covariance import one_class
from covfree.estimators.moments import first_moments, row_counts, row_labels, valid_rows
from covfree.estimators.scatter import centred_rows
from covfree.statistics.rows import check_subsets


class ShiftTest(NamedTuple):
    """The result of `shift_test`, which tests whether a class's true mean differs between clients.

    Attributes:
        statistic: z, about standard normal without client shift and large with it; NaN if not informative.
        p_value: probability of a z this large without client shift, by the normal approximation; NaN if not
            informative.
        relative_shift: by how much client shift raises the trace of FedCOF's estimate (eq. 5) on these rows,
            as a share of the trace without shift; estimated, and may be below 0 by chance. NaN if not
            informative.
        informative: whether the rows allow a test.
    """

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]
    relative_shift: Float[Array, ""]
    informative: Bool[Array, ""]


def _check_clients(means: Any, counts: Any, covariances: Any = None, **_: Any) -> None:
    """Raise ValueError or TypeError unless shapes and types of means, counts and covariances fit."""
    check_means(means, counts)
    if covariances is not None and np.shape(covariances) != (*np.shape(means), np.shape(means)[1]):
        raise ValueError(
            f"covariances: expected {[*np.shape(means), np.shape(means)[1]]}, one for each of the means, got "
            f"{list(np.shape(covariances))}"
        )


@compiled(
    ("num_subsets", "subset_size"),
    check=_check_clients,
    padded={"means": 0, "counts": 0, "covariances": 0},
)
def shift_bias(
    means: Float[AnyArray, "clients dim"],
    counts: Num[AnyArray, " clients"],
    covariances: Float[AnyArray, "clients dim dim"] | None = None,
    *,
    num_subsets: int | None = 1,
    subset_size: int = 2,
) -> Float[Array, "dim dim"]:
    """Compute the bias of FedCOF's covariance of a class under client shift, from clients' true moments.

    Client k has n_k examples of the class, of true mean m_k and covariance V_k, and sends J_k rows. The bias
    is [Σ_k J_k (V_k − V) + Σ_k n_k (m_k − m)(m_k − m)ᵀ] / (K_c − 1), with K_c = Σ_k J_k, N_c = Σ_k n_k, m =
    Σ_k n_k m_k / N_c and V = Σ_k n_k V_k / N_c, the covariance about the clients' own means. The first term
    is 0 if clients share a covariance, or send rows in proportion to their examples. The second term is
    positive semi-definite and grows with the number of examples behind a row. If clients send means of random
    subsets, the second sum stays the same but K_c grows, so the bias falls.

    Args:
        means: true mean m_k of the class at each client.
        counts: n_k, examples of the class at each client; clients with count 0 are ignored.
        covariances: true covariance V_k of the class at each client; None if all clients share it.
        num_subsets: largest number of random subsets into which a client splits its examples of the class;
            None for no limit, as in `client_rows`.
        subset_size: smallest number of examples in a subset, as in `client_rows`.

    Returns:
        The bias; 0 with fewer than two rows, as then no covariance is estimated.

    Source: FedCOF (Goswami et al. 2024), eq. 22, which is exact for this definition of V.

    >>> import jax.numpy as jnp
    >>> means, counts = jnp.array([[0.1], [0.0], [-0.1]]), jnp.array([100, 100, 100])
    >>> round(float(shift_bias(means, counts)[0, 0]), 4)
    1.0
    >>> round(float(shift_bias(means, counts, num_subsets=2)[0, 0]), 4)  # the divisor is 5, not 2
    0.4
    """
    check_subsets(num_subsets, subset_size)
    rows = one_class(means, counts)
    moments = first_moments(rows, 1)
    factor = centred_rows(rows, moments)
    held = row_counts(rows, valid_rows(rows, 1))
    subsets = jnp.where(held > 0, jnp.clip(held // subset_size, 1, num_subsets), 0)
    scatter = symmetric_product(factor)
    if covariances is not None:
        # Covariances of clients without examples may hold any value.
        own = jnp.where(held[:, None, None] > 0, covariances, 0).astype(scatter.dtype)
        total = jnp.where(held.sum() > 0, held.sum(), 1)
        excess = (subsets - subsets.sum() * held / total).astype(scatter.dtype)
        dim = scatter.shape[0]
        scatter = scatter + product(excess[None, :], own.reshape(-1, dim * dim)).reshape(dim, dim)
        scatter = jnp.where(subsets.sum() > 1, scatter, 0)
    return scatter / jnp.maximum(subsets.sum() - 1, 1).astype(scatter.dtype)


@compiled(("num_classes",))
def shift_test(rows: Rows, num_classes: int) -> ShiftTest:
    """Test whether clients' class means differ by more than the covariance within clients explains.

    With several rows for each client and class, the test is a ratio of variances: the variance of the
    clients' means, over the variance that the scatter within clients predicts. A class for which no client
    sent several rows is left out.

    With one row for each client and class, the test is a regression slope: if clients differ, the squared
    deviations of means, times the number of examples, grow with that number. Classes with fewer than three
    rows are left out. A class with equal counts does not change the slope, as client shift looks like
    covariance there. The slope detects far less than the ratio.

    Residual directions (`directed_rows`) among the rows are ignored, as they are the largest parts of the
    scatter, not a fair sample.

    Both tests are one-sided, with normal approximations, and assume that a class has the same covariance at
    all clients. The formulas and the rate of false alarms are in docs/shift.md, "Is there a shift? A test".
    Pass all rows, not a part of them.

    Args:
        rows: class rows, one or several for each client and class. Without ``client``, the slope is tested.
        num_classes: C, the number of classes, static.

    Returns:
        The result of the test; its fields are arrays.

    Source: covfree; Paulson (1942) and Wallace (1959) for the normal approximations.

    >>> import jax, jax.numpy as jnp
    >>> noise = jax.random.normal(jax.random.key(0), (2, 40, 2, 8))  # 40 clients, 2 subsets of 50 examples
    >>> same, shifted = noise[0] / 50**0.5, noise[0] / 50**0.5 + noise[1, :, :1] / 5
    >>> client, label, count = jnp.repeat(jnp.arange(40), 2), jnp.zeros(80, int), jnp.full(80, 50)
    >>> tables = [Rows(mean.reshape(80, 8), count, label, client) for mean in (same, shifted)]
    >>> [float(shift_test(rows, 1).p_value) < 0.01 for rows in tables]
    [False, True]
    """
    moments = first_moments(rows, num_classes)
    if rows.client is None:
        return _slope_test(rows, moments)
    ratio = _ratio_test(rows, moments)
    slope = _slope_test(rows, moments)
    return ShiftTest(*(jnp.where(ratio.informative, *both) for both in zip(ratio, slope, strict=True)))


def _test(z: jax.Array, relative: jax.Array, informative: jax.Array) -> ShiftTest:
    z, relative = (jnp.where(informative, x, jnp.nan) for x in (z, relative))
    return ShiftTest(z, ndtr(-z), relative, informative)


def _normal(t: jax.Array, degrees: jax.Array) -> Float[Array, ""]:
    """Convert Student's ``t``, of ``degrees`` degrees of freedom, to a z of about equal p value (Wallace)."""
    degrees = jnp.maximum(degrees, 1)
    size = jnp.sqrt(degrees * jnp.log1p(jnp.square(t) / degrees))
    return jnp.sign(t) * size * (8 * degrees + 1) / (8 * degrees + 3)


def _ratio_test(rows: Rows, moments: Moments) -> ShiftTest:
    num_classes, dim = moments.total.shape
    parts = client_parts(rows, moments)
    label = jnp.where(parts.group >= 0, row_labels(rows), num_classes)
    between = jax.ops.segment_sum(jnp.square(parts.between).sum(1), label, num_classes)
    size = max(1, label.shape[0])
    slot = jnp.where(parts.group >= 0, parts.group, size)
    of_group = jax.ops.segment_max(label, slot, size)
    held = jax.ops.segment_sum(jnp.ones_like(slot), slot, size)
    owner = jnp.where(held > 0, of_group, num_classes)
    clients = jax.ops.segment_sum(jnp.ones_like(owner), owner, num_classes)
    above = jnp.maximum(clients - 1, 0).astype(between.dtype)
    rest = jnp.maximum(moments.num_rows - 1, 0).astype(between.dtype)
    # Degrees of freedom and mean square within each pair of client and class; the pairs are independent.
    degrees = jnp.maximum(held - 1, 0).astype(between.dtype)
    trace = jax.ops.segment_sum(jnp.square(parts.within).sum(1), slot, size)
    piece, terms = divide_or_zero(trace, degrees), (degrees > 0).astype(between.dtype)
    inside = jax.ops.segment_sum(degrees, owner, num_classes)
    level = divide_or_zero(jax.ops.segment_sum(degrees * piece, owner, num_classes), inside)

    seen = (inside > 0) & (above > 0) & (level > 0)
    relative = divide_or_zero(piece, level.at[owner].get(mode="fill", fill_value=0))
    pieces = jax.ops.segment_sum(terms, owner, num_classes)
    spread = jax.ops.segment_sum(degrees * jnp.square(relative - 1), owner, num_classes)
    known = level > 0
    rank = _effective_rank(spread, pieces, inside, known, dim)
    above, level = jnp.where(seen, above, 0), jnp.where(seen, level, 0)
    # Divide by the largest level, so that squares neither overflow nor vanish.
    between, level = (divide_or_zero(x, level.max(initial=0)) for x in (between, level))
    expected = (above * level).sum()
    ratio = divide_or_zero(jnp.where(seen, between, 0).sum(), expected)
    upper = rank * divide_or_zero(jnp.square(expected), (above * jnp.square(level)).sum())
    lower = rank * divide_or_zero(
        jnp.square(expected), divide_or_zero(jnp.square(above * level), inside).sum()
    )
    informative = seen.any()
    first, second = (2 / (9 * jnp.where(informative, x, 1)) for x in (upper, lower))
    root = jnp.cbrt(ratio)
    z = ((1 - second) * root - (1 - first)) / jnp.sqrt(second * jnp.square(root) + first)
    if dim > 1:
        # The standard error of z comes from the estimated rank, so z has Student's distribution, which
        # `_normal` converts.
        z = _normal(z, jnp.where(known, pieces - 1, 0).sum())
    return _test(z, (ratio - 1) * divide_or_zero(expected, (rest * level).sum()), informative)


def _effective_rank(
    spread: jax.Array, pieces: jax.Array, degrees: jax.Array, seen: jax.Array, dim: int
) -> Float[Array, ""]:
    """Estimate the effective rank r = (tr Σ)²/tr Σ² of the covariance Σ within clients.

    In one class, let v_p be the mean square of client p's rows about their mean, with ν_p degrees of freedom,
    ν = Σ_p ν_p, and t = Σ_p ν_p v_p/ν. The larger r is, the less v_p/t varies:
    E[Σ_p ν_p (v_p/t − 1)²] = (P − 1)·2/(r + 2/ν) for P clients with ν_p > 0. The 2/ν arises because t is
    computed from the same v_p.

    Args:
        spread: Σ_p ν_p (v_p/t − 1)² of each class. If all are 0, the estimate is d.
        pieces: P of each class.
        degrees: ν of each class.
        seen: mask of the classes to use.
        dim: d, the number of features.
    """
    spread, pieces, degrees = (jnp.where(seen, x, 0) for x in (spread, pieces, degrees))
    classes = seen.sum().astype(spread.dtype)
    variance = divide_or_zero(spread.sum(), pieces.sum() - classes)
    rank = divide_or_zero(jnp.full_like(variance, 2), variance) - divide_or_zero(2 * classes, degrees.sum())
    return jnp.clip(jnp.where(variance > 0, rank, dim), 1, dim)


def _slope_test(rows: Rows, moments: Moments) -> ShiftTest:
    num_classes = moments.total.shape[0]
    dtype = moments.total.dtype
    # In a class of two rows both have the same ``square``, whatever their counts: such a class says nothing
    # about a slope.
    usable = moments.num_rows > 2
    valid = valid_rows(rows, num_classes)
    row_class = jnp.where(valid, row_labels(rows), 0)
    valid &= usable[row_class]
    label = jnp.where(valid, row_class, num_classes)

    def by_class(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.where(valid, values, 0), label, num_classes)

    def of_class(values: jax.Array) -> jax.Array:
        return values.at[label].get(mode="fill", fill_value=0)

    held = jnp.where(usable, moments.num_rows, 1).astype(dtype)
    count = row_counts(rows, valid)
    total = of_class(moments.count)
    others = jnp.where(valid, total - count, 1).astype(dtype) / jnp.where(valid, total, 1).astype(dtype)
    share = 1 - others
    odds = share / others
    squares = by_class(jnp.square(share))
    signal = count.astype(dtype) * (1 - 2 * share + of_class(squares)) / others
    deviation = centred_rows(rows, moments)
    square = jnp.where(valid, jnp.square(deviation).sum(1) / others, 0)
    level = by_class(square) / held
    average = by_class(signal) / held

    value = divide_or_zero(square, of_class(level)) - valid.astype(square.dtype)
    contrast = jnp.where(valid, signal - of_class(average), 0)
    power = jnp.square(contrast).sum()
    slope = divide_or_zero((contrast * value).sum(), power)
    # The squares u of rows of a class correlate, as all are taken about the same μ_c. The slope's standard
    # error must allow for this. Cov(u_r, u_s) = Var(u) q_r q_s, with the odds q = h/(1 − h) of a row's share
    # h = n_r/N_c.
    odd_sums, odd_squares = by_class(odds), by_class(jnp.square(odds))
    tied = jnp.square(by_class(contrast * odds)) - by_class(jnp.square(contrast * odds))
    factor = divide_or_zero(power + tied.sum(), power)
    free = jnp.where(usable, held - 1 - (jnp.square(odd_sums) - odd_squares) / held, 0).sum() - factor
    degrees = jnp.where(usable, held - 1, 0).sum() - 1
    left = jnp.square(value - slope * contrast).sum()
    error = jnp.sqrt(divide_or_zero(divide_or_zero(left, free) * factor, power))
    # If the rows of each class have equal counts, ``contrast`` is 0 up to rounding, and no slope can be
    # found.
    flat = power <= jnp.square(64 * jnp.finfo(dtype).eps) * jnp.square(signal).sum()
    informative = ~flat & (degrees > 0) & (free > 0) & (error > 0)
    z = _normal(divide_or_zero(slope, error), degrees)

    # The fitted line's intercept gives the scatter without client shift, ``own``; its slope gives what client
    # shift adds, ``shifted``.
    own = (jnp.where(usable, level * (1 - slope * average), 0) * (held - 1)).sum()
    spread = moments.count.astype(dtype) * (1 - squares)
    shifted = jnp.where(usable, slope * level * spread, 0).sum()
    relative = jnp.where(own > 0, shifted / jnp.where(own > 0, own, 1), jnp.inf)
    return _test(z, relative, informative)
