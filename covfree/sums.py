"""Sums by group that stay accurate in float32 however many terms there are."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Num

# Adding m equal numbers one after the other can lose m/10 eps. Up to the first length that is nothing; up
# to the second, one refinement is enough.
_LONG = (256, 2**16)
# The mean of equal numbers is off by less than this many eps, however many there are.
_ROUNDING = 64


def deviations(
    values: Float[Array, "items dim"], mean: Float[Array, "items dim"]
) -> Float[Array, "items dim"]:
    """Values less the mean that `group_sums` gave of them; exactly 0 where no more than its rounding is left.

    Equal values have no spread, and no rule without a scale must take their rounding for one.
    """
    centred = values - mean
    noise = _ROUNDING * jnp.finfo(centred.dtype).eps * jnp.abs(mean)
    return jnp.where(jnp.abs(centred) > noise, centred, 0)


@partial(jax.jit, static_argnames="num_groups")
def group_sums(
    values: Float[Array, "items dim"],
    weight: Num[Array, " items"],
    group: Integer[Array, " items"],
    num_groups: int,
) -> tuple[Float[Array, "groups dim"], Num[Array, " groups"]]:
    """Weighted sums of values, and sums of the weights, by group.

    A long running sum in float32 is off by up to (terms/10)·eps relative to its size, 10⁻³ for 10⁵ terms.
    Where a group is long, the mean of what is left about a first mean is added to that mean, which leaves
    an error of a few eps: the remainders are small, and so is what their sum loses.

    Args:
        values: finite numbers.
        weight: of each item; integers are summed as integers, exactly. 0 for padding.
        group: in [0, num_groups]; ``num_groups`` is no group.
        num_groups: static.

    Returns:
        Σ w v in the data type of ``values``, and Σ w in that of ``weight``.
    """
    total_weight = jax.ops.segment_sum(weight, group, num_groups)
    factor = weight.astype(values.dtype)[:, None]
    sums = jax.ops.segment_sum(values * factor, group, num_groups)
    whole = total_weight.astype(values.dtype)[:, None]
    whole = jnp.where(whole > 0, whole, 1)

    def refined(sums: jax.Array) -> jax.Array:
        mean = sums / whole
        rest = (values - mean.at[group].get(mode="fill", fill_value=0)) * factor
        # Divided before it is added: XLA would turn a plain sum plus ``sums`` into one that starts there,
        # and each small remainder would be rounded away.
        return whole * (mean + jax.ops.segment_sum(rest, group, num_groups) / whole)

    longest = jax.ops.segment_sum(jnp.ones_like(group), group, num_groups).max(initial=0)
    for length in _LONG:
        sums = jax.lax.cond(longest > length, refined, lambda sums: sums, sums)
    return sums, total_weight
