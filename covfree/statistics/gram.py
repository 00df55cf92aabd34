"""Compute the Gram matrix and class sums that a client of Fed3R sends."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.doors import compiled
from covfree.core.products import symmetric_product
from covfree.core.sums import fold_parts, sum_groups
from covfree.core.types import AnyArray, accumulation_dtype
from covfree.statistics.groups import as_examples, check_one_client


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GramStatistics:
    """What a client of Fed3R sends: sums over its examples. The server adds them up over clients.

    Attributes:
        gram: A = F Fᵀ = Σ_i f_i f_iᵀ; the columns of F are the examples' features f_i.
        class_sum: for each class, the sum of its examples' features; the transpose of the paper's b.
        count: the number of examples of each class.
    """

    gram: Float[Array, "dim dim"]
    class_sum: Float[Array, "classes dim"]
    count: Integer[Array, " classes"]


@compiled(("num_classes",), check=check_one_client, padded={"features": 0, "labels": -1})
def gram(
    features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"], num_classes: int
) -> GramStatistics:
    """Compute the Gram matrix F Fᵀ, class sums and counts of one client; F has features as columns.

    Args:
        features: features of the client's examples. Half precisions are summed in float32.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static.

    Returns:
        The statistics. Batch over clients with ``jax.vmap``; add them up with ``jax.tree.map``.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if features are no floats or labels no integers.

    Source: Fed3R (Fanì et al. 2024), eq. 5 and 6.

    >>> import jax.numpy as jnp
    >>> gram(jnp.array([[1.0, 2.0]]), jnp.array([0]), 1).gram.tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    features, labels = as_examples(features, labels=labels)
    dtype = accumulation_dtype(features)

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> jax.Array:
        values, labels = part
        kept = (labels >= 0) & (labels < num_classes)
        return total + symmetric_product(jnp.where(kept[:, None], values, 0).astype(dtype))

    zeros = jnp.zeros((features.shape[1],) * 2, dtype)
    sums, count = sum_groups(features, labels, num_classes)
    return GramStatistics(fold_parts(add, zeros, (features, labels)), sums, count)
