"""What the checks share: how laws are run one after the other, and how results are compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.optional import optional

# A function of what is to be checked; its name is the law's, its docstring says what must hold.
Law: TypeAlias = Callable[[Any], None]

# Rounding in float32, of sums over some tens of rows and of systems of conditions below 1000.
SINGLE = 1e-4
# By how much numbers are moved to see that derivatives are right; in float64.
STEP = 1e-6


def hold(laws: Sequence[Law], name: str, subject: Any, exclude: Mapping[str, str] | None) -> None:
    """Run the laws one after the other.

    Args:
        laws: all that there are.
        name: what is checked, for the message.
        subject: what the laws are called with.
        exclude: laws to leave out, and why each is none here.

    Raises:
        AssertionError: with the first law that is broken, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.
    """
    exclude = {} if exclude is None else exclude
    names = [law.__name__ for law in laws]
    for law, reason in exclude.items():
        if law not in names:
            raise ValueError(f"exclude: expected laws among {names}, got {law!r}")
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"exclude: expected the reason why {law!r} is no law here, got {reason!r}")
    for module in ("chex", "hypothesis"):
        optional(module, "testing")  # says what is missing before any law is tried
    for law in laws:
        if law.__name__ in exclude:
            continue
        try:
            law(subject)
        except Exception as error:
            what = "" if isinstance(error, AssertionError) else f"raised {type(error).__name__}: "
            says = " ".join((inspect.getdoc(law) or "").split())
            raise AssertionError(f"{name} breaks the law {law.__name__!r}. {says}\n{what}{error}") from error


def assert_close(actual: Any, expected: Any, tolerance: float, what: str) -> None:
    """Raise unless two pytrees are near: leaf by leaf, relative to the leaf's largest finite number."""
    chex = optional("chex", "testing")
    chex.assert_trees_all_equal_structs(actual, expected)
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True
    ):
        other = np.asarray(other).astype(np.float64)
        largest = np.abs(other[np.isfinite(other)]).max(initial=0)
        chex.assert_trees_all_close(
            np.asarray(one).astype(np.float64),
            other,
            rtol=tolerance,
            atol=tolerance * largest,
            custom_message=f"{what}{jax.tree_util.keystr(path)}: first, and what was expected, second",
        )


def assert_same(actual: Any, expected: Any, what: str) -> None:
    """Raise unless two pytrees are equal, to the bit."""
    optional("chex", "testing").assert_trees_all_equal(actual, expected, custom_message=what)


def assert_numbers(tree: Any, what: str) -> None:
    """Raise unless all leaves are finite numbers."""
    leaves = jax.tree.leaves(tree)
    for leaf in leaves:
        known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float))
        assert known, f"{what}: expected a pytree of numbers, got a leaf of {type(leaf).__name__}: {leaf!r}"
    optional("chex", "testing").assert_tree_all_finite(leaves, custom_message=what)


class Batched:
    """A function compiled for several arguments at once, by ``jit`` of ``vmap``; traced once, or an error."""

    def __init__(self, function: Callable[[Any, Any], Any], size: int) -> None:
        """Take a function of what all share and of what each has of its own, and how many there are."""
        self._size = size
        self._own: Any = None
        self._found: Any = None

        # Leaves alone go through `vmap`: records of stacked arrays would not be what their types say.
        def of_one(shared: Any, leaves: list[jax.Array]) -> list[jax.Array]:
            found, self._found = jax.tree.flatten(function(shared, jax.tree.unflatten(self._own, leaves)))
            return found

        def of_all(shared: Any, leaves: list[jax.Array]) -> list[jax.Array]:
            return jax.vmap(of_one, in_axes=(None, 0))(shared, leaves)

        chex = optional("chex", "testing")
        chex.clear_trace_counter()
        self._run = jax.jit(chex.assert_max_traces(of_all, n=1))

    def __call__(self, shared: Any, *own: Any) -> list[Any]:
        """What the function gives for each, in NumPy; the last one fills up what is missing."""
        padded = [*own, *[own[-1]] * (self._size - len(own))]
        self._own = jax.tree.structure(own[0])
        columns = zip(*map(jax.tree.leaves, padded), strict=True)
        found = [np.asarray(leaf) for leaf in self._run(shared, [jnp.stack(column) for column in columns])]
        return [jax.tree.unflatten(self._found, [leaf[i] for leaf in found]) for i in range(len(own))]


def assert_derivative(name: str, slope: Any, after: Any, value: Any, moved: Any) -> None:
    """Raise unless the slopes at both ends of a `STEP` are what the values there say.

    By the trapezoid rule, (f(h) − f(0))/h is (f′(0) + f′(h))/2 up to h²/12 of the third derivative.
    """
    found, expected = (slope + after) / 2, (moved - value) / STEP
    assert abs(found - expected) <= 1e-5 * abs(expected) + 1e-6, (
        f"the derivative by the {name} is {found}, differences give {expected}"
    )


def double() -> AbstractContextManager[Any]:
    """Enable float64 within a ``with`` block, under the name that the installed jax has for it."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return optional("jax.experimental", "testing").enable_x64()


def on_examples(check: Callable[..., None], **strategies: Any) -> None:
    """Call a function with a few values of Hypothesis's strategies, every time the same."""
    hypothesis = optional("hypothesis", "testing")
    settings = hypothesis.settings(
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def run(**drawn: Any) -> None:
        check(**drawn)

    settings(hypothesis.given(**strategies)(run))()
