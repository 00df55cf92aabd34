"""A share of the examples that clients keep aside: which they are is told by the examples' own features."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.types import AnyArray

# Hashes are compared in so many bits.
_BITS = 24
# An even number, as places are odd.
_LOWER = 0x5BD1E994


def kept_aside(features: Float[AnyArray, "examples dim"], share: float) -> Bool[Array, " examples"]:
    """Tell which examples are kept aside: those whose hash is in the lowest ``share`` of all hashes.

    The hash is one of the features' bits. So an example is on the same side at every client, in every round,
    part and order, without a key or a memory; so are its copies. But features that are extracted anew may
    differ in their last bits, which draws the side again. Columns of zeros at the end change nothing. A
    feature vector of zeros is not kept.

    Args:
        features: the examples.
        share: of the examples to keep, from 0 to 1.

    Source: the mixing is the finalizer of MurmurHash3 (Appleby 2011), of each number and of their sum.

    >>> import jax.numpy as jnp
    >>> kept = kept_aside(jnp.arange(1000.0)[:, None], 0.2)
    >>> int(kept.sum())
    213
    """
    features = jax.lax.stop_gradient(jnp.asarray(features))
    place = _mixed(jnp.arange(1, features.shape[1] + 1, dtype=jnp.uint32)) | jnp.uint32(1)
    upper = features.astype(jnp.float32)
    words = _mixed(_bits(upper)) * place[None, :]
    if features.dtype == jnp.float64:
        # What float32 does not hold of a number; 0 if it holds it.
        words += _mixed(_bits((features - upper).astype(jnp.float32))) * (place ^ jnp.uint32(_LOWER))[None, :]
    found = _mixed(words.sum(1, dtype=jnp.uint32))
    # The hash of zeros is 0: a class whose examples are zeros would be lost.
    return (found != 0) & ((found >> (32 - _BITS)) < jnp.uint32(threshold(share)))


def threshold(share: float) -> int:
    """Give the hash below which examples are kept, of `_BITS` bits."""
    return round(share * 2**_BITS)


def _bits(numbers: jax.Array) -> jax.Array:
    # −0 and 0 are one number of two bit patterns.
    return jax.lax.bitcast_convert_type(jnp.where(numbers == 0, 0, numbers), jnp.uint32)


def _mixed(words: jax.Array) -> jax.Array:
    """Mix the bits of each word; 0 stays 0."""
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        words = (words ^ (words >> (16 if factor == 0x85EBCA6B else 13))) * jnp.uint32(factor)
    return words ^ (words >> 16)
