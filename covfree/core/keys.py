"""The rule for random keys: a key is used once, either to draw or to derive other keys, never for both.

A function that is given ``key`` draws with ``derive(key, stream)``, where ``stream`` is a name that no other
draw has. So a client needs one key for all its draws. Without this rule, two draws may use the same bits: in
JAX ``fold_in(key, i)`` equals ``split(key, n)[i]``, and entry i of ``bits(key, (n,))`` is made from it too.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.types import PRNGKey


def derive(key: PRNGKey, stream: str) -> jax.Array:
    """Derive a key for a use named ``stream``, by ``fold_in`` with a number computed from the name.

    The result is independent of keys derived with other names, and of keys that a caller makes by ``split``
    or by ``fold_in`` with small numbers.

    >>> import jax
    >>> key = jax.random.key(0)
    >>> bool((derive(key, "subsets") == derive(key, "signs")).any())
    False
    """
    return jax.random.fold_in(key, zlib.crc32(stream.encode()))


def check_key(key: Any) -> None:
    """Raise a TypeError if ``key`` is neither a PRNG key, typed or raw, nor None."""
    dtype = getattr(key, "dtype", None)
    if key is not None and (
        dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)
    ):
        raise TypeError(f"key: expected a PRNG key, such as jax.random.key(0), got {key!r}")


def participation_seed(key: PRNGKey) -> int:
    """Derive the seed with which `covfree.rounds.run`, given this key, draws the clients of each round."""
    return int(jax.random.bits(derive(key, "participation"), dtype=jnp.uint32))
