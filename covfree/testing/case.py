"""What is under check, with the examples it is given and the ways in which it is run; laws that all keep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.testing.laws import (
    DOUBLE,
    SINGLE,
    STEP,
    Law,
    assert_close,
    assert_derivative,
    assert_numbers,
    assert_same,
    double,
    law,
)

# Examples that one call of the compiled function takes.
BATCH = 4
# How many are drawn for a law.
_DRAWN = 3


def same(seen: Any) -> Any:
    """What is expected where nothing changes."""
    return seen


class Found(NamedTuple):
    """What one example gives.

    Attributes:
        seen: what is compared: scores, a matrix, rows.
        value: a smooth function of it.
        slopes: its derivatives, by what moves; None if there are none.
    """

    seen: Any
    value: Any
    slopes: Any


@dataclass(frozen=True)
class Case:
    """Something under check. What it is given is a pytree in float64 NumPy, of one shape for all examples.

    Attributes:
        shared: a pytree that all examples share, such as a method; None if there is none.
        make: ``(shared, given) -> head, matrix or rows``.
        see: ``(made, given) -> arrays`` that are compared.
        draw: ``(seed, absent class) -> given``.
        moving: numbers of what is given by which derivatives are taken.
        put: ``(given, numbers) -> given`` with these numbers.
        way: a direction in which each of them is moved; 0 where it is padding.
        clean: ``given -> given`` without padding.
        junk: ``given -> given`` with 1e30 in padding.
        formula: ``given -> what must be seen``, None where there is none.
        to: what is compared of what is seen, where a formula is.
        tolerance: how far results of one computation may differ in float64.
        single: how far if one of them is in float32.
        exact: whether to compile in float64.
        differentiable: whether to take derivatives.
        about: what the laws of one check need besides.
    """

    shared: Any
    make: Callable[[Any, Any], Any]
    see: Callable[[Any, Any], Any]
    draw: Callable[..., Any]
    moving: Callable[[Any], dict[str, Any]]
    put: Callable[[Any, dict[str, Any]], Any]
    way: Callable[[Any], dict[str, Any]]
    clean: Callable[[Any], Any] = same
    junk: Callable[[Any], Any] = same
    formula: Callable[[Any], Any] | None = None
    to: Callable[[Any], Any] = same
    tolerance: float = DOUBLE
    single: float = SINGLE
    exact: bool = True
    differentiable: bool = True
    about: Any = None
    traced: list[int] = field(default_factory=list)  # a number for each time that it was traced

    @cached_property
    def example(self) -> Any:
        """One, for what is compiled for its shape alone."""
        return self.draw()

    @property
    def drawn(self) -> Iterator[Any]:
        """A few, every time the same."""
        return (self.draw(seed=seed, absent=(5 * seed) % 6) for seed in range(1, 1 + _DRAWN))

    def direct(self, given: Any) -> Any:
        """What is made by a call outside of ``jit``, in float32."""
        return self.make(self.shared, single(given))

    @cached_property
    def plain(self) -> Any:
        """The example without padding."""
        return self.clean(self.example)

    @cached_property
    def made(self) -> Any:
        """Of the example without padding."""
        return self.direct(self.plain)

    def seen(self, given: Any) -> Any:
        """What a call outside of ``jit`` shows, in float32."""
        made = self.made if given is self.plain else self.direct(given)
        return jax.tree.map(np.asarray, self.see(made, single(given)))

    @cached_property
    def _run(self) -> tuple[Any, dict[str, Any]]:
        # Leaves alone go through `vmap`: records of stacked arrays would not be what their types say.
        structures: dict[str, Any] = {}

        def of_one(shared: Any, leaves: list[Any]) -> list[Any]:
            given = jax.tree.unflatten(structures["given"], leaves)

            def value(numbers: dict[str, Any]) -> tuple[Any, Any]:
                moved = self.put(given, numbers)
                seen = self.see(self.make(shared, moved), moved)
                floats = [x for x in jax.tree.leaves(seen) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
                return sum(jnp.sin(jnp.where(jnp.isfinite(x), x, 0)).sum() for x in floats), seen

            numbers, slopes = self.moving(given), None
            if self.differentiable:
                (loss, seen), slopes = jax.value_and_grad(value, has_aux=True)(numbers)
            else:
                loss, seen = value(numbers)
            found, structures["found"] = jax.tree.flatten(Found(seen, loss, slopes))
            return found

        def of_all(shared: Any, leaves: list[Any]) -> list[Any]:
            self.traced.append(1)
            return jax.vmap(of_one, in_axes=(None, 0))(shared, leaves)

        return jax.jit(of_all), structures

    def compiled(self, *given: Any, shared: Any = None) -> list[Found]:
        """What each gives in one call of ``jit`` of ``vmap``; in float64, unless the case is not exact."""
        run, structures = self._run
        structures["given"] = jax.tree.structure(given[0])
        padded = [*given, *[given[-1]] * (BATCH - len(given))]
        columns = zip(*map(jax.tree.leaves, padded), strict=True)
        with double() if self.exact else nullcontext():
            leaves = [jnp.asarray(np.stack(list(map(np.asarray, column)))) for column in columns]
            found = run(self.shared if shared is None else shared, leaves)
        found = list(map(np.asarray, found))
        return [jax.tree.unflatten(structures["found"], [x[i] for x in found]) for i in range(len(given))]


def single(given: Any) -> Any:
    """The same in float32."""
    return jax.tree.map(lambda x: x.astype(np.float32) if np.result_type(x) == np.float64 else x, given)


def relation(
    name: str,
    says: str,
    change: Callable[[Any], Any],
    expected: Callable[[Any], Any] = same,
    *,
    to: Any = same,
) -> Law:
    """A law of what is seen where what is given changes.

    Args:
        name: of the law.
        says: what must hold.
        change: of what is given.
        expected: what that makes of what was seen before.
        to: what of it is compared.
    """

    def check(case: Case) -> None:
        for given in case.drawn:
            first, second = (found.seen for found in case.compiled(given, change(given)))
            assert_close(to(second), to(expected(first)), case.tolerance, "after the change")

    return law(name, says, check)


def pure(case: Case) -> None:
    """The same arguments give the same, to the bit, and are not changed."""
    given = single(case.plain)
    before = copy.deepcopy((case.shared, given))
    assert_same(case.make(case.shared, given), case.made, "the second call, and the first")
    assert_same((case.shared, given), before, "the arguments after the call, and before")


def jit(case: Case) -> None:
    """Called directly in float32 it gives what it gives compiled and batched (jit of vmap) in float64."""
    (found,) = case.compiled(case.example)
    try:
        assert_close(case.seen(case.plain), found.seen, case.single, "called directly, and compiled")
    except AssertionError:
        # Directly without padding, compiled with some: whether that differs is another law.
        assert_close(case.seen(case.example), found.seen, case.single, "called directly, and compiled")


def trace(case: Case) -> None:
    """Other numbers of the same shapes, and a copy of it, trace nothing anew."""
    case.compiled(case.example)
    case.compiled(case.draw(seed=1), shared=copy.deepcopy(case.shared))
    assert len(case.traced) == 1, f"traced {len(case.traced)} times"


def padding(case: Case) -> None:
    """Padding changes nothing, whatever it holds."""
    for given in case.drawn:
        (with_nan,), (with_junk,) = case.compiled(given), case.compiled(case.junk(given))
        assert_same(with_junk.seen, with_nan.seen, "with 1e30 in padding, and with NaN")
    (padded,) = case.compiled(case.example)
    assert_close(case.seen(case.plain), padded.seen, case.single, "without padding")


def reference(case: Case) -> None:
    """What the reference formula gives is found, scores up to a constant a row, where there is one."""
    if case.formula is None:
        return
    for given in case.drawn:
        (found,) = case.compiled(given)
        with double():
            expected = np.asarray(case.formula(given))
        assert_close(case.to(found.seen), case.to(expected), case.tolerance, "by the formula")


def gradients(case: Case) -> None:
    """Derivatives are finite, those of differences, and 0 for padding."""
    for given in case.drawn:
        ways, numbers = case.way(given), case.moving(given)
        moved = [case.put(given, {**numbers, name: numbers[name] + STEP * way}) for name, way in ways.items()]
        first, *others = case.compiled(given, *moved)
        assert_numbers(first.slopes, "derivatives by the ")
        for other, (name, way) in zip(others, ways.items(), strict=True):
            padding = np.where(np.asarray(way) == 0, first.slopes[name], 0)
            assert_same(padding, np.zeros_like(padding), f"derivatives by the {name} of padding")
            slope, after = ((found.slopes[name] * way).sum() for found in (first, other))
            assert_derivative(name, slope, after, first.value, other.value)


def assert_copied(tree: Any, what: str) -> None:
    """Raise unless a pytree has finite numbers alone, and a copy of it its structure."""
    assert_numbers(tree, what)
    leaves, structure = jax.tree.flatten(tree)
    assert isinstance(hash(structure), int)
    for copied in (jax.tree.unflatten(structure, leaves), copy.deepcopy(tree)):
        assert jax.tree.structure(copied) == structure, (
            f"{what}: a copy has another structure, so that all would be compiled anew for it; make its "
            f"records frozen dataclasses: {structure} and {jax.tree.structure(copied)}"
        )
