"""Functions that the checks share: running laws one by one, and comparing results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import own_place

# A function of the subject to be checked. Its name is the law's name, and its docstring states the law.
Law: TypeAlias = Callable[[Any], None]

# The tolerance for rounding in float32, for sums over some tens of rows and linear systems with condition
# numbers below 1000.
SINGLE = 1e-4
# The tolerance for rounding in float64.
DOUBLE = 1e-6


def hold(laws: Sequence[Law], name: str, subject: Any, exclude: Mapping[str, str] | None) -> None:
    """Run the laws on a subject, one by one; raise one error for all that are broken.

    Args:
        laws: all laws of the check.
        name: name of the subject, for the message.
        subject: the argument of the laws.
        exclude: laws to leave out, each with the reason why it does not apply.

    Raises:
        AssertionError: with each law that is broken, its statement, and the numbers.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.
    """
    exclude = {} if exclude is None else exclude
    names = [law.__name__ for law in laws]
    for law, reason in exclude.items():
        if law not in names:
            raise ValueError(f"exclude: expected laws among {names}, got {law!r}")
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"exclude: expected the reason why {law!r} is no law here, got {reason!r}")
    broken, cause = dict[str, list[str]](), None  # statements of laws, by what was found
    for law in laws:
        if law.__name__ in exclude:
            continue
        try:
            law(subject)
        # A subject that breaks a law may raise any exception.
        except Exception as error:
            what = "" if isinstance(error, AssertionError) else f"raised {type(error).__name__}: "
            says = " ".join((inspect.getdoc(law) or "").split())
            broken.setdefault(f"{what}{error}{own_place(error)}", []).append(
                f"{name} breaks the law {law.__name__!r}. {says}"
            )
            cause = cause or error
    if broken:
        told = ("\n".join((*says, found)) for found, says in broken.items())
        raise AssertionError(";\n".join(told)) from cause


def _numbers(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _compare(
    actual: Any, expected: Any, what: str, differ: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    """Raise AssertionError unless two pytrees have one structure, and ``differ`` is False in all leaves."""
    structures = jax.tree.structure(actual), jax.tree.structure(expected)
    assert structures[0] == structures[1], f"{what}: expected {structures[1]}, got {structures[0]}"
    named = jax.tree_util.tree_leaves_with_path(actual)
    for (path, leaf), goal in zip(named, jax.tree.leaves(expected), strict=True):
        where, one, other = f"{what}{jax.tree_util.keystr(path)}", _numbers(leaf), _numbers(goal)
        assert one.shape == other.shape, f"{where}: expected shape {other.shape}, got {one.shape}"
        if (wrong := differ(one, other)).any():
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

    def differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        largest = np.abs(other[np.isfinite(other)]).max(initial=floor)
        return ~np.isclose(one, other, tolerance, tolerance * largest, equal_nan=True)

    _compare(actual, expected, what, differ)


def assert_same(actual: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless the numbers of two pytrees are exactly equal; NaN equals NaN.

    ``what`` names the trees in the error.
    """
    _compare(actual, expected, what, lambda one, other: ~((one == other) | ((one != one) & (other != other))))


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


def turn(dim: int) -> np.ndarray:
    """Return a fixed orthogonal matrix [dim, dim]."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0]
