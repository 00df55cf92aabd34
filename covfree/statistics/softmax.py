"""Sum a classifier's softmax loss over examples, with its gradient or at several temperatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Num

from covfree.core.products import product
from covfree.core.sums import fold_parts
from covfree.core.types import AnyArray, accumulation_dtype
from covfree.statistics.groups import as_examples


class SoftmaxSums(NamedTuple):
    """The loss of a classifier and its gradient, summed over examples; the sums of clients add up.

    Example i has features x_i, scores s_ic for each class c, and true class y; it counts n_i times.

    Attributes:
        loss: Σ_i n_i (log Σ_c exp s_ic − s_iy).
        slope: the gradient of the loss with respect to W [dim, classes] and, as last row, a [classes], at
            W = 0 and a = 0, if Wᵀ(x_i − m) + a is added to the scores. m is a fixed centre.
        number: Σ_i n_i, the number of examples.
    """

    loss: Float[Array, ""]
    slope: Float[Array, "dim_plus_1 classes"]
    number: Float[Array, ""]


class ScaledLosses(NamedTuple):
    """The cross-entropy of scores βs, for each of several factors β, summed over examples.

    Example i has scores s_ic for each class c, and true class y; it counts n_i times. Clients' sums add up.

    Attributes:
        loss: Σ_i n_i (log Σ_c exp βs_ic − βs_iy) for each β.
        number: Σ_i n_i, the number of examples.
    """

    loss: Float[Array, " scales"]
    number: Float[Array, ""]


def softmax_sums(
    scores: Callable[[jax.Array, jax.Array], jax.Array],
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    counts: Num[AnyArray, " examples"],
    centre: Float[Array, " dim"],
    num_classes: int,
) -> SoftmaxSums:
    """Sum a classifier's cross-entropy, and its gradient for a linear term that is added to the scores.

    Beside the scores this costs 2·n·d·C operations, and memory for one part of the examples.

    Args:
        scores: the classifier: a function of x and x − m, each [examples, dim], that returns [examples,
            classes]; −∞ for an absent class.
        features: x_i. Half precisions are summed in float32.
        labels: y_i; a label outside [0, classes), or of an absent class, is padding.
        counts: n_i, how often each example counts; 0 for padding.
        centre: m, which a linear term subtracts from the features (see `SoftmaxSums`).
        num_classes: C, static.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0], [3.0]]), jnp.array([0, 1])
    >>> found = softmax_sums(lambda x, _: x * jnp.zeros((1, 2)), x, y, jnp.ones(2), jnp.array([2.0]), 2)
    >>> found.slope.tolist(), round(float(found.loss), 3)
    ([[1.0, -1.0], [0.0, 0.0]], 1.386)
    """

    def add(total: SoftmaxSums, part: tuple[jax.Array, ...]) -> SoftmaxSums:
        own, label, count, centred = _scored(scores, part, centre, num_classes)
        most = jnp.max(own, axis=1, keepdims=True)
        powers = jnp.exp(own - most)
        whole = powers.sum(1, keepdims=True)
        loss = (jnp.log(whole) + most)[:, 0] - jnp.take_along_axis(own, label[:, None], axis=1)[:, 0]
        picked = jnp.arange(num_classes, dtype=label.dtype)[None, :] == label[:, None]
        residual = (powers / whole - picked.astype(own.dtype)) * count[:, None]
        slope = jnp.concatenate([product(centred.T, residual), residual.sum(0)[None, :]])
        return SoftmaxSums(total.loss + (loss * count).sum(), total.slope + slope, total.number + count.sum())

    zero = jnp.zeros((), centre.dtype)
    zeros = SoftmaxSums(zero, jnp.zeros((centre.shape[0] + 1, num_classes), centre.dtype), zero)
    return fold_parts(add, zeros, _examples(features, labels, counts))


def scaled_losses(
    scores: Callable[[jax.Array, jax.Array], jax.Array],
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    counts: Num[AnyArray, " examples"],
    centre: Float[Array, " dim"],
    scales: Float[Array, " scales"],
    num_classes: int,
) -> ScaledLosses:
    """Compute the cross-entropy of softmax(β·scores) for each β in ``scales``, summed over the examples.

    The other arguments are those of `softmax_sums`.
    """

    def add(total: ScaledLosses, part: tuple[jax.Array, ...]) -> ScaledLosses:
        own, label, count, _ = _scored(scores, part, centre, num_classes)
        gap = own - jnp.take_along_axis(own, label[:, None], axis=1)

        def one(scale: jax.Array) -> jax.Array:
            return (jax.nn.logsumexp(scale * gap, axis=1) * count).sum()

        return ScaledLosses(total.loss + jax.lax.map(one, scales), total.number + count.sum())

    zeros = ScaledLosses(jnp.zeros_like(scales), jnp.zeros((), scales.dtype))
    return fold_parts(add, zeros, _examples(features, labels, counts))


def _examples(features: AnyArray, labels: AnyArray, counts: AnyArray) -> tuple[jax.Array, ...]:
    features, labels = as_examples(features, labels=labels)
    return features, labels, jnp.asarray(counts)


def _scored(
    scores: Callable[[jax.Array, jax.Array], jax.Array],
    part: tuple[jax.Array, ...],
    centre: jax.Array,
    num_classes: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the scores, labels, counts and centred features of a part of the examples.

    Scores and counts are 0 for padding and for examples of absent classes.
    """
    features, label, count = part
    kept = (count > 0) & (label >= 0) & (label < num_classes)
    features = features.astype(accumulation_dtype(features))
    features = jnp.where(kept[:, None], features, centre.astype(features.dtype)[None, :])
    centred = jnp.where(kept[:, None], features - centre[None, :], 0)
    own, label = scores(features, centred), jnp.where(kept, label, 0)
    kept = kept & (jnp.take_along_axis(own, label[:, None], axis=1)[:, 0] > -jnp.inf)
    # Set the scores of examples that do not count to 0: a score of −∞ would make their terms NaN.
    own = jnp.where(kept[:, None], own, 0)
    return own, label, jnp.where(kept, count, 0).astype(own.dtype), centred
