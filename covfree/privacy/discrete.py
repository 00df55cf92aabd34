"""Sample the discrete Gaussian exactly, from the operating system's random bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int

# A source of random bytes, such as `os.urandom`.
RandomBytes: TypeAlias = Callable[[int], bytes]

# Up to this log₂ σ, all products below fit in int64: a Laplace proposal is beyond 46σ only with a probability
# of e⁻⁴⁶, and (46·2^24)² < 2^60.
MAX_LOG_DEVIATION = 24


def discrete_gaussian(
    log_deviation: int, size: int, random_bytes: RandomBytes = os.urandom
) -> Int[np.ndarray, " size"]:
    """Draw from the discrete Gaussian on the integers, P(x) ∝ exp(−x²/2σ²) with σ = 2^log_deviation.

    Only integers are used, so that no rounding changes a probability. If the integer vectors of neighbouring
    data differ by v, adding these draws gives (‖v‖²/2σ²)-zero-concentrated differential privacy, provided
    that nobody can repeat the random bits: use anything but `os.urandom` only for experiments.

    Args:
        log_deviation: base-2 logarithm of σ, from 1 to 24.
        size: number of draws.
        random_bytes: source of random bytes.

    Source: Canonne, Kamath and Steinke (2020), Alg. 1 to 3, for whole arrays; their t is σ, a power of
    two.
    """
    if not 1 <= log_deviation <= MAX_LOG_DEVIATION:
        raise ValueError(f"log_deviation: expected 1 to {MAX_LOG_DEVIATION}, got {log_deviation}")
    drawn = np.zeros(size, np.int64)
    missing = np.arange(size)
    sigma = 1 << log_deviation
    while missing.size:
        value, kept = _discrete_laplace(log_deviation, missing.size, random_bytes)
        # Accepting with probability exp(−(|y| − σ)²/2σ²) turns the Laplace distribution of scale σ into the
        # Gaussian.
        distance = np.abs(value) - sigma
        kept &= _exponential(distance * distance, 2 * log_deviation + 1, random_bytes)
        drawn[missing[kept]] = value[kept]
        missing = missing[~kept]
    return drawn


def summed_discrete_gaussians(
    log_deviation: int, terms: int, size: int, random_bytes: RandomBytes = os.urandom
) -> Int[np.ndarray, " size"]:
    """Draw the sum of ``terms`` discrete Gaussians of σ = 2^log_deviation, to simulate many clients.

    One draw of standard deviation 2^j σ replaces the sum of 4^j terms, so few draws are needed. The
    probabilities of this draw and of the sum that it replaces differ by a factor of 1 ± 10·exp(−π²σ²)
    (Kairouz, Liu and Steinke 2021), which is 1 ± 10⁻¹⁶ for σ = 2.
    """
    total, level = np.zeros(size, np.int64), 0
    while terms:
        last = log_deviation + level == MAX_LOG_DEVIATION
        terms, digit = (0, terms) if last else divmod(terms, 4)
        for _ in range(digit):
            total += discrete_gaussian(log_deviation + level, size, random_bytes)
        level += 1
    return total


def _words(size: int, random_bytes: RandomBytes) -> np.ndarray:
    """Draw ``size`` uniform integers of 63 bits."""
    return (np.frombuffer(random_bytes(8 * size), np.uint64) >> np.uint64(1)).astype(np.int64)


def _below(bound: np.ndarray, random_bytes: RandomBytes) -> np.ndarray:
    """Draw uniform integers in [0, bound), each with its own bound."""
    result = np.zeros(bound.shape, np.int64)
    missing = np.arange(bound.size)
    while missing.size:
        word, limit = _words(missing.size, random_bytes), bound[missing]
        # Draw again if a word is past the last whole multiple of the bound, so remainders are equally likely.
        fair = word - word % limit <= np.iinfo(np.int64).max - limit + 1
        result[missing[fair]] = (word % limit)[fair]
        missing = missing[~fair]
    return result


def _exponential(
    numerator: np.ndarray, log_denominator: int, random_bytes: RandomBytes
) -> Bool[np.ndarray, "_"]:
    """Draw True with probability exp(−numerator/2^log_denominator), for each numerator (at least 0)."""
    whole = numerator >> log_denominator
    part = numerator & ((1 << log_denominator) - 1)
    alive = _exponential_below_one(part, log_denominator, random_bytes)
    # exp(−whole) is the probability that ``whole`` trials with probability exp(−1) all succeed.
    trying = np.flatnonzero(alive & (whole > 0))
    left = whole[trying]
    while trying.size:
        one = np.full(trying.size, 1 << log_denominator, np.int64)
        passed = _exponential_below_one(one, log_denominator, random_bytes)
        alive[trying[~passed]] = False
        passed &= left > 1
        trying, left = trying[passed], left[passed] - 1
    return alive


def _exponential_below_one(
    numerator: np.ndarray, log_denominator: int, random_bytes: RandomBytes
) -> np.ndarray:
    """Draw True with probability exp(−γ), for γ = numerator/2^log_denominator in [0, 1].

    Trial k = 1, 2, … passes with probability γ/k. The result is True if the first failed trial has an odd k.
    """
    odd = np.zeros(numerator.shape, bool)
    trying, k = np.arange(numerator.size), 1
    while trying.size:
        bound = np.full(trying.size, k << log_denominator, np.int64)
        passed = _below(bound, random_bytes) < numerator[trying]
        odd[trying[~passed]] = k % 2 == 1
        trying, k = trying[passed], k + 1
    return odd


def _discrete_laplace(log_scale: int, size: int, random_bytes: RandomBytes) -> tuple[np.ndarray, np.ndarray]:
    """Draw integers from the discrete Laplace distribution of scale 2^log_scale, by rejection.

    Return ``size`` integers, and a mask that is False for rejected ones, which must not be used.
    """
    scale = 1 << log_scale
    low = _words(size, random_bytes) & (scale - 1)
    kept = _exponential(low, log_scale, random_bytes)
    # ⌊value/scale⌋ is geometric: count trials with probability exp(−1) until one fails.
    steps = np.zeros(size, np.int64)
    trying = np.flatnonzero(kept)
    while trying.size:
        one = np.full(trying.size, scale, np.int64)
        passed = _exponential_below_one(one, log_scale, random_bytes)
        trying = trying[passed]
        steps[trying] += 1
    value = low + scale * steps
    negative = (_words(size, random_bytes) & 1).astype(bool)
    # Drop −0, so that zero is not drawn twice as often.
    kept &= ~(negative & (value == 0))
    return np.where(negative, -value, value), kept
