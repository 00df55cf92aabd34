"""Compute the leading singular vectors of a client's examples, raw or centred on its class means."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_positive
from covfree.core.compiling import jit
from covfree.core.lapack import eigh
from covfree.core.products import magnitude, product, symmetric_product
from covfree.core.sums import deviations
from covfree.core.types import DIRECTION, AnyArray, Rows, accumulation_dtype, is_traced
from covfree.statistics.groups import as_examples, subset_groups
from covfree.statistics.rows import deal_rows, rows_of


def count_clients(labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]) -> int:
    """Count the clients that have an example, on the host."""
    labels, clients = np.asarray(labels), np.asarray(clients)
    return len(np.unique(clients[(labels >= 0) & (clients >= 0)]))


class Senders(NamedTuple):
    """The clients that have an example, numbered from 0 in the order of their original numbers.

    Attributes:
        slot: the new number of each example's client; ``len(client)`` for padding.
        size: the number of examples of each client.
        client: each client's original number; −1 in entries without a client.
        hidden: a_k, client k's number of examples minus its number of class means: the degrees of freedom of
            its residuals (examples minus their class mean).
    """

    slot: Integer[Array, " examples"]
    size: Integer[Array, " clients"]
    client: Integer[Array, " clients"]
    hidden: Integer[Array, " clients"]


def senders_of(
    clients: Integer[Array, " examples"],
    row: Integer[Array, " examples"],
    means: Rows,
    num_clients: int,
    client_size: int | None = None,
) -> Senders:
    """Renumber the clients that have examples as 0, 1, …, and count each one's examples (see `Senders`).

    ``clients`` has each example's client. ``means`` are the clients' class means, and ``row`` has, for each
    example, the index of its client's mean of its class in ``means``; −1 for padding. Outside ``jit``, a
    ValueError is raised if there are over ``num_clients`` clients, or one has over ``client_size`` examples.
    """
    check_positive("num_clients", num_clients)
    kept, num_rows = row >= 0, len(means.count)
    owner = subset_groups((clients,), kept, 1, None)
    if not is_traced(owner) and owner.max(initial=-1) >= num_clients:
        raise ValueError(
            f"num_clients: {num_clients} cannot hold all clients: there are {int(owner.max()) + 1}; "
            "see count_clients"
        )
    slot = jnp.where(kept, owner, num_clients)
    # ``hidden``, a client's degrees of freedom, is its number of examples minus its number of rows: each
    # class mean that is subtracted from examples takes one.
    owner_of_row = jax.ops.segment_max(slot, jnp.where(kept, row, num_rows), num_rows)
    seen = means.count > 0
    size = jax.ops.segment_sum(kept.astype(jnp.int32), slot, num_clients)
    if client_size is not None and not is_traced(size) and size.max() > client_size:
        raise ValueError(
            f"client_size: {client_size} cannot hold the examples of all clients: one has {int(size.max())}"
        )
    hidden = size - jax.ops.segment_sum(
        seen.astype(jnp.int32), jnp.where(seen, owner_of_row, num_clients), num_clients
    )
    client = jnp.where(size > 0, jax.ops.segment_max(clients, slot, num_clients), -1)
    return Senders(slot, size, client, hidden)


def directed_rows(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    num_rows: int,
    num_clients: int,
    client_size: int,
    num_directions: int,
    centred: bool = True,
) -> Rows:
    """Compute all clients' class means, as `client_rows` does, followed by their residual directions.

    A client's residuals f_i − μ_{y_i}, its examples minus their class means, are the rows of a matrix R with
    singular values s_1 ≥ s_2 ≥ … and right singular vectors v_j. Direction j is the vector s_j v_j, with the
    sign that makes its entry of largest size positive. With q directions the server knows
    Σ_{j ≤ q} s_j² v_j v_jᵀ, the matrix of rank q that is nearest to the scatter RᵀR; RᵀR minus this sum is
    positive semi-definite. The sum equals RᵀR if q ≥ a_k = Σ_c (n_c − 1), where client k has n_c examples of
    class c. Directions reveal more about examples than their number suggests: if a client has two examples of
    a class, their mean and a direction determine both, up to their order.

    In the result, a direction is a row with ``sketch`` True, label −2 and the mean s_j v_j. A client sends
    min(q, a_k, d) directions; the other rows are padding. The count of a direction is its degrees of freedom:
    1 if q < d. If q ≥ d, the directions give the scatter exactly, and a_k is split over them (shares differ
    by at most 1).

    If not ``centred``, the rows of R are the client's n_k examples themselves, and n_k takes the place of
    a_k. Then Σ_{j ≤ q} s_j² v_j v_jᵀ is the matrix of rank q that is nearest to their Gram matrix. The
    ``covariance`` of the client's first direction is Σ_{j > q} s_j⁴ / Σ_{j > q} s_j², a weighted mean of the
    eigenvalues s_j² left out; other rows have 0.

    Clients are computed one after another. Each costs a product of size n·d·m and an ``eigh`` of size m, with
    n = ``client_size`` and m = min(n, d), however few examples it has.

    Args:
        features: features of all clients' examples, in any order.
        labels: their classes; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        num_rows: see `client_rows`; static.
        num_clients: the number of clients with an example (`count_clients`), or an upper bound, static.
        client_size: the number of examples of the largest client, or an upper bound, static.
        num_directions: q, the largest number of directions of a client; static.
        centred: whether the class means are subtracted from examples, as in R; static.

    Returns:
        ``num_rows + num_clients * num_directions`` rows.

    Source: covfree. Equivalent to ``numpy.linalg.svd`` of the residuals, truncated.

    >>> import jax.numpy as jnp
    >>> x, y, k = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, 1]), jnp.array([7, 7, 2])
    >>> rows = directed_rows(x, y, k, num_rows=2, num_clients=2, client_size=2, num_directions=1)
    >>> rows.count.tolist(), rows.label.tolist(), rows.client.tolist(), rows.sketch.tolist()
    ([1, 2, 0, 1], [1, 0, -1, -2], [2, 7, 2, 7], [False, False, False, True])
    """
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    check_positive("num_directions", num_directions)
    check_positive("client_size", client_size)
    row = deal_rows(labels, clients, 1, 2, None)
    means = rows_of(features, labels, clients, row, num_rows)
    senders = senders_of(clients, row, means, num_clients, client_size)
    if not centred:
        senders = senders._replace(hidden=senders.size)
    centres = jnp.asarray(means.mean) if centred else jnp.zeros_like(means.mean)
    values = jnp.where((row >= 0)[:, None], features, 0).astype(accumulation_dtype(features))
    group = jnp.where(row >= 0, row, num_rows)
    residual = deviations(values, centres.at[group].get(mode="fill", fill_value=0))
    directions, rest = _of_clients(residual, senders, client_size, num_directions)
    dim, hidden = features.shape[1], senders.hidden[:, None]
    place = jnp.arange(num_directions, dtype=hidden.dtype)[None, :]
    # A direction counts as its degrees of freedom: 1 if q (``num_directions``) < d. If q ≥ d, the client's d
    # directions give its whole scatter: split its a_k (``hidden``) over them as evenly as integers allow.
    share = (hidden + dim - 1 - place) // dim if num_directions >= dim else jnp.minimum(hidden, 1)
    count = jnp.where(place < jnp.minimum(hidden, dim), share, 0)
    count = count.reshape(-1)
    rows = Rows(
        mean=jnp.concatenate([means.mean, directions.reshape(-1, dim)]),
        count=jnp.concatenate([means.count, count]),
        label=jnp.concatenate([means.label, jnp.where(count > 0, DIRECTION, -1).astype(jnp.int32)]),
        client=jnp.concatenate([cast(jax.Array, means.client), jnp.repeat(senders.client, num_directions)]),
        sketch=jnp.concatenate([jnp.zeros(num_rows, bool), count > 0]),
    )
    if centred:
        return rows
    first = jnp.where(place == 0, rest[:, None], 0).reshape(-1)
    return replace(rows, covariance=jnp.concatenate([jnp.zeros(num_rows, first.dtype), first]))


@partial(jit, static_argnames=("client_size", "num_directions"))
def _of_clients(
    residual: Float[Array, "examples dim"],
    senders: Senders,
    client_size: int,
    num_directions: int,
) -> tuple[Float[Array, "clients directions dim"], Float[Array, " clients"]]:
    if residual.shape[0] == 0:
        shape = len(senders.size), num_directions, residual.shape[1]
        return jnp.zeros(shape, residual.dtype), jnp.zeros(shape[0], residual.dtype)
    order, within = jnp.argsort(senders.slot), jnp.arange(client_size, dtype=jnp.int32)

    def one_client(operand: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, size, degrees = operand
        mine = residual.at[order.at[start + within].get(mode="clip")].get(mode="clip")
        return _leading(jnp.where((within < size)[:, None], mine, 0), num_directions, degrees)

    def or_nothing(operand: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # ``num_clients`` may far exceed the number of clients: skip the absent ones.
        nothing = (
            jnp.zeros((num_directions, residual.shape[1]), residual.dtype),
            jnp.zeros((), residual.dtype),
        )
        return jax.lax.cond(operand[2] > 0, one_client, lambda _: nothing, operand)

    start = jnp.cumsum(senders.size) - senders.size
    return jax.lax.map(or_nothing, (start, senders.size, senders.hidden))


def _leading(
    residual: Float[Array, "examples dim"], number: int, degrees: Integer[Array, ""]
) -> tuple[Float[Array, "directions dim"], Float[Array, ""]]:
    """Compute the first ``number`` scaled singular vectors s_j v_j of R = ``residual``, the largest first.

    Also return Σ s_j⁴ / Σ s_j² over all later j. The s_j are singular values of R, and the v_j its right
    singular vectors, as in `directed_rows`. Each s_j with j > ``degrees`` counts as 0. The smaller of R Rᵀ
    and RᵀR is decomposed.
    """
    examples, dim = residual.shape
    if examples == 0:
        return jnp.zeros((number, dim), residual.dtype), jnp.zeros((), residual.dtype)
    unit = magnitude(residual)
    scaled = residual / unit
    smaller = symmetric_product(scaled.T if examples <= dim else scaled)
    values, vectors = (x[..., ::-1] for x in eigh(smaller))
    leading = vectors[:, :number].T
    if examples <= dim:
        # For an eigenvector u_j of R Rᵀ, u_jᵀR is the direction s_j v_j with its length. Do not take the
        # length from the eigenvalue s_j², which has the rounding error of R Rᵀ.
        rows = product(leading, scaled)
    else:
        shown = values[:number]
        rows = jnp.where(shown > 0, jnp.sqrt(jnp.where(shown > 0, shown, 1)), 0)[:, None] * leading
    # The client's residuals have at most ``degrees`` singular values above 0. Leave out
    # further ones, which are rounding.
    beyond = jnp.arange(len(values), dtype=degrees.dtype)
    others = jnp.where((beyond >= number) & (beyond < degrees), jnp.maximum(values, 0), 0)
    trace = others.sum()
    left_out = jnp.square(others).sum() / jnp.where(trace > 0, trace, 1)
    # Fix the sign (entry of largest size positive), so that the order of examples does not matter.
    peak = jnp.take_along_axis(rows, jnp.abs(rows).argmax(1, keepdims=True), axis=1)
    rows = jnp.where(peak < 0, -rows, rows) * unit
    rows = jnp.where(beyond[: rows.shape[0], None] < degrees, rows, 0)
    return jnp.pad(rows, [(0, number - rows.shape[0]), (0, 0)]), left_out * unit * unit
