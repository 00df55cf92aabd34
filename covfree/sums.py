"""Sums over tables: in parts, by group, and accurate in float32 however many terms there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Num

from covfree.types import AnyArray

# Adding m equal numbers one after the other can lose m/10 eps. Up to the first length that is nothing; up
# to the second, one more pass is enough.
_LONG = (256, 2**16)
# Items that are worked on at once. What is made of a part stays in the processor's cache, where a whole table
# would be written to memory and read again; products of so many rows run at full speed.
PART = 2048
# The mean of equal numbers is off by less than this many eps of it. `group_means` gives it exactly. By way of
# a total it is rounded thrice, by half an eps each: times the count, added up over parts, divided again.
_ROUNDING = 2


def deviations(
    values: Float[Array, "items dim"], mean: Float[Array, "items dim"]
) -> Float[Array, "items dim"]:
    """Values less their mean, from `group_means` or `Moments`; exactly 0 where they are within its rounding.

    Equal values have no spread, and no rule without a scale must take their rounding for one.
    """
    centred = values - mean
    noise = _ROUNDING * jnp.finfo(centred.dtype).eps * jnp.abs(mean)
    # A NaN compares False, and stays.
    return jnp.where(jnp.abs(centred) <= noise, 0, centred)


Carry = TypeVar("Carry")


def fold_parts(step: Callable[[Carry, Any], Carry], carry: Carry, items: Any) -> Carry:
    """Go over a table part by part: ``carry = step(carry, part)``, in memory for one part.

    Args:
        step: what to do with a part; it must give the carry back in the same shapes.
        carry: to start with.
        items: a pytree of arrays that share their first axis, of which each part holds about `PART`: less
            than twice as many.
    """
    length = jax.tree.leaves(items)[0].shape[0]
    size = max(1, -(-length // max(1, length // PART)))
    # What is over comes first: the carry of the loop then depends on the items, as its type under shard_map
    # asks.
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


class Compensated(NamedTuple):
    """A running sum of pytrees with what its rounding lost; integers are summed as they are.

    Attributes:
        total: the sum as rounded.
        lost: what is to be added to it.
    """

    total: Any
    lost: Any

    def plus(self, terms: Any) -> Compensated:
        """Add a term, and keep what rounding takes off (Knuth's two-sum)."""
        total = jax.tree.map(jnp.add, self.total, terms)

        def rounding(before: jax.Array, term: jax.Array, after: jax.Array) -> jax.Array:
            added = after - before
            return (before - (after - added)) + (term - added)

        off = jax.tree.map(rounding, self.total, terms, total)
        return Compensated(total, jax.tree.map(jnp.add, self.lost, off))

    @property
    def value(self) -> Any:
        """The sum."""
        return jax.tree.map(jnp.add, self.total, self.lost)


@partial(jax.jit, static_argnames="num_groups")
def group_means(
    values: Float[AnyArray, "items dim"],
    weight: Num[Array, " items"],
    group: Integer[Array, " items"],
    num_groups: int,
) -> tuple[Float[Array, "groups dim"], Num[Array, " groups"]]:
    """Weighted means of values by group.

    A running sum in float32 is off by up to (terms/10)·eps relative to its size: 10⁻³ for 10⁵ terms, and for
    100 terms more than a spread that is small against the mean. So differences from a centre are summed,
    mean = centre + Σ w (v − centre)/Σ w. The first centre is the group's first value: the mean of equal
    values is exactly that value. Where a group is long, the mean so found is the next centre, which leaves an
    error of about an eps.

    Args:
        values: finite numbers, or anything at all where there is no group.
        weight: of each item, at least 0; integers are summed as integers, exactly. 0 for padding.
        group: in [0, num_groups]; ``num_groups`` is no group.
        num_groups: static.

    Returns:
        Means, 0 of an empty group, of the data type of ``values`` but float32 at least; and Σ w in that of
        ``weight``.
    """
    values = jnp.asarray(values)
    dtype = jnp.promote_types(values.dtype, jnp.float32)
    total_weight = jax.ops.segment_sum(weight, group, num_groups)
    whole = total_weight.astype(dtype)[:, None]
    whole = jnp.where(whole > 0, whole, 1)

    def add(centre: jax.Array, sums: jax.Array, part: tuple[jax.Array, ...]) -> jax.Array:
        values, weight, group = part
        values = jnp.where((group < num_groups)[:, None], values, 0).astype(dtype)
        values = values - centre.at[group].get(mode="fill", fill_value=0)
        return sums.at[group].add(values * weight.astype(dtype)[:, None], mode="drop")

    def mean_about(centre: jax.Array) -> jax.Array:
        # The mean does not depend on the centre.
        centre = jax.lax.stop_gradient(centre)
        # The zeros are made here, as jax cannot batch a condition under shard_map that is handed constants.
        sums = fold_parts(partial(add, centre), jnp.zeros_like(centre), (values, weight, group))
        # Divided before it is added: XLA would turn a plain sum plus ``centre`` into one that starts there,
        # and each small difference would be rounded away.
        return centre + sums / whole

    if not values.shape[0]:
        return jnp.zeros((num_groups, values.shape[1]), dtype), total_weight
    # Past the last item where a group has none.
    first = jax.ops.segment_min(jnp.arange(values.shape[0]), group, num_groups)
    mean = mean_about(values.at[first].get(mode="fill", fill_value=0).astype(dtype))
    longest = jax.ops.segment_sum(jnp.ones_like(group), group, num_groups).max(initial=0)
    for length in _LONG:
        mean = jax.lax.cond(longest > length, mean_about, lambda mean: mean, mean)
    return mean, total_weight
