"""Compute metrics by their names, for tables."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.compiling import jit
from covfree.core.doors import as_int32, consecutive
from covfree.core.types import AnyArray
from covfree.heads.metrics.figures import (
    accuracy,
    balanced_accuracy,
    calibration_error,
    class_recall,
    client_accuracy,
    nll,
)
from covfree.heads.metrics.outcome import check_scores

# The metrics that `measure` accepts, in the order of tables; CLIENT_NAMES need each example's client.
NAMES = ("accuracy", "balanced", "worst_class", "nll", "ece", "mean_client", "worst_client", "p10_client")
CLIENT_NAMES = ("mean_client", "worst_client", "p10_client")


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
