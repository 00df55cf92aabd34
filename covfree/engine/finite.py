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
    if is_traced(*jax.tree.leaves(head)) or _all_finite(jax.tree.leaves(head)):
        return head
    for path, leaf in jax.tree_util.tree_leaves_with_path(head):
        values = np.asarray(leaf)
        if not np.isfinite(values).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ValueError(
                f"head: holds {values[place]} in {jax.tree_util.keystr(path).lstrip('.')} of shape "
                f"{list(values.shape)} at {place}; expected finite numbers. What clients sent is too large, "
                "or is no sum of squares where one is expected"
            )
    return head


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]).all()
