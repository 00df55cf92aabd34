"""Residual sketches: random signed sums of a client's residuals, whose squares show its scatter."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.checks import check_positive
from covfree.keys import derive
from covfree.statistics.groups import as_examples
from covfree.statistics.means import class_means
from covfree.statistics.residuals import residuals, senders_of, with_vectors
from covfree.statistics.rows import deal_rows, rows_of
from covfree.types import AnyArray, PRNGKey, Rows


def residual_sketches(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    num_classes: int,
    num_sketches: int,
    *,
    key: PRNGKey,
) -> tuple[Float[Array, "sketches dim"], Integer[Array, ""]]:
    """Signed sums of one client's residuals about its own class means, over all its classes at once.

    y_j = Σ_i ε_ij (f_i − μ_{y_i}) / √m with m sketches and independent random signs ε_ij = ±1. Over the
    signs E[Σ_j y_j y_jᵀ] is exactly the scatter of the client's examples about its means, whatever the data;
    Var of entry (a, b) is (W_aa W_bb + W_ab² − 2 Σ_i r_ia² r_ib²)/m with W that scatter and r the residuals.

    The signs must stay secret: who knows them and the means solves for the examples. A sketch of a client
    with few examples tells much of them, as their means do.

    Args:
        features: features of the client's examples.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static.
        num_sketches: m, static.
        key: PRNG key of the signs.

    Returns:
        The sketches, and the degrees of freedom Σ_c (n_c − 1) of the scatter that they show.

    Raises:
        ValueError: if shapes do not fit or a size is below 1.
        TypeError: if labels are no integers.

    Source: covfree; the random signs are those of Rademacher trace estimators (Hutchinson 1990).

    >>> import jax, jax.numpy as jnp
    >>> x, y = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, 1])
    >>> sketches, degrees = residual_sketches(x, y, 2, 400, key=jax.random.key(0))
    >>> abs(float((sketches**2).sum()) - 2) < 0.3, int(degrees)  # the exact scatter is 2
    (True, 1)
    """
    features, labels = as_examples(features, labels=labels)
    check_positive("num_sketches", num_sketches)
    means, counts = class_means(features, labels, num_classes)
    kept = (labels >= 0) & (labels < num_classes)
    residual = residuals(features, means, jnp.where(kept, labels, num_classes))
    sketches = _signed_sums(residual, jnp.zeros_like(labels), 1, _signs(key, num_sketches, residual))
    return sketches[0], jnp.maximum(counts - 1, 0).sum()


def sketched_rows(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    num_rows: int,
    num_clients: int,
    num_sketches: int,
    num_subsets: int | None = 1,
    subset_size: int = 2,
    key: PRNGKey,
) -> Rows:
    """Class means of all clients, as `client_rows` gives them, and below them their residual sketches.

    A sketch is a row with ``sketch`` set, label −1, the mean y_j = Σ_i ε_ij (f_i − x_{r_i}) / √m, x_{r_i} the
    mean of the row that example i is in, and the count a_k = n_k − (rows of the client): the degrees of
    freedom of the scatter that all m sketches of the client show. It is padding, count 0, where a client has
    one example a row.

    All signs are drawn from the one key. A client alone, with a key of its own, draws others: what it sends
    has the same law, not the same bits.

    Args:
        features: features of all clients' examples, in any order.
        labels: their classes; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        num_rows: see `client_rows`; static.
        num_clients: clients with an example, or any bound on them, static; see `count_clients`.
        num_sketches: m, sketches of a client; static.
        num_subsets: see `client_rows`.
        subset_size: see `client_rows`.
        key: PRNG key of the signs, and of the subsets if there are several.

    Returns:
        ``num_rows + num_clients * num_sketches`` rows. Memory n·d for the residuals beside them.

    Raises:
        ValueError: if shapes do not fit, or ``num_rows`` or ``num_clients`` is too small.
        TypeError: if labels or clients are no integers.

    >>> import jax, jax.numpy as jnp
    >>> x, y, k = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, 1]), jnp.array([7, 7, 2])
    >>> rows = sketched_rows(x, y, k, num_rows=2, num_clients=2, num_sketches=1, key=jax.random.key(0))
    >>> rows.count.tolist(), rows.label.tolist(), rows.client.tolist(), rows.sketch.tolist()
    ([1, 2, 0, 1], [1, 0, -1, -1], [2, 7, 2, 7], [False, False, False, True])
    """
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    check_positive("num_sketches", num_sketches)
    row = deal_rows(labels, clients, num_subsets, subset_size, key)
    means = rows_of(features, labels, clients, row, num_rows)
    senders = senders_of(clients, row, means, num_clients)
    residual = residuals(features, jnp.asarray(means.mean), jnp.where(row >= 0, row, num_rows))
    sketches = _signed_sums(residual, senders.slot, num_clients, _signs(key, num_sketches, residual))
    count = jnp.repeat(senders.hidden[:, None], num_sketches, 1)
    return with_vectors(means, senders.client, sketches, count, -1)


def _signs(
    key: PRNGKey, num_sketches: int, like: Float[Array, "examples dim"]
) -> Float[Array, "sketches examples"]:
    """ε_ij = ±1: of bits, as `jax.random.rademacher` draws others when float64 is enabled."""
    bits = jax.random.bits(derive(key, "signs"), (num_sketches, like.shape[0]), jnp.uint32)
    return 1 - 2 * (bits & 1).astype(like.dtype)


@partial(jax.jit, static_argnames="num_owners")
def _signed_sums(
    residual: Float[Array, "examples dim"],
    owner: Integer[Array, " examples"],
    num_owners: int,
    signs: Float[Array, "sketches examples"],
) -> Float[Array, "owners sketches dim"]:
    """Σ_i ε_ij r_i / √m by owner; one sketch after the other: no [sketches, examples, dim] is made."""

    def one_sketch(sign: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(residual * sign[:, None], owner, num_owners)

    sums = jax.lax.map(one_sketch, signs)
    return jnp.swapaxes(sums, 0, 1) / jnp.sqrt(jnp.asarray(signs.shape[0], sums.dtype))
