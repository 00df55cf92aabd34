"""Functions that the checks share: running laws one by one, and comparing results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

# A function of the subject to be checked. Its name is the law's name, and its docstring states the law.
Law: TypeAlias = Callable[[Any], None]

# The tolerance for rounding in float32, for sums over some tens of rows and linear systems with condition
# numbers below 1000.
SINGLE = 1e-4
# The tolerance for rounding in float64.
DOUBLE = 1e-6
# The step of finite differences that check derivatives, in float64.
STEP = 1e-6


def hold(laws: Sequence[Law], name: str, subject: Any, exclude: Mapping[str, str] | None) -> None:
    """Run the laws on a subject, one by one; raise an error at the first that is broken.

    Args:
        laws: all laws of the check.
        name: name of the subject, for the message.
        subject: the argument of the laws.
        exclude: laws to leave out, each with the reason why it does not apply.

    Raises:
        AssertionError: with the first law that is broken, its statement, and the numbers.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.
    """
    exclude = {} if exclude is None else exclude
    names = [law.__name__ for law in laws]
    for law, reason in exclude.items():
        if law not in names:
            raise ValueError(f"exclude: expected laws among {names}, got {law!r}")
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"exclude: expected the reason why {law!r} is no law here, got {reason!r}")
    for law in laws:
        if law.__name__ in exclude:
            continue
        try:
            law(subject)
        # A subject that breaks a law may raise any exception.
        except Exception as error:
            what = "" if isinstance(error, AssertionError) else f"raised {type(error).__name__}: "
            says = " ".join((inspect.getdoc(law) or "").split())
            raise AssertionError(f"{name} breaks the law {law.__name__!r}. {says}\n{what}{error}") from error


def law(name: str, says: str, check: Law) -> Law:
    """Return the function ``check`` as a law with the name ``name`` and the statement ``says``."""

    def one(subject: Any) -> None:
        check(subject)

    one.__name__, one.__doc__ = name, says
    return one


def _pairs(one: Any, other: Any, what: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return (name, leaf, leaf) for each pair of corresponding leaves of two pytrees.

    Raise an AssertionError if the pytrees differ in structure.
    """
    structures = jax.tree.structure(one), jax.tree.structure(other)
    assert structures[0] == structures[1], f"{what}: expected {structures[1]}, got {structures[0]}"
    named = jax.tree_util.tree_leaves_with_path(one)
    return [
        (f"{what}{jax.tree_util.keystr(path)}", _numbers(leaf), _numbers(expected))
        for (path, leaf), expected in zip(named, jax.tree.leaves(other), strict=True)
    ]


def _numbers(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _raise(where: str, one: np.ndarray, other: np.ndarray, wrong: np.ndarray) -> None:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    raise AssertionError(
        f"{where}: expected {other[place]:.9g}, got {one[place]:.9g} at {list(place)}, one of "
        f"{wrong.sum()} of {wrong.size} that differ"
    )


def assert_close(actual: Any, expected: Any, tolerance: float, what: str, floor: float = 0) -> None:
    """Raise AssertionError unless two pytrees are close.

    A number may be off by ``tolerance`` times |e| + m, with e the expected number and m the largest |e| of
    the leaf, or ``floor`` if this is larger.
    """
    for where, one, other in _pairs(actual, expected, what):
        assert one.shape == other.shape, f"{where}: expected shape {other.shape}, got {one.shape}"
        largest = np.abs(other[np.isfinite(other)]).max(initial=floor)
        wrong = ~np.isclose(one, other, tolerance, tolerance * largest, equal_nan=True)
        if wrong.any():
            _raise(where, one, other, wrong)


def assert_same(actual: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless the numbers of two pytrees are exactly equal; NaN equals NaN.

    ``what`` names the trees in the error.
    """
    for where, one, other in _pairs(actual, expected, what):
        assert one.shape == other.shape, f"{where}: expected shape {other.shape}, got {one.shape}"
        wrong = ~((one == other) | ((one != one) & (other != other)))
        if wrong.any():
            _raise(where, one, other, wrong)


def assert_numbers(tree: Any, what: str) -> None:
    """Raise AssertionError unless all leaves of a pytree are finite numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = f"{what}{jax.tree_util.keystr(path)}"
        known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float))
        assert known, f"{where}: expected numbers, got a leaf of {type(leaf).__name__}: {leaf!r}"
        wrong = ~np.isfinite(_numbers(leaf))
        assert not wrong.any(), (
            f"{where}: expected finite numbers, got {wrong.sum()} of {wrong.size} that are not"
        )


def centred(scores: Any) -> np.ndarray:
    """Return scores minus the mean of each row's finite scores; a softmax ignores a constant in a row."""
    scores = np.asarray(scores, np.float64)
    finite = np.isfinite(scores)
    mean = np.where(finite, scores, 0).sum(-1, keepdims=True) / np.maximum(finite.sum(-1, keepdims=True), 1)
    return scores - mean


def assert_derivative(name: str, slope: Any, after: Any, value: Any, moved: Any) -> None:
    """Raise AssertionError unless slopes at both ends of a `STEP` agree with the values' difference.

    ``slope`` is f′(0), ``after`` f′(h), ``value`` f(0), ``moved`` f(h), and h is `STEP`. By the trapezoid
    rule, (f(h) − f(0))/h is (f′(0) + f′(h))/2, with an error of about h²/12 · f‴.
    """
    found, expected = (slope + after) / 2, (moved - value) / STEP
    assert abs(found - expected) <= 1e-5 * abs(expected) + 1e-6, (
        f"the derivative by the {name} is {found}, differences give {expected}"
    )


def turn(dim: int) -> np.ndarray:
    """Return a fixed orthogonal matrix [dim, dim]."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0]
