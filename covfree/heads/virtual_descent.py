"""A softmax head trained by stochastic gradient descent on virtual features, drawn when they are needed."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.keys import derive
from covfree.core.products import product
from covfree.core.types import LinearHead, PRNGKey, Rows, Scalar, masked
from covfree.estimators.moments import row_counts, row_labels, row_means
from covfree.heads.columns import head_for_present
from covfree.heads.virtual import ends_of_draws, root_of

_ROUNDS = 6


def descended_head(
    rows: Rows,
    num_classes: int,
    *,
    epochs: int,
    learning_rate: Scalar,
    momentum: Scalar,
    batch_size: int,
    key: PRNGKey,
) -> LinearHead:
    """Train softmax regression by stochastic gradient descent on virtual features, one for each example.

    Virtual feature i is μ_r + S_r^½ z_i, with μ_r and S_r the mean and covariance of a row r and z_i standard
    normal. There are Σ n_r features (rounded), and rows occur in proportion to their counts n_r, as in
    `sample_rows`. Each epoch uses all features in a random order, in batches; the last batch may be smaller.
    A step, as in PyTorch's SGD, is v ← ρ v + ∇, V ← V − η v, with V the parameters, v the velocity and ∇ the
    gradient of the batch's mean cross-entropy. V and v start at 0. Call this function under ``jit``.

    Only one batch is in memory at a time: z_i is drawn again from the key and i whenever it is needed.

    Args:
        rows: rows with covariances in any form of `sample_rows`, or with none.
        num_classes: C, the number of classes, static.
        epochs: passes over the virtual features, static.
        learning_rate: η.
        momentum: ρ, in [0, 1].
        batch_size: virtual features per step, static.
        key: PRNG key.
    """
    label = row_labels(rows)
    valid = (jnp.asarray(rows.count) > 0) & (label >= 0) & (label < num_classes)
    mean, count = row_means(rows, valid), row_counts(rows, valid)
    number = jnp.round(count.sum()).astype(jnp.int32)
    ends = ends_of_draws(count.astype(mean.dtype), valid, number, derive(key, "offset"))
    roots, dtype = _roots(rows, mean.dtype)
    mean, dim = mean.astype(dtype), mean.shape[1]
    present = jax.ops.segment_sum(valid.astype(jnp.int32), jnp.where(valid, label, num_classes), num_classes)
    noise, orders = derive(key, "normal"), derive(key, "order")

    def draw(place: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the virtual feature with the index ``place``, and its class."""
        row = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
        z = jax.random.normal(jax.random.fold_in(noise, place), (dim,), dtype)
        own = roots.at[row].get(mode="fill", fill_value=0)
        moved = product(own, z[:, None])[:, 0] if own.ndim == 2 else own * z
        return mean.at[row].get(mode="fill", fill_value=0) + moved, label.at[row].get(mode="clip")

    def step(turn: Any, carry: tuple[LinearHead, LinearHead]) -> tuple[LinearHead, LinearHead]:
        head, velocity = carry
        epoch, first = turn // per_epoch, turn % per_epoch * batch_size
        places = first + jnp.arange(batch_size, dtype=jnp.int32)
        kept = places < number
        order = jax.random.fold_in(orders, epoch)
        turns = jax.vmap(partial(shuffled, number=number, key=order))(jnp.where(kept, places, 0))
        features, labels = jax.vmap(draw)(turns)
        scores = masked(product(features, head.weight) + head.bias[None, :], present.astype(dtype))
        picked = jnp.arange(num_classes, dtype=labels.dtype)[None, :] == labels[:, None]
        residual = jnp.where(kept[:, None], jax.nn.softmax(scores) - picked.astype(dtype), 0)
        residual = residual / jnp.maximum(kept.sum(), 1).astype(dtype)
        slope = LinearHead(product(features.T, residual), residual.sum(0))
        velocity = jax.tree.map(lambda v, g: (momentum * v).astype(v.dtype) + g, velocity, slope)
        return jax.tree.map(lambda x, v: x - (learning_rate * v).astype(x.dtype), head, velocity), velocity

    per_epoch = -(-number // batch_size)
    start = LinearHead(jnp.zeros((dim, num_classes), dtype), jnp.zeros(num_classes, dtype))
    head, _ = jax.lax.fori_loop(0, epochs * per_epoch, step, (start, start))
    return head_for_present(head.weight, head.bias, present > 0)


def _roots(rows: Rows, dtype: Any) -> tuple[Float[Array, "rows ..."], Any]:
    """Return, for each row, the factor that turns standard normal noise into noise with the row's covariance.

    The factor is a square root of the covariance: a matrix if that is a matrix, else a standard deviation,
    one for each feature or one for all. It is 0 if rows have no covariance. The second result is the data
    type of the virtual features that are drawn with these factors.
    """
    if rows.covariance is None:
        return jnp.zeros_like(jnp.asarray(rows.count), dtype), dtype
    covariance = jnp.asarray(rows.covariance)
    dtype = jnp.promote_types(dtype, covariance.dtype)
    covariance = covariance.astype(dtype)
    if covariance.ndim == 3:
        return jax.lax.map(root_of, covariance), dtype
    return jnp.sqrt(jnp.maximum(covariance, 0)), dtype


def shuffled(place: Integer[Array, ""], number: Any, key: PRNGKey) -> Integer[Array, ""]:
    """Return entry ``place`` of a random permutation of 0, …, number − 1, which is never stored.

    A Feistel network permutes the integers below the next power of 4. A result of ``number`` or above is
    permuted again, until it is below.

    >>> import jax, jax.numpy as jnp
    >>> take = jax.vmap(lambda place: shuffled(place, 5, jax.random.key(0)))
    >>> sorted(take(jnp.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = jax.random.bits(key, (_ROUNDS,), jnp.uint32)
    size = jnp.maximum(jnp.asarray(number, jnp.uint32), 1)
    half = (33 - jax.lax.clz(size - jnp.uint32(1))) // jnp.uint32(2)
    half = jnp.maximum(half, 1)
    low = (jnp.uint32(1) << half) - jnp.uint32(1)

    def permuted(value: jax.Array) -> jax.Array:
        left, right = value >> half, value & low
        for own in keys:
            # Mix the bits by the final steps of MurmurHash3, without the first shift.
            mixed = (right ^ own) * jnp.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
            left, right = right, left ^ ((mixed ^ (mixed >> jnp.uint32(16))) & low)
        return (left << half) | right

    outside = jax.lax.while_loop(
        lambda x: x >= size, permuted, permuted(jnp.asarray(place).astype(jnp.uint32))
    )
    return outside.astype(jnp.int32)
