"""The last door: what a server hands out is finite."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covfree.types import is_traced

AnyHead = TypeVar("AnyHead")


def finite(head: AnyHead) -> AnyHead:
    """Give the head back, or raise unless its numbers are finite; a traced head has no values to look at.

    Raises:
        ValueError: if a number is not finite; it names the part and the place.
    """
    leaves = jax.tree_util.tree_leaves_with_path(head)
    if is_traced(*(leaf for _, leaf in leaves)):
        return head
    for path, leaf in leaves:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and not bool(jnp.isfinite(leaf).all()):
            values = np.asarray(leaf)
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ValueError(
                f"head: holds {values[place]} in {jax.tree_util.keystr(path).lstrip('.')} of shape "
                f"{list(values.shape)} at {place}; expected finite numbers. What clients sent is too large, "
                "or leaves a system without a solution; max_count and max_norm of collect bound it"
            )
    return head
