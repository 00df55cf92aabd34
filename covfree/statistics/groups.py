"""Group examples with equal keys, such as client and class, by sorting; cut groups into random subsets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer

from covfree.core.checks import check_example_structure, check_positive
from covfree.core.compiling import jit
from covfree.core.doors import as_array, as_int32
from covfree.core.types import AnyArray, PRNGKey, Scalar


@jit
def subset_groups(
    keys: tuple[Integer[Array, " examples"], ...],
    kept: Bool[Array, " examples"],
    num_subsets: Scalar | None,
    key: PRNGKey | None,
    *,
    subset_size: Scalar = 2,
) -> Integer[Array, " examples"]:
    """Cut groups of examples into random subsets. A group is all examples with equal ``keys``.

    A group of m examples is cut into min(num_subsets, ⌊m/subset_size⌋) subsets, at least one, with sizes that
    differ by at most 1. So each subset has at least ``subset_size`` examples, unless the group has fewer
    (FedCOF, App. E).

    Args:
        keys: integers that the examples of a group share; groups are ordered by the first key, then the next.
        kept: False for padding.
        num_subsets: the largest number of subsets of a group; None for no bound.
        key: PRNG key that assigns examples to subsets; may be None if ``num_subsets`` is 1.
        subset_size: the smallest number of examples in a subset.

    Returns:
        For each example, the number of its subset, from 0 in the order of the groups; −1 for padding.
    """
    n = kept.shape[0]
    if n == 0:
        return jnp.zeros(0, jnp.int32)
    index = jnp.arange(n, dtype=jnp.int32)
    draw = () if key is None else (jax.random.bits(key, (n,), jnp.uint32),)
    # Sort by group, and padding to the end.
    operands = ((~kept).astype(jnp.int32), *keys, *draw, index)
    padding, *rest = jax.lax.sort(operands, num_keys=len(operands) - 1)
    sorted_keys, order = rest[: len(keys)], rest[-1]
    change = jnp.zeros(n - 1, bool)
    for values in (padding, *sorted_keys):
        change |= values[1:] != values[:-1]
    starts = jnp.concatenate([jnp.ones(1, bool), change])
    group = jnp.cumsum(starts, dtype=jnp.int32) - 1
    # Without a key each group is one subset.
    subset = group
    if key is not None:
        size = jax.ops.segment_sum((padding == 0).astype(jnp.int32), group, n, indices_are_sorted=True)
        subsets = jnp.clip(size // subset_size, 1, num_subsets)
        first_subset = jnp.cumsum(subsets) - subsets
        rank = index - jax.lax.cummax(jnp.where(starts, index, 0))
        subset = first_subset[group] + rank % subsets[group]
    subset = jnp.where(padding == 0, subset, -1).astype(jnp.int32)
    return jnp.zeros(n, jnp.int32).at[order].set(subset, unique_indices=True)


def check_one_client(features: Any, labels: Any, num_classes: int, *_: Any, **__: Any) -> None:
    """Raise ValueError or TypeError unless features, labels and ``num_classes`` are valid for one client."""
    if np.ndim(features) == 3:
        raise ValueError(
            f"features: expected shape [examples, dim] of one client, got {list(np.shape(features))}; "
            "vmap batches clients"
        )
    check_example_structure(features, labels)
    check_positive("num_classes", num_classes)


def as_examples(features: AnyArray, **integers: AnyArray) -> tuple[jax.Array, ...]:
    """Convert arrays of examples to JAX arrays; raise ValueError or TypeError if shapes or types are wrong.

    Returns:
        The arrays in the same order; integers become int32.
    """
    check_example_structure(features, **integers)
    return (as_array(features), *(as_int32(name, array) for name, array in integers.items()))
