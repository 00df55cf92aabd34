"""Sums over the first axis of arrays: part by part, or by group; in float32, accurate for many terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Num

from covfree.core.types import AnyArray, accumulation_dtype

# A running sum of m equal numbers has a relative error of up to m/10 eps. So `weighted_means` takes a second
# pass over the items if a group has over 256, and a third if one has over 65,536.
_LONG = (256, 2**16)
# Items in a part: results for a part stay in the processor's cache, and products of this many rows run at
# full speed. Results for a whole table would be written to memory and read again.
PART = 2048
# A mean of equal numbers is off by less than this many eps: that of `weighted_means` is exact, and one made
# from a total is rounded three times by half an eps, when it is multiplied by the count, summed over parts
# and divided.
_ROUNDING = 2
# If m terms cancel, their sum is only rounding. That is at most (m − 1)/2 eps of the sum of their absolute
# values, 16 eps for m = 33. For more terms it is estimated: each partial sum is rounded, and in the worst
# order (all positive terms first) the total rounding has a standard deviation of √m/12 eps. The bound is six
# of these, √m/2 eps.
_CANCELLED, _GROWTH = 16.0, 0.5


# Compiled, as outside ``jit`` its condition would be compiled anew at each call.
@jax.jit
def deviations(
    values: Float[Array, "*items dim"],
    mean: Float[Array, "*means dim"],
    group: Integer[Array, " items"] | None = None,
) -> Float[Array, "*items dim"]:
    """Subtract the mean from ``values``; differences so small that they may be rounding errors become 0.

    The mean must come from `weighted_means` or `Moments`. If all values are equal, all deviations are then 0.
    Otherwise a shrinkage rule that ignores scale would take rounding errors for variance. ``group`` is the
    row of ``mean`` to subtract from each value (past the last for padding). With it, a small deviation is
    kept if its group has a larger one in this feature; otherwise values far from zero would lose variance.
    """
    if group is None:
        centred = values - mean
    else:
        centre = mean.at[group].get(mode="fill", fill_value=0)
        centred = jnp.where((group < mean.shape[0])[:, None], values - centre, 0)
    still = jax.lax.stop_gradient(centred)
    noise, size = _ROUNDING * jnp.finfo(still.dtype).eps * jnp.abs(mean), jnp.abs(still)
    # A comparison with NaN is False, so NaN is kept. Derivatives stay those of the differences.
    if group is None:
        return centred - jnp.where(size <= noise, still, 0)
    if not values.shape[0]:
        return centred

    # A maximum over groups takes longer than the rest, so compute it only if needed. First look at two values
    # of each group: if the deviation of one exceeds the noise, all deviations of the group are kept.
    num_groups, index = mean.shape[0], jnp.arange(values.shape[0], dtype=jnp.int32)
    first = jax.ops.segment_min(index, group, num_groups)
    last = jax.ops.segment_max(index, group, num_groups)
    ends = [size.at[row].get(mode="fill", fill_value=jnp.inf) for row in (first, last)]
    both = jnp.maximum(*ends)
    rounded = (noise > 0) & (both <= noise) & ((first < last)[:, None] | (both > 0))
    largest = partial(jax.ops.segment_max, segment_ids=group, num_segments=num_groups)
    gathered = partial(jnp.take, indices=group, axis=0, mode="fill", fill_value=False)
    # The arrays are operands of the condition: closed over, they would take more memory.
    return jax.lax.cond(
        rounded.any(),
        lambda x, still: x - jnp.where(gathered(largest(jnp.abs(still)) <= noise), still, 0),
        lambda x, still: x,
        *(centred, still),
    )


def settled(
    values: Float[Array, "groups dim"], terms: Num[Array, " groups"], size: Float[Array, " groups"]
) -> Float[Array, "groups dim"]:
    """Return sums (or means) of groups of vectors; sums that may be rounding error alone become exactly 0.

    A sum becomes 0 if no entry of it exceeds the error with which its terms are added. Such a sum depends on
    the order of the terms, so its direction must not be used.

    Args:
        values: the sums, or the means.
        terms: the number of terms of each sum.
        size: the sum (or mean) of the terms' largest absolute entries.
    """
    limit = _CANCELLED + _GROWTH * jnp.sqrt(terms.astype(values.dtype))
    noise = limit * jnp.finfo(values.dtype).eps * size
    still = jax.lax.stop_gradient(values)
    # A comparison with NaN is False, so NaN is kept, as is a sum whose size overflows. Derivatives stay those
    # of ``values``.
    within = ((jnp.abs(still).max(1, initial=0) <= noise) & jnp.isfinite(noise))[:, None]
    return values - jnp.where(within, still, 0)


Carry = TypeVar("Carry")


def fold_parts(step: Callable[[Carry, Any], Carry], carry: Carry, items: Any) -> Carry:
    """Compute ``carry = step(carry, part)`` for each part of ``items`` in turn, and return the last carry.

    Args:
        step: processes a part; it must return the carry in the same shapes.
        carry: the initial carry.
        items: a pytree of arrays that share their first axis. A part is a slice along this axis, of about
            `PART` entries and at most twice as many.
    """
    length = jax.tree.leaves(items)[0].shape[0]
    if not isinstance(length, int):
        # With a symbolic length from `jax.export`, the number of parts is unknown.
        return step(carry, items)
    size = max(1, -(-length // max(1, length // PART)))
    # Begin with the remainder, outside the loop: under shard_map, a loop's first carry must already vary by
    # device, as the result of ``step`` does.
    more = max(0, length - 1) // size
    first = length - more * size
    carry = step(carry, jax.tree.map(lambda x: x[:first], items))
    if not more:
        return carry

    def one(carry: Carry, index: jax.Array) -> tuple[Carry, None]:
        start = first + index * size
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), items)
        return step(carry, part), None

    return jax.lax.scan(one, carry, jnp.arange(more))[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """Items in an upload, such as rows, that the server concatenates over clients instead of adding them.

    Arrays of an upload outside a `Table` are added. Secure aggregation, which only adds, needs uploads
    without a `Table`.

    Attributes:
        items: a pytree of arrays that share their first axis, such as `covfree.Rows`.
        kept: True for each item to be sent; the others are padding.
    """

    items: Any
    kept: Bool[Array, " items"]


class Compensated(NamedTuple):
    """A running sum of pytrees of arrays, with a correction for the rounding error of float leaves.

    Attributes:
        total: the rounded sum.
        lost: the correction to be added to it; 0 for integers.
    """

    total: Any
    lost: Any

    def plus(self, terms: Any) -> Compensated:
        """Return the sum with ``terms`` added; the rounding error of this addition is added to ``lost``.

        The error is computed by Knuth's two-sum.
        """
        total = jax.tree.map(jnp.add, self.total, terms)

        def rounding(before: jax.Array, term: jax.Array, after: jax.Array) -> jax.Array:
            added = after - before
            return (before - (after - added)) + (term - added)

        off = jax.tree.map(rounding, self.total, terms, total)
        return Compensated(total, jax.tree.map(jnp.add, self.lost, off))

    @property
    def value(self) -> Any:
        """The corrected sum, ``total + lost``."""
        return jax.tree.map(jnp.add, self.total, self.lost)


def sum_integers(
    values: Integer[Array, " items"], group: Integer[Array, " items"], num_groups: int
) -> Float[Array, " groups"]:
    """Sum integers by group as floats, with an error of about one rounding, even if a sum exceeds int32.

    The running sum of integers is exact modulo 2³². A less exact running sum of floats tells which multiple
    of 2³² to add.
    """
    floats = values.astype(jnp.result_type(float))
    near = jax.ops.segment_sum(floats, group, num_groups)
    low = jax.ops.segment_sum(values.astype(jnp.uint32), group, num_groups).astype(near.dtype)
    return low + jnp.round((near - low) / 2.0**32) * 2.0**32


@jax.jit
def weighted_means(
    values: Float[AnyArray, "items dim"],
    weight: Num[Array, " items"],
    group: Integer[Array, " items"],
    total_weight: Float[Array, " groups"],
    terms: Integer[Array, " groups"],
) -> tuple[Float[Array, "groups dim"], Float[Array, " groups"]]:
    """Compute the weighted mean of each group, and Σ_i w_i max_j |v_ij|, a scale for rounding errors.

    A running sum in float32 has a relative error of up to (terms/10)·eps: 10⁻³ for 10⁵ terms. Even for 100
    terms, that may exceed the spread of values about a large mean. So differences from a centre are summed:
    mean = centre + Σ w (v − centre)/Σ w. The first centre is the group's first value, so the mean of equal
    values is exact. If a group has over 256 items, the sum is repeated with this mean as the centre, and once
    more if a group has over 65,536: the error is then about an eps.

    Args:
        values: v_i, finite numbers; for padding they may be anything.
        weight: the weight of each item, at least 0; 0 for padding.
        group: each item's group, from 0; padding has the number of groups.
        total_weight: Σ w of each group.
        terms: the number of items in each group.

    Returns:
        Means in the data type of ``values``, but at least float32; 0 for an empty group and for a group whose
        values cancel (`settled`). And Σ_i w_i max_j |v_ij| of each group.
    """
    values = jnp.asarray(values)
    dtype, length, num_groups = accumulation_dtype(values), values.shape[0], total_weight.shape[0]
    whole = jnp.where(total_weight > 0, total_weight, 1).astype(dtype)[:, None]

    def add(centre: jax.Array, sums: jax.Array, part: tuple[jax.Array, ...]) -> jax.Array:
        values, weight, group = part
        values = jnp.where((group < num_groups)[:, None], values, 0).astype(dtype)
        values = values - centre.at[group].get(mode="fill", fill_value=0)
        return sums.at[group].add(values * weight.astype(dtype)[:, None], mode="drop")

    def mean_about(centre: jax.Array, items: tuple[jax.Array, ...], whole: jax.Array) -> jax.Array:
        sums = fold_parts(partial(add, centre), jnp.zeros_like(centre), items)
        # Divide the sums, not the weights. Without a division between the sum and ``centre``, XLA would start
        # the sum at ``centre``, and round away each small difference that it adds.
        return centre + sums / whole

    items = values, weight, group
    if length == 0:
        return jnp.zeros((num_groups, values.shape[1]), dtype), jnp.zeros(num_groups, dtype)
    # For an empty group, the index is past the last item.
    first = jax.ops.segment_min(jnp.arange(length, dtype=jnp.int32), group, num_groups)
    # The mean does not depend on the centre, so the centre needs no derivative.
    still = jax.lax.stop_gradient((items, whole))
    centre = still[0][0].at[first].get(mode="fill", fill_value=0).astype(dtype)
    if not isinstance(length, int) or length > _LONG[0]:
        longest = terms.max(initial=0)
        more = sum((longest > long).astype(jnp.int32) for long in _LONG)
        # A loop of 0 to 2 steps compiles the pass once; two conditions would compile it twice.
        centre = jax.lax.fori_loop(0, more, lambda _, centre: mean_about(centre, *still), centre)
    # XLA would fuse a maximum of absolute values with later sums, which is ten times slower.
    size = jnp.maximum(still[0][0].max(1, initial=0), -still[0][0].min(1, initial=0))
    # Set padding to 0: if it held NaN, the derivative in the weight would be NaN.
    size = jnp.where(group < num_groups, size.astype(dtype), 0)
    magnitude = jax.ops.segment_sum(weight.astype(dtype) * size, group, num_groups)
    size = magnitude / whole[:, 0] + jnp.abs(centre).max(1, initial=0)
    return settled(mean_about(centre, items, whole), terms, size), magnitude


def mean_groups(
    features: Float[Array, "examples dim"], group: Integer[Array, " examples"], num_groups: int
) -> tuple[Float[Array, "groups dim"], Integer[Array, " groups"]]:
    """Compute the mean feature and the number of examples of each group.

    A group outside [0, num_groups) is padding.

    Returns:
        Means in the `accumulation_dtype` of the features, 0 for an empty group; and counts.
    """
    kept = (group >= 0) & (group < num_groups)
    group = jnp.where(kept, group, num_groups)
    counts = jax.ops.segment_sum(kept.astype(jnp.int32), group, num_groups)
    dtype = accumulation_dtype(features)
    means, _ = weighted_means(features, kept.astype(dtype), group, counts.astype(dtype), counts)
    return means, counts


def sum_groups(
    features: Float[Array, "examples dim"], group: Integer[Array, " examples"], num_groups: int
) -> tuple[Float[Array, "groups dim"], Integer[Array, " groups"]]:
    """Compute the sum of features and the number of examples of each group; see `mean_groups`."""
    means, counts = mean_groups(features, group, num_groups)
    return means * counts.astype(means.dtype)[:, None], counts


def add_by_group(
    values: Num[np.ndarray, "items *size"], group: Integer[np.ndarray, " items"], num_groups: int
) -> Num[np.ndarray, "groups *size"]:
    """Return the sum of each group's values, added in NumPy, in order and in the values' own data type."""
    sums = np.zeros((num_groups, *values.shape[1:]), values.dtype)
    np.add.at(sums, group, values)
    return sums
