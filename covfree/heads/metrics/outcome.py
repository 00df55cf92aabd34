"""Outcome of each example's scores (prediction, confidence, loss), and averages of outcomes over groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_positive
from covfree.core.doors import as_int32
from covfree.core.sums import mean_groups
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


def mean_over(values: Any, kept: Any) -> Float[Array, ""]:
    """Return the mean of the ``values`` where ``kept`` is True; +∞ if one is +∞, NaN if no value is kept."""
    # Use `mean_groups`: a plain sum of a million float32 loses digits. Infinite values would make its result
    # NaN, so they are added afterwards.
    infinite = kept & (values == jnp.inf)
    used = kept & ~infinite
    mean, _ = mean_groups(values[:, None], jnp.where(used, 0, -1), 1)
    return jnp.where(kept.any(), mean[0, 0] + jnp.where(infinite.any(), jnp.inf, 0), jnp.nan)


def accuracy_of(outcome: Outcome) -> Float[Array, ""]:
    """Return the share of correct predictions; NaN without examples."""
    dtype = outcome.confidence.dtype
    return outcome.right.sum().astype(dtype) / outcome.kept.sum().astype(dtype)


def recall_of(outcome: Outcome, classes: int) -> Float[Array, " classes"]:
    """Return for each class the share of its examples that are predicted correctly; NaN without examples."""
    return shares(outcome, outcome.label, outcome.kept, classes)


def ece_of(outcome: Outcome, bins: int) -> Float[Array, ""]:
    """Return the expected calibration error with ``bins`` bins; see `calibration_error`."""
    place = jnp.clip(jnp.ceil(outcome.confidence * bins) - 1, 0, bins - 1).astype(jnp.int32)
    place = jnp.where(outcome.kept, place, -1)
    excess = outcome.right.astype(outcome.confidence.dtype) - outcome.confidence
    gap, count = mean_groups(excess[:, None], place, bins)
    share = count.astype(gap.dtype) / count.sum().astype(gap.dtype)
    return (jnp.abs(gap[:, 0]) * share).sum()


def by_client(outcome: Outcome, clients: Any, num_clients: int) -> Float[Array, " clients"]:
    """Return each client's accuracy, NaN without examples; examples with a client below 0 are left out."""
    clients = as_int32("clients", clients)
    owned = outcome.kept & (clients >= 0)
    # Replace negative clients by an index past the end, which is dropped; −1 would be the last client.
    return shares(outcome, jnp.where(owned, clients, num_clients), owned, num_clients)
