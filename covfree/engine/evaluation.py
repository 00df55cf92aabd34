"""The accuracy of a head, or of any function from features to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check, check_example_structure
from covfree.core.doors import as_int32, compiled
from covfree.core.padding import as_arrays, blocks, is_large
from covfree.core.types import AnyArray, Head, is_traced


def _check_structure(head: Any, features: Any, labels: Any) -> None:
    """Raise unless ``head`` is callable and there is one label for each row of features."""
    if not callable(head):
        hint = "; pass its .head" if callable(getattr(head, "head", None)) else ""
        hint = "; fit it first" if type(head).__name__ == "Method" else hint
        raise TypeError(f"head: expected a head such as fit gives, got {type(head).__name__}{hint}")
    shape, axes = np.shape(features), np.ndim(labels)
    if axes > 1 and shape[:axes] == np.shape(labels):
        raise ValueError(
            f"features: expected [examples, dim] with labels [examples], got {list(shape)} with labels "
            f"{list(np.shape(labels))}; reshape to a single axis of examples"
        )
    check_example_structure(_ones(shape), labels)


def _check_values(head: Any, features: Any, labels: Any, numbers: Any) -> None:
    """Raise if a label is not below the head's number of classes, or a feature is not finite.

    ``numbers`` are the features or None; only a float array [examples, dim] is checked. Under ``jit`` nothing
    is checked.
    """
    # Under ``jit`` every new array is traced, even one made from concrete values: then checks are impossible.
    if is_traced(jax.device_put(np.float32(0))):
        return
    if not all(getattr(array, "is_fully_addressable", True) for array in (labels, numbers)):
        return
    if np.ndim(numbers) != 2 or not jnp.issubdtype(numbers.dtype, jnp.floating):
        numbers = _ones(np.shape(features))
    check(numbers, labels, num_classes=_num_scores(head, features))


def _ones(shape: tuple[int, ...]) -> np.ndarray:
    """Return features of 1, [examples, 1], for checks of labels alone; ``shape`` is the true features' shape.

    The array is a view of a single number, so it takes no memory.
    """
    return np.broadcast_to(np.float32(1), (*shape[:1], 1))


def _num_scores(head: Any, features: Any) -> int:
    if any(map(callable, jax.tree.leaves(head))):
        return np.shape(head(features[:1]))[-1]
    like = jax.ShapeDtypeStruct(np.shape(features), jax.dtypes.canonicalize_dtype(features.dtype))
    return jax.eval_shape(lambda rows: head(rows), like).shape[-1]


def _same(scores: Any) -> Any:
    return scores


def _in_parts(whole: Callable[..., Array]) -> Callable[..., Array]:
    """Decorate a compiled function ``whole(head, features, labels) -> accuracy``.

    The decorated function also accepts heads that are plain functions, which cannot be passed to ``jit``, and
    large features, which it reads part by part.
    """

    def one(head: Any, features: Any, labels: Any) -> tuple[Any, Any, Any]:
        # jit takes no function as an argument, so pass the function's scores instead.
        own = any(map(callable, jax.tree.leaves(head)))
        return (jax.tree_util.Partial(_same), head(features), labels) if own else (head, features, labels)

    # `wraps` also copies ``lower`` and the other attributes of a compiled function.
    @wraps(whole)
    def accuracy(head: Any, features: Any, labels: Any) -> Array:
        several = isinstance(features, Mapping)
        if several and callable(head):  # a dict of arrays, such as a text model's input
            head, features = jax.tree_util.Partial(_same), head(features)
        given = {"features": features, "labels": labels}
        features, labels = as_arrays(given, given).values()
        _check_structure(head, features, labels)
        # Scores, unlike features, may be −∞, so they are not checked.
        numbers = None if several else features
        if not is_large(features):
            scored = one(head, features, labels)
            _check_values(*scored, numbers)
            return whole(*scored)
        _check_values(head, features, labels, numbers)
        labels = np.asarray(labels)
        own = [(part, (labels[part] >= 0).sum()) for part in blocks(features)]
        right = sum(
            number * whole(*one(head, features[part], labels[part])) for part, number in own if number
        )
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
        features: test features. Large ones on the host are read part by part, as in `fit`. A dict of arrays
            is passed to the head as it is.
        labels: their classes, each below the number of classes that the head scores; below 0 is padding. An
            example of a class that was not in training counts as an error.

    Returns:
        The accuracy; NaN if there is no example.

    Raises:
        TypeError: if ``head`` is no function, or labels are no integers.
        ValueError: if shapes do not fit, a feature is not finite, or a label is not below the number of
            classes that the head scores.
    """
    scores = head(features)
    # If all scores are −∞ (of a head fitted to no class), argmax gives class 0: never count that as right.
    labels = as_int32("labels", labels)
    right = (scores.argmax(-1).astype(jnp.int32) == labels) & (scores.max(-1) > -jnp.inf) & (labels >= 0)
    return right.sum() / (labels >= 0).sum()
