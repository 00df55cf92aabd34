"""A share of the examples that clients keep aside: which they are is told by the examples' own features."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.types import AnyArray


def kept_aside(features: Float[AnyArray, "examples dim"], share: float) -> Bool[Array, " examples"]:
    """Tell which examples are kept aside: those whose hash is in the lowest ``share`` of all hashes.

    The hash is one of the features' bits, in float32. So an example is on the same side at every client, in
    every round, part and order, without a key or a memory; so are its copies. Columns of zeros at the end
    change nothing.

    Args:
        features: the examples.
        share: of the examples to keep, from 0 to 1.

    Source: the mixing is the finalizer of MurmurHash3 (Appleby 2011), of each number and of their sum.

    >>> import jax.numpy as jnp
    >>> kept = kept_aside(jnp.arange(1000.0)[:, None], 0.2)
    >>> int(kept.sum())
    214
    """
    features = jax.lax.stop_gradient(jnp.asarray(features)).astype(jnp.float32)
    # −0 and 0 are one number of two bit patterns.
    bits = jax.lax.bitcast_convert_type(jnp.where(features == 0, 0, features), jnp.uint32)
    place = _mixed(jnp.arange(1, features.shape[1] + 1, dtype=jnp.uint32)) | jnp.uint32(1)
    found = _mixed((_mixed(bits) * place[None, :]).sum(1, dtype=jnp.uint32))
    # Compared in 24 bits, which a float32 holds exactly.
    return (found >> 8) < jnp.uint32(round(share * 2**24))


def _mixed(words: jax.Array) -> jax.Array:
    """Mix the bits of each word; 0 stays 0."""
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        words = (words ^ (words >> (16 if factor == 0x85EBCA6B else 13))) * jnp.uint32(factor)
    return words ^ (words >> 16)
