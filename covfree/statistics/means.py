"""Compute the class means that a client of FedNCM or FedCOF sends, and the covariances of CCVR."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.doors import compiled
from covfree.core.products import symmetric_product
from covfree.core.sums import mean_groups
from covfree.core.types import AnyArray, accumulation_dtype
from covfree.statistics.groups import as_examples, check_one_client


@compiled(("num_classes",), check=check_one_client, padded={"features": 0, "labels": -1})
def class_means(
    features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"], num_classes: int
) -> tuple[Float[Array, "classes dim"], Integer[Array, " classes"]]:
    """Compute the mean feature and the number of examples of each class, for one client.

    Args:
        features: features of the client's examples. Half precisions are summed in float32.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static.

    Returns:
        Means (0 for an absent class) and counts. If a class's features sum to 0 within rounding, its mean is
        exactly 0. Batch over clients with ``jax.vmap``.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if features are no floats or labels no integers.

    Source: FedNCM (Legate et al. 2023); FedCOF (Goswami et al. 2024), section 3.

    >>> import jax.numpy as jnp
    >>> means, counts = class_means(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, 2]), 3)
    >>> means.ravel().tolist(), counts.tolist()
    ([2.0, 0.0, 9.0], [2, 0, 1])
    """
    features, labels = as_examples(features, labels=labels)
    return mean_groups(features, labels, num_classes)


@compiled(("num_classes",), check=check_one_client, padded={"features": 0, "labels": -1})
def class_covariances(
    features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"], num_classes: int
) -> Float[Array, "classes dim dim"]:
    """Compute the unbiased sample covariance of each class, for one client.

    S_kc = Σ_i (f_i − μ_kc)(f_i − μ_kc)ᵀ / (n_kc − 1) over client k's n_kc examples f_i of class c, with
    mean μ_kc; 0 if n_kc < 2. Classes are computed one at a time: memory beyond the result is n·d numbers.

    Args:
        features: features of the client's examples.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static. The result has C·d² numbers, so use it with few classes.

    Returns:
        Covariances. Equivalent to ``numpy.cov(features[labels == c], rowvar=False)`` for each class c.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if features are no floats or labels no integers.

    >>> import jax.numpy as jnp
    >>> class_covariances(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, 1]), 2).ravel().tolist()
    [2.0, 0.0]
    """
    features, labels = as_examples(features, labels=labels)
    means, counts = class_means(features, labels, num_classes)
    values = features.astype(accumulation_dtype(features))

    def one_class(operand: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        label, mean, count = operand
        centred = jnp.where((labels == label)[:, None], values - mean[None, :], 0)
        return symmetric_product(centred) / jnp.maximum(count - 1, 1).astype(values.dtype)

    return jax.lax.map(one_class, (jnp.arange(num_classes, dtype=jnp.int32), means, counts))
