"""Outcome of each example's scores (prediction, confidence, loss), and accuracies of groups of examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_positive
from covfree.core.doors import as_int32
from covfree.core.types import accumulation_dtype, is_traced


def check_scores(scores: Any, labels: Any, clients: Any = None, **sizes: Any) -> None:
    """Raise TypeError or ValueError if an array has a wrong type, shape or value, or a size is below 1.

    Values of traced arrays are not checked.
    """
    for name, array in (("scores", scores), ("labels", labels), ("clients", clients)):
        if array is not None and not hasattr(array, "dtype"):
            raise TypeError(f"{name}: expected an array, got {type(array).__name__}")
    if not jnp.issubdtype(jnp.result_type(scores), jnp.floating):
        raise TypeError(f"scores: expected floats, got {jnp.result_type(scores)}")
    shape = np.shape(scores)
    if len(shape) != 2 or shape[1] < 1:
        raise ValueError(
            f"scores: expected shape [examples, classes] with a class at least, got {list(shape)}"
        )
    for name, array in (("labels", labels), ("clients", clients)):
        if array is None:
            continue
        if not jnp.issubdtype(jnp.result_type(array), jnp.integer):
            raise TypeError(f"{name}: expected integers, got {jnp.result_type(array)}")
        if np.shape(array) != shape[:1]:
            raise ValueError(
                f"{name}: expected shape {list(shape[:1])}, one for each row of scores, got "
                f"{list(np.shape(array))}"
            )
    if not is_traced(labels) and (largest := np.max(np.asarray(labels), initial=0)) >= shape[1]:
        raise ValueError(
            f"labels: expected labels below {shape[1]}, the number of columns of scores, got {largest}"
        )
    for name, size in sizes.items():
        check_positive(name, size)
    number = sizes.get("num_clients")
    if number is None or clients is None or is_traced(clients):
        return
    if (largest := np.max(np.asarray(clients), initial=0)) >= number:
        raise ValueError(f"clients: expected numbers below num_clients = {number}, got {largest}")


class Outcome(NamedTuple):
    """The outcome of each example's scores; every field has one entry per example.

    Attributes:
        label: the class; C for padding, so that ``.at[label].add(…, mode="drop")`` ignores it.
        predicted: the class with the largest score; C if no score is above −∞.
        kept: False for padding.
        confidence: probability of the predicted class; 0 if all scores are −∞, NaN if one is NaN.
        loss: −log of the label's probability; +∞ if this probability is 0.
    """

    label: Integer[Array, " examples"]
    predicted: Integer[Array, " examples"]
    kept: Bool[Array, " examples"]
    confidence: Float[Array, " examples"]
    loss: Float[Array, " examples"]

    @property
    def right(self) -> Bool[Array, " examples"]:
        """Whether the prediction is the label; False for padding."""
        return self.kept & (self.label == self.predicted)


def outcome_of(scores: Any, labels: Any) -> Outcome:
    """Compute the `Outcome` (prediction, confidence, loss) of examples, from scores [examples, classes]."""
    scores, labels = jnp.asarray(scores), as_int32("labels", labels)
    scores = scores.astype(accumulation_dtype(scores))
    classes = scores.shape[1]
    kept = (labels >= 0) & (labels < classes)
    # Set the scores of padding to 0: NaN in them would reach gradients.
    scores = jnp.where(kept[:, None], scores, 0)
    largest = scores.max(1)
    # Subtract the largest score first: next to scores of 1e8, log C would be lost in rounding.
    shifted = scores - jax.lax.stop_gradient(jnp.where(largest == -jnp.inf, 0, largest))[:, None]
    total = jax.nn.logsumexp(shifted, axis=1)
    own = jnp.take_along_axis(shifted, jnp.where(kept, labels, 0)[:, None], axis=1)[:, 0]
    return Outcome(
        label=jnp.where(kept, labels, classes),
        # A comparison with NaN is False, so an example with a NaN score has no prediction.
        predicted=jnp.where(largest > -jnp.inf, scores.argmax(1), classes).astype(jnp.int32),
        kept=kept,
        confidence=jnp.where(largest == -jnp.inf, 0, jnp.exp(shifted.max(1) - total)),
        loss=jnp.where(own == -jnp.inf, jnp.inf, total - own),
    )


def shares(outcome: Outcome, group: Any, among: Any, size: int) -> Float[Array, " groups"]:
    """Return the share of correct predictions in each group of examples, such as each class.

    ``group`` is the number of each example's group; an example with ``size`` or above is in none. ``among``
    is a mask of the examples that count. A group without any has NaN.
    """
    right, every = (
        jnp.zeros(size, jnp.int32).at[group].add(part.astype(jnp.int32), mode="drop")
        for part in (outcome.right, among)
    )
    dtype = outcome.confidence.dtype
    return right.astype(dtype) / every.astype(dtype)
