"""Share 32 secret bytes by Shamir's scheme: any t shares rebuild the secret; fewer reveal nothing of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

# The smallest prime above 2^256, so that every secret of 32 bytes is an element of the field.
PRIME = 2**256 + 297
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, holders: Iterable[int]) -> dict[int, bytes]:
    """Split a secret, the value at 0 of a random polynomial, into shares: holder i gets the value at i + 1.

    Args:
        secret: 32 bytes.
        threshold: t, how many shares rebuild the secret; the polynomial has degree t − 1.
        holders: distinct numbers from 0.

    Returns:
        A share of 33 bytes for each holder.

    Source: Shamir (1979), How to share a secret.

    >>> shares = split(bytes(range(32)), 2, [0, 4, 7])
    >>> rebuild({4: shares[4], 7: shares[7]}) == bytes(range(32))
    True
    """
    numbers = list(holders)
    if len(secret) != SECRET:
        raise ValueError(f"secret: expected {SECRET} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(set(numbers)) == len(numbers):
        raise ValueError(f"holders: expected at least {threshold} different numbers, got {numbers}")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {number: _value(polynomial, number + 1).to_bytes(SHARE, "big") for number in numbers}


def rebuild(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that `split` made into ``shares``, a mapping from holders' numbers to shares.

    The polynomial's value at 0 follows from the shares by Lagrange's formula.

    Raises:
        ValueError: if there are no shares, or the result is larger than 32 bytes. Too few or wrong shares
            nearly always give a wrong secret instead, so the caller must check it.
    """
    places = {number + 1: int.from_bytes(share, "big") for number, share in shares.items()}
    secret = 0
    for x, value in places.items():
        above = below = 1
        for other in places:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += value * above * pow(below, -1, PRIME)
    secret %= PRIME
    if not places or secret >= 2 ** (8 * SECRET):
        raise ValueError(f"shares: expected enough shares of one secret, got {len(places)}")
    return secret.to_bytes(SECRET, "big")


def _value(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value
