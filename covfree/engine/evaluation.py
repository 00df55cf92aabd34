"""The accuracy of a head, or of any function from features to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.doors import as_int32, compiled
from covfree.core.gathered import blocks, is_large
from covfree.core.padding import as_arrays
from covfree.core.types import AnyArray, Head, is_traced

_INT32_MAX = np.iinfo(np.int32).max


def _check_evaluation(head: Any, features: Any, labels: Any) -> None:
    """Raise unless this is a head, with the labels of the examples that it is tested on."""
    if not callable(head):
        raise TypeError(f"head: expected a head such as fit gives, got {type(head).__name__}")
    if not jnp.issubdtype(jnp.result_type(labels), jnp.integer):
        raise TypeError(f"labels: expected integers, got {jnp.result_type(labels)}")
    axes = np.ndim(labels)
    if axes > 1 and np.shape(features)[:axes] == np.shape(labels):
        raise ValueError(
            f"features: expected one axis of examples, got {list(np.shape(features))} with labels "
            f"{list(np.shape(labels))}; put all examples one below the other"
        )
    if axes != 1 or np.shape(features)[:1] != np.shape(labels):
        raise ValueError(
            f"labels: expected shape {list(np.shape(features)[:1])}, one for each row of features, "
            f"got {list(np.shape(labels))}"
        )


def _check_known(head: Any, features: Any, labels: Any) -> None:
    """Raise if no label is of a class that there is a score for: they are numbered otherwise."""
    if is_traced(labels) or not getattr(labels, "is_fully_addressable", True):
        return
    known = np.asarray(labels).astype(np.int64)
    least = known[known >= 0].min(initial=_INT32_MAX)
    # Class 0 is there nearly always: then nothing is computed.
    if 0 < least < _INT32_MAX and least >= (classes := np.shape(head(features[:1]))[-1]):
        raise ValueError(
            f"labels: expected some of the head's {classes} classes, numbered from 0; got none below {least}"
        )


def _same(scores: Any) -> Any:
    return scores


def _in_parts(whole: Callable[..., Array]) -> Callable[..., Array]:
    """Make an accuracy function of any head, which goes part by part through large features."""

    def one(head: Any, features: Any, labels: Any) -> Array:
        # jit takes no function as an argument; it takes the function's scores.
        if any(map(callable, jax.tree.leaves(head))):
            return whole(jax.tree_util.Partial(_same), head(features), labels)
        return whole(head, features, labels)

    # `wraps` also copies ``lower`` and the other attributes of a compiled function.
    @wraps(whole)
    def accuracy(head: Any, features: Any, labels: Any) -> Array:
        if isinstance(features, Mapping) and callable(head):  # several arrays, as a model of texts takes them
            head, features = jax.tree_util.Partial(_same), head(features)
        given = {"features": features, "labels": labels}
        features, labels = as_arrays(given, given).values()
        _check_evaluation(head, features, labels)
        _check_known(head, features, labels)
        if not is_large(features):
            return one(head, features, labels)
        labels = np.asarray(labels)
        own = [(part, (labels[part] >= 0).sum()) for part in blocks(features)]
        right = sum(number * one(head, features[part], labels[part]) for part, number in own if number)
        return jnp.asarray(right) / sum(number for _, number in own)

    return accuracy


@_in_parts
@compiled(padded={"features": 0, "labels": -1})
def evaluate(
    head: Head, features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"]
) -> Float[Array, ""]:
    """Compute the accuracy of a head: the share of the examples whose class it predicts, in [0, 1].

    Args:
        head: a classifier, or any function from features to scores [examples, classes].
        features: test features; large ones on the host are read part by part, as `fit` reads them. A dict of
            arrays goes to the head as it is.
        labels: their classes; below 0 is padding. A class that the head never saw, or
            does not know, counts as an error.

    Returns:
        The accuracy; NaN if there is no example.

    Raises:
        TypeError: if ``head`` is no function, or labels are no integers.
        ValueError: if shapes do not fit, or all labels are of classes that the head does not know.
    """
    scores = head(features)
    # A head that saw no class scores all of them −inf, where argmax would still name class 0.
    labels = as_int32("labels", labels)
    right = (scores.argmax(-1).astype(jnp.int32) == labels) & (scores.max(-1) > -jnp.inf) & (labels >= 0)
    return right.sum() / (labels >= 0).sum()
