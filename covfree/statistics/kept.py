"""Choose a share of examples that clients keep aside for validation, by a hash of each example's features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from covfree.core.checks import check_share
from covfree.core.types import AnyArray

# The number of leading bits of the hash that are compared with the share.
_BITS = 24
# A float64 feature is hashed in two float32 parts: the rounded number, and the rest. The rest is multiplied
# by its column's multiplier xor _LOWER, which is never 0, as multipliers are odd and _LOWER is even.
_LOWER = 0x5BD1E994


def kept_aside(features: Float[AnyArray, "examples dim"], share: float) -> Bool[Array, " examples"]:
    """Return which examples are kept aside: those with a hash in the lowest ``share`` of the hash's range.

    The hash is computed from the features' bits. So an example and its copies are treated alike at every
    client, in every round and in any order, without a key or memory. Features that are extracted again may
    differ in their last bits, and then have another hash. Columns of zeros at the end change nothing. A
    vector of zeros is never kept aside.

    Args:
        features: the examples.
        share: the share of examples to keep aside, from 0 to 1.

    >>> import jax.numpy as jnp
    >>> kept = kept_aside(jnp.arange(1000.0)[:, None], 0.2)
    >>> int(kept.sum())
    213
    """
    check_share("share", share)
    features = jax.lax.stop_gradient(jnp.asarray(features))
    place = mixed(jnp.arange(1, features.shape[1] + 1, dtype=jnp.uint32)) | jnp.uint32(1)
    upper = features.astype(jnp.float32)
    words = mixed(_bits(upper)) * place[None, :]
    if features.dtype == jnp.float64:
        # Include the part of a float64 number that float32 loses; it is 0 if nothing is lost.
        words += mixed(_bits((features - upper).astype(jnp.float32))) * (place ^ jnp.uint32(_LOWER))[None, :]
    found = mixed(words.sum(1, dtype=jnp.uint32))
    # The hash of zeros is 0: keeping it aside would lose a class whose examples are all zeros.
    return (found != 0) & ((found >> (32 - _BITS)) < jnp.uint32(threshold(share)))


def check_keep(keep: float) -> None:
    """Raise an error unless ``keep`` is a share with which `kept_aside` may choose some examples, not all."""
    if not 0 < threshold(check_share("keep", keep)) < threshold(1):
        raise ValueError(f"keep: expected a share that keeps some examples and not all, got {keep!r}")


def threshold(share: float) -> int:
    """Return share·2²⁴, rounded: examples with a 24-bit hash below this number are kept aside."""
    return round(share * 2**_BITS)


def _bits(numbers: jax.Array) -> jax.Array:
    # Give −0 the bits of 0, as they are the same number.
    return jax.lax.bitcast_convert_type(jnp.where(numbers == 0, 0, numbers), jnp.uint32)


def mixed(words: Any) -> Any:
    """Return uint32 numbers, of JAX or NumPy, with mixed bits: close numbers end far apart; 0 stays 0.

    Source: the finalizer of MurmurHash3 (Appleby 2011).
    """
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))
