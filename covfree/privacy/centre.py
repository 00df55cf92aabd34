"""Subtract a public centre from features before they are clipped, and add it back in the head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from covfree.core.checks import finite_numbers
from covfree.core.types import AnyArray, Head, LinearHead
from covfree.heads.composed import MappedHead
from covfree.methods import Method
from covfree.privacy.projection import PublicProjection

# Feature maps are compiled for blocks of this many rows.
_BLOCK = 4096


def check_centre(centre: Any) -> Float[np.ndarray, " dim"]:
    """Return the centre as a vector of 64-bit floats.

    Raises:
        ValueError: if ``centre`` is not a vector of finite numbers.
    """
    values = np.asarray(centre)
    real = jnp.issubdtype(values.dtype, jnp.floating) or jnp.issubdtype(values.dtype, jnp.integer)
    if values.ndim != 1 or not values.size or not real:
        raise ValueError(
            f"centre: expected numbers of shape [dim], got {values.dtype} of shape {list(values.shape)}"
        )
    values = values.astype(np.float64)
    computed = jnp.result_type(float)
    wrong = np.flatnonzero(~(np.abs(values) <= float(jnp.finfo(computed).max)))
    if wrong.size:
        value = values[wrong[0]]
        raise ValueError(
            f"centre: expected {finite_numbers(value, computed)}, got {value} at position {wrong[0]}"
        )
    return values


def centred(
    method: Method[Any], centre: Float[np.ndarray, " dim"] | None, features: Float[AnyArray, "examples dim"]
) -> Float[np.ndarray, "examples mapped"]:
    """Apply the method's feature map, and subtract the public centre, if there is one; nothing is clipped.

    If the map is a `PublicProjection`, the centre is a vector of unmapped features, and is projected too.

    Raises:
        ValueError: if the centre does not have as many numbers as a mapped feature vector (for a
            `PublicProjection`, as an unmapped one).
    """
    mapped = _mapped(method, features)
    if centre is None:
        return mapped
    expected = (features if _is_projected(method) else mapped).shape[-1]
    if len(centre) != expected:
        raise ValueError(f"centre: expected shape [{expected}] as the features have, got [{len(centre)}]")
    return mapped - _of_mapped(method, centre)


def _mapped(
    method: Method[Any], features: Float[AnyArray, "examples dim"]
) -> Float[np.ndarray, "examples mapped"]:
    """Return features after the feature map, which is applied one row at a time.

    The last bits of a matrix product depend on its number of rows. One row at a time, each example's mapped
    features depend on that example alone, so one example cannot change what others add to a sum. All blocks
    of rows are padded to one shape, so that one compilation maps them.
    """
    if method.feature_map is None:
        return np.asarray(jnp.asarray(features), np.float64)
    method, number = method.client_part(), len(features)
    parts: list[np.ndarray] = []
    for start in range(0, max(number, 1), _BLOCK):
        rows = np.asarray(jnp.asarray(features[start : start + _BLOCK]))
        block = np.zeros((_BLOCK, rows.shape[1]), rows.dtype)
        block[: len(rows)] = rows
        parts.append(np.asarray(_one_by_one(method, block, len(rows)), np.float64)[: len(rows)])
    return np.concatenate(parts)


@jax.jit
def _one_by_one(method: Method[Any], block: jax.Array, rows: jax.Array) -> jax.Array:
    like = jax.eval_shape(method.mapped, block)
    return jax.lax.fori_loop(
        0,
        rows,
        lambda row, made: made.at[row].set(method.mapped(block[row][None])[0]),
        jnp.zeros(like.shape, like.dtype),
    )


def moved_back(method: Method[Any], centre: Float[np.ndarray, " dim"] | None, head: Head) -> Head:
    """Return a head for features x from a head Wᵀ(x − c) + b for centred ones; the new bias is b − Wᵀc."""
    if centre is None:
        return head
    if isinstance(head, MappedHead):
        return replace(head, head=moved_back(method, centre, head.head))
    assert isinstance(head, LinearHead)
    # Use float64: in float32 a large centre would round away more than the last bit of the bias.
    bias = np.asarray(head.bias, np.float64) - _of_mapped(method, centre) @ np.asarray(
        head.weight, np.float64
    )
    return replace(head, bias=jnp.asarray(bias, head.bias.dtype))


def _is_projected(method: Method[Any]) -> bool:
    return isinstance(method.feature_map, PublicProjection)


def _of_mapped(method: Method[Any], centre: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " mapped"]:
    """Return the vector to subtract from features after the method's feature map, for the centre c.

    If the map is a projection P, it is Pc, as P(x − c) = Px − Pc. Otherwise it is c itself: c is then given
    as a centre of mapped features.
    """
    if not _is_projected(method):
        return centre
    scale = np.abs(centre).max() or 1.0  # so that no sum overflows
    return scale * np.asarray(method.mapped(centre / scale), np.float64)
