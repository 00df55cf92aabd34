"""Multiply a client's scatter by a few directions without forming the d × d matrix."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.products import product
from covfree.core.sums import deviations, fold_parts
from covfree.core.types import AnyArray
from covfree.statistics.groups import as_examples


class ScatterProducts(NamedTuple):
    """Products of a scatter with directions; they add up over examples.

    Attributes:
        product: S Q for directions Q, with S = Σ_i (f_i − μ_{y_i})(f_i − μ_{y_i})ᵀ, where f_i are the
            features of example i, and μ_{y_i} is the mean of its class.
        trace: tr S.
    """

    product: Float[Array, "dim directions"]
    trace: Float[Array, ""]


def scatter_products(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    mean: Float[Array, "classes dim"],
    directions: Float[Array, "dim directions"],
) -> ScatterProducts:
    """Multiply the scatter of examples about class means by q directions, without forming the scatter.

    A label outside [0, classes) marks padding. It takes 4·n·d·q operations for n examples of d features.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([0, 0])
    >>> found = scatter_products(x, y, jnp.array([[2.0, 1.0]]), jnp.array([[1.0], [0.0]]))
    >>> found.product.ravel().tolist(), float(found.trace)
    ([2.0, 2.0], 4.0)
    """
    features, labels = as_examples(features, labels=labels)
    kept = (labels >= 0) & (labels < mean.shape[0])

    def add(total: ScatterProducts, part: tuple[jax.Array, jax.Array, jax.Array]) -> ScatterProducts:
        features, labels, kept = part
        label = jnp.where(kept, labels, 0)
        centred = deviations(jnp.where(kept[:, None], features, mean[label]), mean[label])
        return ScatterProducts(
            total.product + product(centred.T, product(centred, directions)),
            total.trace + jnp.square(centred).sum(),
        )

    zeros = ScatterProducts(jnp.zeros_like(directions), jnp.zeros((), directions.dtype))
    return fold_parts(add, zeros, (features, labels, kept))
