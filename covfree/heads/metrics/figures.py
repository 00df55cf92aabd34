"""Metrics as compiled functions of scores and labels; and many of them at once, by their names."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.compiling import jit
from covfree.core.doors import as_int32, compiled, consecutive
from covfree.core.sums import mean_groups
from covfree.core.types import AnyArray
from covfree.heads.metrics.outcome import check_scores, outcome_of, shares

# The metrics that `measure` accepts, in the order of tables; CLIENT_NAMES need each example's client.
NAMES = ("accuracy", "balanced", "worst_class", "nll", "ece", "mean_client", "worst_client", "p10_client")
CLIENT_NAMES = ("mean_client", "worst_client", "p10_client")


@compiled(check=check_scores)
def accuracy(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, ""]:
    """Compute the share of examples whose true class has the largest score, in [0, 1].

    Args:
        scores: a head's scores; −∞ for a class that it does not know.
        labels: classes; below 0 is padding.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape is wrong, or a label is C, the number of classes, or above.

    Equivalent to `covfree.evaluate`, which takes the head instead of its scores.

    >>> import jax.numpy as jnp
    >>> accuracy(jnp.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), jnp.array([0, 1, 1])).round(4)
    Array(0.6667, dtype=float32)
    """
    outcome = outcome_of(scores, labels)
    dtype = outcome.confidence.dtype
    return outcome.right.sum().astype(dtype) / outcome.kept.sum().astype(dtype)


@compiled(check=check_scores)
def class_recall(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, " classes"]:
    """Compute the accuracy of each class: the share of its examples that are predicted correctly.

    Arguments and errors are those of `accuracy`. A class without examples has NaN.
    """
    outcome = outcome_of(scores, labels)
    return shares(outcome, outcome.label, outcome.kept, jnp.shape(scores)[1])


@compiled(check=check_scores)
def class_precision(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, " classes"]:
    """Compute the precision of each class: the share of its predictions that are correct.

    Arguments and errors are those of `accuracy`. A class that is never predicted has NaN.
    """
    outcome = outcome_of(scores, labels)
    return shares(outcome, outcome.predicted, outcome.kept, jnp.shape(scores)[1])


@compiled(check=check_scores)
def balanced_accuracy(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, ""]:
    """Compute the mean over classes of `class_recall`, so that every class counts equally.

    Classes without examples in ``labels`` are left out. Arguments and errors are those of `accuracy`.

    Equivalent to ``sklearn.metrics.balanced_accuracy_score``.
    """
    return jnp.nanmean(class_recall(scores, labels))


@compiled(check=check_scores)
def confusion_matrix(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Integer[Array, "classes classes"]:
    """Count the examples of each class (row) that are predicted as each class (column).

    An example without a prediction is in no column. Arguments and errors are those of `accuracy`.

    >>> import jax.numpy as jnp
    >>> confusion_matrix(jnp.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), jnp.array([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    outcome = outcome_of(scores, labels)
    counts = jnp.zeros((jnp.shape(scores)[1],) * 2, jnp.int32)
    return counts.at[outcome.label, outcome.predicted].add(1, mode="drop")


@compiled(check=check_scores)
def nll(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, ""]:
    """Compute the mean of −log softmax(scores)[label], the negative log-likelihood, in nats.

    It is +∞ if an example's true class has a score of −∞, and NaN if a score is NaN. Some heads' scores, such
    as those of `ridge_head`, are no log-probabilities until they are calibrated (`calibrate_temperature`).
    Arguments and errors are those of `accuracy`.

    >>> import jax.numpy as jnp
    >>> nll(jnp.array([[0.0, 0.0, -jnp.inf]]), jnp.array([1])).round(4)  # log 2
    Array(0.6931, dtype=float32)
    """
    outcome = outcome_of(scores, labels)
    # Use `mean_groups`: a plain sum of a million float32 loses digits. Infinite losses would make its result
    # NaN, so they are added afterwards.
    infinite = outcome.kept & (outcome.loss == jnp.inf)
    mean, _ = mean_groups(outcome.loss[:, None], jnp.where(outcome.kept & ~infinite, 0, -1), 1)
    return jnp.where(outcome.kept.any(), mean[0, 0] + jnp.where(infinite.any(), jnp.inf, 0), jnp.nan)


@compiled(("bins",), check=check_scores)
def calibration_error(
    scores: Float[AnyArray, "examples classes"], labels: Integer[AnyArray, " examples"], *, bins: int = 15
) -> Float[Array, ""]:
    """Compute the expected calibration error, the mean gap between confidence and accuracy, in [0, 1].

    The confidence of an example is the largest entry of softmax(scores). Bin m of M holds those n_m of the n
    examples that have a confidence in ((m − 1)/M, m/M]. Then

        ECE = Σ_m n_m/n · |share of correct predictions in bin m − mean confidence in bin m|.

    Errors are those of `accuracy`.

    Args:
        scores: see `accuracy`.
        labels: see `accuracy`.
        bins: M, the number of bins, static.

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, eq. 3; they use 15 bins too.

    >>> import jax.numpy as jnp
    >>> scores = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1]]))  # sure of 0.9, right in one of two
    >>> print(f"{calibration_error(scores, jnp.array([0, 1])):.3f}")
    0.400
    """
    outcome = outcome_of(scores, labels)
    place = jnp.clip(jnp.ceil(outcome.confidence * bins) - 1, 0, bins - 1).astype(jnp.int32)
    place = jnp.where(outcome.kept, place, -1)
    excess = outcome.right.astype(outcome.confidence.dtype) - outcome.confidence
    gap, count = mean_groups(excess[:, None], place, bins)
    share = count.astype(gap.dtype) / count.sum().astype(gap.dtype)
    return (jnp.abs(gap[:, 0]) * share).sum()


@compiled(("num_clients",), check=check_scores)
def client_accuracy(
    scores: Float[AnyArray, "examples classes"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    num_clients: int,
) -> Float[Array, " clients"]:
    """Compute the accuracy on each client's examples.

    `covfree.finetune.client_accuracy` is for models that differ from client to client.

    Args:
        scores: a head's scores; −∞ for a class that it does not know.
        labels: classes; below 0 is padding.
        clients: the client of each example, below ``num_clients``; below 0 if it belongs to no client.
        num_clients: K, the number of clients, static.

    Returns:
        Accuracies in [0, 1]; NaN for a client without examples. Take their minimum by ``jnp.nanmin``, and
        percentiles by ``jnp.nanpercentile``.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape is wrong, a label is C or above, or a client K or above.

    >>> import jax.numpy as jnp
    >>> scores, labels = jnp.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), jnp.array([0, 1, 1])
    >>> client_accuracy(scores, labels, jnp.array([0, 2, 2]), num_clients=3)
    Array([1. , nan, 0.5], dtype=float32)
    """
    outcome, clients = outcome_of(scores, labels), as_int32("clients", clients)
    owned = outcome.kept & (clients >= 0)
    # Replace negative clients by an index past the end, which is dropped; −1 would be the last client.
    return shares(outcome, jnp.where(owned, clients, num_clients), owned, num_clients)


def measure(
    scores: Float[AnyArray, "examples classes"],
    labels: Integer[AnyArray, " examples"],
    names: tuple[str, ...] | list[str] = NAMES,
    *,
    clients: Integer[AnyArray, " examples"] | None = None,
) -> dict[str, float]:
    """Compute metrics by name, as Python floats, in the order of ``names``.

    | Name | Figure |
    |---|---|
    | ``accuracy`` | `accuracy` |
    | ``balanced`` | `balanced_accuracy` |
    | ``worst_class`` | the smallest entry of `class_recall` |
    | ``nll`` | `nll`, in nats |
    | ``ece`` | `calibration_error` with 15 bins |
    | ``mean_client`` | the mean of `client_accuracy` over clients that have an example |
    | ``worst_client`` | the smallest entry of `client_accuracy` |
    | ``p10_client`` | the 10th percentile of `client_accuracy`, with linear interpolation |

    Args:
        scores: a head's scores, in memory; −∞ for a class that it does not know.
        labels: classes; below 0 is padding.
        names: some of ``NAMES``.
        clients: the client of each example, integers of any size; below 0 if it belongs to no client. Needed
            for the names in ``CLIENT_NAMES``.

    Returns:
        The metrics by name, as Python floats (so not under ``jit``); NaN for a mean without examples.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a name is unknown or needs ``clients``, a shape is wrong, or a label is C or above.

    >>> import jax.numpy as jnp
    >>> scores, labels = jnp.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), jnp.array([0, 1, 1])
    >>> measure(scores, labels, ["balanced", "worst_client"], clients=jnp.array([0, 2, 2]))
    {'balanced': 0.75, 'worst_client': 0.5}
    """
    if isinstance(names, str):
        raise TypeError(f"names: expected several names, such as [{names!r}], got {names!r}")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"names: expected some of {', '.join(NAMES)}, got {name!r}")
        if name in CLIENT_NAMES and clients is None:
            raise ValueError(f"names: {name} needs the client of each example, got clients = None")
    check_scores(scores, labels, clients)
    number = 1
    if clients is not None:
        clients = consecutive(np.asarray(clients))
        # Round up to a power of two, so that similar numbers of clients share a compiled function.
        number = 1 << int(clients.max(initial=0)).bit_length()
    # Convert before `jit`, so that an integer beyond int32 raises an error.
    labels = as_int32("labels", labels)
    figures = _measure(scores, labels, clients, names=tuple(names), num_clients=number)
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


@partial(jit, static_argnames=("names", "num_clients"))
def _measure(scores: Any, labels: Any, clients: Any, *, names: tuple[str, ...], num_clients: int) -> Any:
    def of_clients() -> Array:
        return client_accuracy(scores, labels, clients, num_clients=num_clients)

    figures = {
        "accuracy": lambda: accuracy(scores, labels),
        "balanced": lambda: balanced_accuracy(scores, labels),
        "worst_class": lambda: jnp.nanmin(class_recall(scores, labels)),
        "nll": lambda: nll(scores, labels),
        "ece": lambda: calibration_error(scores, labels),
        "mean_client": lambda: jnp.nanmean(of_clients()),
        "worst_client": lambda: jnp.nanmin(of_clients()),
        "p10_client": lambda: jnp.nanpercentile(of_clients(), 10),
    }
    return [figures[name]() for name in names]
