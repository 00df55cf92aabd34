"""Encode numbers as integers modulo 2⁶⁴ ("words"), whose sums are exact, and make masks that hide them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt64

from covfree.core.checks import check_above_zero, check_positive
from covfree.core.optional import optional

Words = UInt64[np.ndarray, " words"]
# Bits of the largest sum: it stays below half of the 2⁶⁴ words, as the other half is for negative numbers.
_ROOM = 62


@runtime_checkable
class Encoding(Protocol):
    """Converts an upload's numbers to words, and a sum of words back to numbers; it may add noise."""

    @property
    def num_clients(self) -> int:
        """The largest number of clients whose uploads may be added."""
        ...

    @property
    def least(self) -> int:
        """The least number of clients whose uploads may be added."""
        ...

    @property
    def rounds(self) -> int | None:
        """The largest number of rounds for which the encoding may be used; None for any number."""
        ...

    def encode(self, upload: Any) -> Words:
        """Encode an upload as words."""
        ...

    def decode(self, total: Words, like: Any) -> Any:
        """Decode a sum of words to numbers, in the structure and shapes of ``like``, an upload."""
        ...


@dataclass(frozen=True)
class FixedPoint:
    """Encodes a number x as the word round(x·2^bits) modulo 2⁶⁴; negative numbers are words above 2⁶³.

    The number `bits` is chosen such that bound·2^bits ≤ 2⁶²/K. So sums of at most K uploads do not wrap: each
    integer is at most bound·2^bits + ½ in absolute value, and a sum is below 2⁶³. The error of a number in
    the sum is at most K·2^−(bits + 1), plus float64's relative rounding, 2^−53.

    Attributes:
        bound: the largest absolute value of a number in an upload.
        num_clients: K, the largest number of clients whose uploads are added.
    """

    bound: float
    num_clients: int
    # A sum over one client is that client's upload.
    least: int = field(default=2, init=False, repr=False)
    rounds: None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_above_zero("bound", self.bound)
        check_positive("num_clients", self.num_clients)
        if self.bits < 1:
            raise ValueError(
                f"bound: expected a bound that leaves a bit for fractions, got {self.bound:g} with "
                f"{self.num_clients} clients"
            )

    @property
    def bits(self) -> int:
        """The number of bits after the binary point, chosen such that no sum overflows."""
        return _ROOM - math.ceil(math.log2(self.num_clients)) - math.ceil(math.log2(self.bound))

    def encode(self, upload: Any) -> Words:
        """Return the words of a pytree of numbers, each rounded to a multiple of 2^−bits.

        Args:
            upload: a pytree of arrays of numbers; the order of its leaves must be the same at all clients.

        Raises:
            TypeError: if an array holds no real numbers.
            ValueError: if a number is not finite or exceeds the bound (clip first), or an integer is 2⁵³ or
                larger.
        """
        leaves = [_numbers(np.asarray(leaf)) for leaf in jax.tree.leaves(upload)]
        numbers = np.concatenate([np.zeros(0), *leaves])
        if not np.all(np.abs(numbers) <= self.bound):
            worst = numbers[np.argmax(np.where(np.isfinite(numbers), np.abs(numbers), np.inf))]
            raise ValueError(
                f"upload: expected numbers of at most {self.bound:g}, the bound on which all clients agreed, "
                f"got {worst:g}; agree on a larger bound (between machines: a new federation, --sums bound=…)"
            )
        # Only `rint` rounds, by at most ½: multiplying by a power of 2 is exact.
        return np.rint(np.ldexp(numbers, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: Words, like: Any) -> Any:
        """Return the numbers that a sum of words encodes, as a pytree.

        Args:
            total: the sum, modulo 2⁶⁴, of words from `encode`.
            like: an upload, or anything with its structure, shapes and data types.

        Raises:
            ValueError: if a sum exceeds the range of its data type.
        """
        numbers = np.ldexp(total.view(np.int64).astype(np.float64), -self.bits)
        return shaped(numbers, like)


def shaped(numbers: Float[np.ndarray, " words"], like: Any) -> Any:
    """Convert a vector of numbers to a pytree with the structure, shapes and data types of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([0, *(math.prod(np.shape(leaf)) for leaf in leaves)])
    if len(numbers) != ends[-1]:
        raise ValueError(f"total: expected {ends[-1]} words, got {len(numbers)}")
    parts = [numbers[start:end] for start, end in itertools.pairwise(ends)]
    made = [_like(part, leaf) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, made)


def _numbers(leaf: np.ndarray) -> np.ndarray:
    """Return an array's numbers as a vector in float64; raise an error unless float64 holds them exactly."""
    whole, real = (jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.integer, jnp.floating))
    if not whole and not real:
        raise TypeError(f"upload: expected integers or floats, which add up, got {leaf.dtype}")
    if whole and (np.abs(leaf.astype(np.float64)) >= 2.0**53).any():
        raise ValueError("upload: expected integers below 2**53, got one above")
    return leaf.astype(np.float64).ravel()


def _like(numbers: np.ndarray, leaf: Any) -> Any:
    exact = not jnp.issubdtype(leaf.dtype, jnp.inexact)
    whole, limits = (np.rint(numbers), jnp.iinfo) if exact else (numbers, jnp.finfo)
    least, most = float(limits(leaf.dtype).min), float(limits(leaf.dtype).max)
    if numbers.size and not (least <= whole.min() and whole.max() <= most):
        raise ValueError(f"total: expected sums within {leaf.dtype}, got {whole.min():g} to {whole.max():g}")
    array = whole.reshape(np.shape(leaf)).astype(leaf.dtype)
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array


def mask(key: bytes, size: int) -> Words:
    """Return a mask: the first ``size`` words of the ChaCha20 stream of a 32-byte key.

    Use each key only once, as equal masks would reveal the difference of two uploads.
    """
    ciphers = optional("cryptography.hazmat.primitives.ciphers", "secure")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), "<u8").astype(np.uint64)
