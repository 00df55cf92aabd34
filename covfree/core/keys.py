"""The one rule for random keys: a key is either drawn with or derived from, never both, and drawn with once.

A function that draws does so with `derive(key, stream)` of the key that it was given, and each draw has a
stream of its own. So one key may serve everything that a client does. Without the rule two draws can be of
the same bits: ``fold_in(key, i)`` is ``split(key, n)[i]`` in JAX, and what is drawn with ``key`` is made of
the same numbers.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.types import PRNGKey


def derive(key: PRNGKey, stream: str) -> jax.Array:
    """Give the key of a named stream: ``fold_in`` of a number that stands for the name.

    It is independent of streams of other names, and of what a caller makes of the key by ``split`` or by
    ``fold_in`` of small numbers.

    >>> import jax
    >>> key = jax.random.key(0)
    >>> bool((derive(key, "subsets") == derive(key, "signs")).any())
    False
    """
    return jax.random.fold_in(key, zlib.crc32(stream.encode()))


def check_key(key: Any) -> None:
    """Raise unless this is a PRNG key, typed or raw, or None."""
    dtype = getattr(key, "dtype", None)
    if key is not None and (
        dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)
    ):
        raise TypeError(f"key: expected a PRNG key, such as jax.random.key(0), got {key!r}")


def participation_seed(key: PRNGKey) -> int:
    """Give the seed of `covfree.rounds.schedule` with which `covfree.rounds.run` draws its clients."""
    return int(jax.random.bits(derive(key, "participation"), dtype=jnp.uint32))
