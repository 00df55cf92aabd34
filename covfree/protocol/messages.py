"""Make the message that a client sends; simulations, cost accounting and real federations use this code."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Integer

from covfree.core.checks import check, check_example_structure, check_positive
from covfree.core.compiling import jit
from covfree.core.doors import check_int32
from covfree.core.keys import check_key
from covfree.core.padding import as_arrays, pad_rows
from covfree.core.types import AnyArray, Message, PRNGKey, Rows, is_traced
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.statistics.groups import as_examples

# Metadata that a message may contain beside its arrays.
SAID = ("sends", "class_names", "extractor")
# The columns of a message's rows.
ROWS = ("mean", "count", "label", "client", "covariance", "sketch")


def client_message(
    method: Method,
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    *,
    num_classes: int,
    key: PRNGKey | None = None,
    class_names: Sequence[str] | None = None,
    extractor: str | None = None,
) -> Message:
    """Make the message that one client sends to the server, with rows for the classes of its examples only.

    Clients of similar size share one compilation. Under ``jit`` and ``vmap`` the number of rows is fixed, so
    rows without examples remain, with count 0.

    Args:
        method: the method.
        features: the client's features.
        labels: the class of each example; below 0 is padding.
        num_classes: C.
        key: the client's PRNG key, for methods that cut classes into random subsets.
        class_names: [C], the names of the classes by their numbers, e.g. `FeatureSet.class_names`. They are
            sent too, so that `collect` can refuse a client that numbers its classes differently.
        extractor: fingerprint of the features' extractor: `FeatureSet.extractor` or `Extractor.fingerprint`.
            It is sent too, so that `collect` can refuse a client with another backbone, weights or
            preprocessing.

    Returns:
        The message, in float32 (float64 if the features are and x64 is enabled).

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or value is wrong; if the method's clients send sums in rounds instead of a
            message; or if they send matrices, but the shrinkage rule needs rows, such as `ledoit_wolf`.

    >>> import covfree, jax.numpy as jnp
    >>> rows = client_message(covfree.fedcof(), jnp.eye(2), jnp.array([4, 4]), num_classes=9).rows
    >>> rows.mean.tolist(), rows.count.tolist(), rows.label.tolist()
    ([[0.5, 0.5]], [2], [4])
    """
    check_method(method)
    if not method.message_rounds:
        method.check_message()
    method.check_rules()
    check_positive("num_classes", num_classes)
    names = check_class_names(class_names, num_classes)
    check_extractor(extractor)
    check_key(key)
    padding = {"features": 0, "labels": -1}
    given = as_arrays({"features": features, "labels": labels}, padding)
    check_example_structure(**given)
    check_int32("labels", given["labels"])
    features, labels = pad_rows(given, padding).values()
    check(features, labels, num_classes=num_classes)
    features, labels = as_examples(features, labels=labels)
    # Do not compile the function that makes mixtures: it counts labels on the host to size its arrays.
    make = Method.made if method.summary.counts else _made
    part = method.client_part()
    if method.summary.merge is not None:
        part = replace(part, params=method.params)
    message = make(part, features, labels, num_classes, key)
    sends = None if is_traced(*jax.tree.leaves(method.feature_map)) else method.sends
    said = {"sends": sends, "class_names": names, "extractor": extractor}
    rows = message.rows
    if is_traced(rows.count):
        return replace(message, rows=replace(rows, client=None), **said)
    rows = replace(select_rows(rows, np.asarray(rows.count) > 0), client=None)
    # Without examples, send no matrix of d² zeros.
    message = replace(message, rows=rows) if len(rows.count) else Message(rows)
    return replace(message, **said)


@partial(jit, static_argnames="num_classes")
def _made(
    method: Method, features: jax.Array, labels: jax.Array, num_classes: int, key: PRNGKey | None
) -> Message:
    return method.made(features, labels, num_classes, key)


def select_rows(rows: Rows, kept: np.ndarray) -> Rows:
    """Return the rows in ``kept``, a mask or indices, as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[kept], rows)


def check_class_names(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...] | None:
    """Return class names as a tuple, or None; raise an error unless each class has a name of its own."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"class_names: expected a text for each class, got {names!r}")
    found = tuple(map(str, names))
    if len(found) != num_classes or len(set(found)) < num_classes:
        raise ValueError(
            f"class_names: expected num_classes = {num_classes} names that differ, got {len(found)}, "
            f"{len(set(found))} of them distinct"
        )
    return found


def check_extractor(extractor: Any) -> None:
    """Raise a TypeError if ``extractor`` is neither a string (a fingerprint) nor None."""
    if extractor is not None and not isinstance(extractor, str):
        raise TypeError(f"extractor: expected the text of a fingerprint, got {extractor!r}")


def rounding_of(matrix: AnyArray) -> float:
    """Return 2⁻⁵²‖M‖, a bound in Frobenius norm on the error of rounding a sum M of two float64 matrices."""
    return 2.0**-52 * float(np.linalg.norm(np.asarray(matrix)))


def digest(message: Message) -> str:
    """Return a hash of a message's values, shapes, data types and metadata, without the ``client`` column."""
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((bool(message.solved), message.sends, message.class_names, message.extractor)).encode())
    for name in ROWS:
        if name != "client":
            _hash(state, name, getattr(message.rows, name))
    _hash(state, "matrix", message.matrix)
    return state.hexdigest()


def _hash(state: hashlib.blake2b, name: str, values: Any) -> None:
    if values is not None:
        values = np.ascontiguousarray(values)
        state.update(f"{name}{values.dtype}{values.shape}".encode())
        state.update(memoryview(values.reshape(-1).view(np.uint8)))
