"""Compute the leading singular vectors of a client's examples, raw or centred on its class means."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_positive
from covfree.core.compiling import jit
from covfree.core.lapack import eigh
from covfree.core.products import magnitude, product, symmetric_product
from covfree.core.types import DIRECTION, AnyArray, Rows
from covfree.statistics.groups import as_examples
from covfree.statistics.residuals import Senders, residuals, senders_of, with_vectors
from covfree.statistics.rows import deal_rows, rows_of


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
    residual = residuals(features, centres, jnp.where(row >= 0, row, num_rows))
    directions, rest = _of_clients(residual, senders, client_size, num_directions)
    dim, hidden = features.shape[1], senders.hidden[:, None]
    place = jnp.arange(num_directions, dtype=hidden.dtype)[None, :]
    # A direction counts as its degrees of freedom: 1 if q (``num_directions``) < d. If q ≥ d, the client's d
    # directions give its whole scatter: split its a_k (``hidden``) over them as evenly as integers allow.
    share = (hidden + dim - 1 - place) // dim if num_directions >= dim else jnp.minimum(hidden, 1)
    count = jnp.where(place < jnp.minimum(hidden, dim), share, 0)
    rows = with_vectors(means, senders.client, directions, count, DIRECTION)
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
