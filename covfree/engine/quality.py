"""How good features are, by the classifier in closed form that they allow."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.doors import compiled
from covfree.engine.batch import evaluate, solve_rows, summarise
from covfree.methods import fed3r
from covfree.types import AnyArray, Scalar


@compiled(("num_classes",))
def feature_quality(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    test_features: Float[AnyArray, "tests dim"],
    test_labels: Integer[AnyArray, " tests"],
    *,
    num_classes: int,
    ridge: Scalar = 1.0,
) -> Float[Array, ""]:
    """Compute the test accuracy of ridge regression on features: how well they separate classes linearly.

    The result depends on the features alone, not on a trained head or on how examples are spread over
    clients. So it shows, while a backbone is fine-tuned, whether the features improve or only the head does.

    Args:
        features: training features.
        labels: their classes; below 0 is padding.
        test_features: test features.
        test_labels: their classes; below 0 is padding.
        num_classes: C, static.
        ridge: λ, at least 0.

    Returns:
        Accuracy in [0, 1].

    Source: Fed3R (Fanì et al. 2024), section 5.4.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
    >>> float(feature_quality(x, y, x, y, num_classes=2))
    1.0
    """
    method = fed3r(ridge)
    rows = summarise(method, features, labels, jnp.zeros_like(jnp.asarray(labels)))
    head = solve_rows(method, rows, num_classes=num_classes)
    return evaluate(head, test_features, test_labels)
