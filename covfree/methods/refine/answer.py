"""A client's answer in a round of products: its scatter times the directions that it was sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.types import Rows
from covfree.statistics import class_means
from covfree.statistics.gram import scatter_products


class Answer(NamedTuple):
    """A client's scatter matrix times the directions that the server sent; or the sum of such answers.

    Attributes:
        product: the scatter times the directions.
        trace: trace of the scatter.
        degrees: degrees of freedom of the scatter.
    """

    product: Float[Array, "dim asked"]
    trace: Float[Array, ""]
    degrees: Float[Array, ""]


def answer(numbers: Any, sent: tuple[jax.Array, jax.Array | None], rows: Rows, num_classes: int) -> Answer:
    """Compute a client's answer: the product S V of its examples' scatter S with directions V.

    ``sent`` is V, and the class means over all clients or None. With None, S is the scatter about the
    client's own class means, with n − 1 degrees of freedom for a class of n examples. Otherwise S is the
    scatter about the means sent, with one degree of freedom for each example.
    """
    directions, mean = sent
    features, labels = jnp.asarray(rows.mean), jnp.where(jnp.asarray(rows.count) > 0, rows.label, -1)
    if mean is None:
        mean, count = class_means(features, labels, num_classes)
        degrees = jnp.maximum(count - 1, 0)
    else:
        degrees = (labels >= 0) & (labels < num_classes)
    found = scatter_products(features, labels, mean, directions)
    return Answer(found.product, found.trace, degrees.astype(found.trace.dtype).sum())
