"""Helpers of the partitioners: argument checks, and a list of the examples by class."""

import math
import operator

import numpy as np
from jaxtyping import Int32, Int64
from numpy.typing import ArrayLike

Clients = Int32[np.ndarray, "n"]
"""The client of each example; -1 marks an example that no client holds."""


def check_integer(name: str, value: object, minimum: int) -> int:
    """Return `value` as a Python int of at least `minimum`; a bool or a float is a `TypeError`."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        integer = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if integer < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {integer}")
    return integer


def check_real(
    name: str, value: object, *, above: float | None = None, minimum: float | None = None
) -> float:
    """Return `value` as a finite float, greater than `above` or at least `minimum`."""
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        real = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be one real number, got {value!r} of type {type(value).__name__}"
        ) from None
    if not math.isfinite(real):
        raise ValueError(f"{name} must be finite, got {real}")
    if above is not None and not real > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {real:g}")
    if minimum is not None and not real >= minimum:
        raise ValueError(f"{name} must be at least {minimum:g}, got {real:g}")
    return real


def check_integers(name: str, values: ArrayLike, minimum: int) -> np.ndarray:
    """Return `values` as a 1-D NumPy array of integers, none below `minimum`."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    row = int(array.argmin())
    if array[row] < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {array[row]} at row {row}")
    return array


def check_num_examples(labels: ArrayLike | int) -> int:
    """Return n for a partitioner that does not use the labels, and so accepts n in their place."""
    if np.ndim(labels) == 0:
        return check_integer("labels, as a number of examples,", labels, minimum=1)
    return check_integers("labels", labels, minimum=0).size


def check_num_partitions(num_partitions: object, num_examples: int) -> int:
    """Return K after checking 1 ≤ K ≤ n: with more clients than examples, some would have to be empty."""
    count = check_integer("num_partitions", num_partitions, minimum=1)
    if count > num_examples:
        raise ValueError(
            f"num_partitions must be at most the number of examples, {num_examples}, got {count}"
        )
    return count


def generator(seed: object) -> np.random.Generator:
    """Return a fresh generator for an integer seed of at least 0."""
    return np.random.default_rng(check_integer("seed", seed, minimum=0))


def equal_sizes(num_examples: int, num_partitions: int) -> Int64[np.ndarray, "clients"]:
    """Return sizes that sum to n and differ by at most one, the larger ones first."""
    sizes = np.full(num_partitions, num_examples // num_partitions, np.int64)
    sizes[: num_examples % num_partitions] += 1
    return sizes


def by_class(
    labels: np.ndarray, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "classes"], np.ndarray]:
    """List the examples class by class, in random order within a class.

    Returns:
        `(examples, counts, values)`: `examples [n]` holds first the `counts[0]` examples of label
        `values[0]`, then those of `values[1]`, and so on. Only labels that occur are listed, in ascending
        order.
    """
    shuffled = rng.permutation(labels.size)
    values, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    examples = shuffled[np.argsort(codes[shuffled], kind="stable")]
    return examples, counts, values
