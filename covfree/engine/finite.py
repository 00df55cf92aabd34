"""The last door: what a server hands out is finite."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covfree.types import LinearHead, is_traced

AnyHead = TypeVar("AnyHead")


def finite(head: AnyHead) -> AnyHead:
    """Give the head back, or raise unless its numbers are finite; a traced head has no values to look at.

    A bias of −∞ is what an absent class has: it may stand beside a weight column of 0, and in other heads in
    any vector of one number a class.

    Raises:
        ValueError: if a number is not finite; it names the part and the place.
    """
    if is_traced(*jax.tree.leaves(head)):
        return head
    for part in jax.tree.leaves(head, is_leaf=lambda part: isinstance(part, LinearHead)):
        if isinstance(part, LinearHead):
            weight, bias = np.asarray(part.weight), np.asarray(part.bias)
            _check("weight", weight, np.isfinite(weight))
            _check("bias", bias, np.isfinite(bias) | (np.isneginf(bias) & (weight == 0).all(0)))
        elif jnp.issubdtype(jnp.result_type(part), jnp.floating):
            values = np.atleast_1d(np.asarray(part))
            _check("an array", values, np.isfinite(values) | (np.isneginf(values) & (values.ndim == 1)))
    return head


def _check(name: str, values: np.ndarray, right: np.ndarray) -> None:
    if not right.all():
        place = tuple(int(i) for i in np.argwhere(~right)[0])
        raise ValueError(
            f"head: holds {values[place]} in {name} of shape {list(values.shape)} at {place}; expected "
            "finite numbers. What clients sent is too large, or leaves a system without a solution; "
            "max_count and max_norm of collect bound it"
        )
