"""`Case`, a function to be checked, with its examples; and laws that several checks share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.row_types import double
from covfree.testing.laws import DOUBLE, SINGLE, Law, assert_close, assert_numbers, assert_same

# The number of examples that one call of the compiled function takes.
BATCH = 4
# The number of examples that are drawn for a law.
_DRAWN = 3
# The step of finite differences that check derivatives, in float64.
_STEP = 1e-6


def same(seen: Any) -> Any:
    """Return the argument unchanged: the default of functions that change a law's input or its outcome."""
    return seen


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def moved(numbers: Any, step: Any) -> Any:
    """Add ``step`` to the first float of a pytree, step/2 to the last, and numbers between to the others."""
    leaves, structure = jax.tree.flatten(numbers)
    speeds = np.linspace(1, 0.5, max(len(leaves), 1))
    pairs = zip(leaves, speeds, strict=False)
    return structure.unflatten([leaf + step * speed if _is_float(leaf) else leaf for leaf, speed in pairs])


def replaced(given: Any, arrays: dict[str, Any]) -> Any:
    """Replace arrays of an input, which is a named tuple or a dataclass."""
    return given._replace(**arrays) if hasattr(given, "_replace") else replace(given, **arrays)


class Found(NamedTuple):
    """What the function under test (``Case.make``) returned for one input, and derivatives of the result.

    Attributes:
        seen: arrays by which results are compared: e.g. the scores of a head, or a matrix (`Case.see`).
        value: a scalar, computed from ``seen`` by a smooth function.
        slopes: a dict of derivatives of ``value``: by each array in `Case.moving`, under its name; and under
            "numbers" by t, the step of `Case.move`. Empty if no derivatives are taken.
    """

    seen: Any
    value: Any
    slopes: Any


@dataclass(frozen=True)
class Case:
    """A function under test, ``make``, and the functions by which laws draw, change and compare its inputs.

    ``a -> b`` stands for a function from a to b. ``given`` is an input of ``make``: a pytree of float64 NumPy
    arrays, of the same shapes in all inputs; NaN marks padding. ``made`` is a result of ``make``: a head, a
    matrix or rows. ``seen`` are the arrays by which two results are compared, such as a head's scores.

    Attributes:
        shared: a pytree that is passed with every input, such as a method; None if there is none.
        make: ``(shared, given) -> made``.
        see: ``(made, given) -> seen``.
        draw: ``(seed, absent) -> given``, a random input, in which the class ``absent`` has no example.
        moving: names of the input's arrays by which derivatives are taken.
        move: ``(shared, t) -> shared``, with multiples of t added to its hyperparameters.
        clean: ``given -> given``, the input without padding.
        reference: the user's formula in float64 NumPy; None if there is none.
        formula: ``(reference, given) -> seen``, by the user's formula.
        to: a function that is applied to ``seen`` before it is compared with the formula.
        tolerance: the relative error allowed between results in float64.
        single: the relative error allowed if one of the results is in float32.
        exact: whether to compile in float64.
        batched: whether the compiled function is run under ``vmap``, which takes longer to compile.
        differentiable: whether to take derivatives.
        odd: inputs with unusual data, by what is unusual in them.
        about: what else the laws of one check need.
    """

    shared: Any
    make: Callable[[Any, Any], Any]
    see: Callable[[Any, Any], Any]
    draw: Callable[..., Any]
    moving: tuple[str, ...] = ()
    move: Callable[[Any, Any], Any] = moved
    clean: Callable[[Any], Any] = same
    reference: Callable[..., Any] | None = None
    formula: Callable[[Any, Any], Any] | None = None
    to: Callable[[Any], Any] = same
    tolerance: float = DOUBLE
    single: float = SINGLE
    exact: bool = True
    batched: bool = True
    differentiable: bool = True
    odd: Mapping[str, Any] = field(default_factory=dict)
    about: Any = None
    traced: list[int] = field(default_factory=list)  # one entry for each trace

    @cached_property
    def example(self) -> Any:
        """An input for ``make``; all other inputs have its shape."""
        return self.draw()

    @property
    def drawn(self) -> Iterator[Any]:
        """Yield a few random inputs for ``make``, the same in every run."""
        return (self.draw(seed=seed, absent=(5 * seed) % 6) for seed in range(1, 1 + _DRAWN))

    def direct(self, given: Any) -> Any:
        """Convert the input ``given`` to float32, call ``make`` on it without ``jit``, return the result."""
        return self.make(self.shared, single(given))

    @cached_property
    def plain(self) -> Any:
        """The input `example` without its padding."""
        return self.clean(self.example)

    @cached_property
    def made(self) -> Any:
        """What ``make`` returns for the input `plain`, in float32 and not compiled."""
        return self.direct(self.plain)

    def seen(self, given: Any) -> Any:
        """Run the code under test on ``given``, in float32, not compiled; return the arrays to compare."""
        made = self.made if given is self.plain else self.direct(given)
        return jax.tree.map(np.asarray, self.see(made, single(given)))

    @cached_property
    def _run(self) -> tuple[Any, dict[str, Any]]:
        # Pass only leaves: records with stacked arrays would contradict the types of their fields.
        structures: dict[str, Any] = {}

        def of_one(shared: Any, step: Any, leaves: list[Any]) -> list[Any]:
            given = jax.tree.unflatten(structures["given"], leaves)

            def value(arrays: dict[str, Any]) -> tuple[Any, Any]:
                changed = replaced(given, {name: arrays[name] for name in self.moving})
                seen = self.see(self.make(self.move(shared, arrays["numbers"]), changed), changed)
                floats = [x for x in jax.tree.leaves(seen) if _is_float(x)]
                return sum(jnp.sin(jnp.where(jnp.isfinite(x), x, 0)).sum() for x in floats), seen

            arrays, slopes = {"numbers": step} | {name: getattr(given, name) for name in self.moving}, {}
            if self.differentiable:
                (loss, seen), slopes = jax.value_and_grad(value, has_aux=True)(arrays)
            else:
                loss, seen = value(arrays)
            found, structures["found"] = jax.tree.flatten(Found(seen, loss, slopes))
            return found

        def of_all(shared: Any, step: Any, leaves: list[Any]) -> list[Any]:
            self.traced.append(1)
            of_given = partial(of_one, shared, step)
            return jax.vmap(of_given)(leaves) if self.batched else of_given(leaves)

        return jax.jit(of_all), structures

    def compiled(self, *given: Any, shared: Any = None, step: float = 0.0) -> list[Found]:
        """Compile the function under test (``make``), and return a `Found`, its result, for each input.

        The function is compiled once, in float64 if the case is ``exact``. ``given`` are the inputs, and
        ``shared`` replaces the case's own `shared`, whose numbers are moved by ``step``.
        """
        run, structures = self._run
        structures["given"] = jax.tree.structure(given[0])
        shared = self.shared if shared is None else shared
        each = [list(map(np.asarray, jax.tree.leaves(one))) for one in given]
        with double() if self.exact else nullcontext():
            run = partial(run, shared, jnp.asarray(np.float64(step)))
            if self.batched:
                padded = [*each, *[each[-1]] * (BATCH - len(each))]
                stacked = run([jnp.asarray(np.stack(column)) for column in zip(*padded, strict=True)])
                found = list(zip(*map(np.asarray, stacked), strict=True))[: len(each)]
            else:
                found = [list(map(np.asarray, run(list(map(jnp.asarray, one))))) for one in each]
        return [jax.tree.unflatten(structures["found"], leaves) for leaves in found]


def single(given: Any) -> Any:
    """Convert float64 arrays to float32."""
    return jax.tree.map(lambda x: x.astype(np.float32) if np.result_type(x) == np.float64 else x, given)


def relation(
    name: str,
    says: str,
    change: Callable[[Any], Any],
    expected: Callable[[Any], Any] = same,
    *,
    to: Any = same,
) -> Law:
    """Make a law that says how a change of the input changes the outcome.

    Args:
        name: the law's name.
        says: the statement that must hold.
        change: ``given -> given``, the change of the input.
        expected: ``seen -> seen``, the expected change of the outcome.
        to: a function that is applied to each of the two outcomes before they are compared.
    """

    def check(case: Case) -> None:
        for given in case.drawn:
            first, second = (found.seen for found in case.compiled(given, change(given)))
            assert_close(to(second), to(expected(first)), case.tolerance, "after the change")

    check.__name__, check.__doc__ = name, says
    return check


def pure(case: Case) -> None:
    """Equal arguments give equal results, to the bit, and the call does not change its arguments."""
    given = single(case.plain)
    before = copy.deepcopy((case.shared, given))
    assert_same(case.make(case.shared, given), case.made, "the second call, and the first")
    assert_same((case.shared, given), before, "the arguments after the call, and before")


def jit(case: Case) -> None:
    """The function gives the same result called directly in float32 and compiled, perhaps in float64."""
    (found,) = case.compiled(case.example)
    try:
        assert_close(case.seen(case.plain), found.seen, case.single, "called directly, and compiled")
    except AssertionError:
        # `plain` has no padding, but the compiled call's input had. The law `padding` compares these two, so
        # compare on the same input here.
        assert_close(case.seen(case.example), found.seen, case.single, "called directly, and compiled")


def trace(case: Case) -> None:
    """Jax traces the call only once: other values of the same shapes, or a copy of the subject, reuse it."""
    case.compiled(case.example)
    case.compiled(case.draw(seed=1), shared=copy.deepcopy(case.shared))
    assert len(case.traced) == 1, f"traced {len(case.traced)} times"


def padding(case: Case) -> None:
    """The result does not depend on padding, whatever numbers the padding holds."""
    for given in case.drawn:
        junk = jax.tree.map(lambda x: np.nan_to_num(x, nan=1e30), given)
        (with_nan,), (with_junk,) = case.compiled(given), case.compiled(junk)
        assert_same(with_junk.seen, with_nan.seen, "with 1e30 in padding, and with NaN")
    (padded,) = case.compiled(case.example)
    assert_close(case.seen(case.plain), padded.seen, case.single, "without padding")


def reference(case: Case) -> None:
    """The result equals the reference formula's, if given; scores may differ by a constant in each row."""
    if case.reference is None or case.formula is None:
        return
    for given in case.drawn:
        (found,) = case.compiled(given)
        with double():
            expected = np.asarray(case.formula(case.reference, given))
        assert_close(case.to(found.seen), case.to(expected), case.tolerance, "by the formula")


def gradients(case: Case) -> None:
    """Derivatives by the input are finite, agree with finite differences, and are 0 for padding."""
    for given in case.drawn:
        arrays = {name: np.asarray(getattr(given, name)) for name in case.moving}
        ways = {
            name: np.where(np.isnan(array), 0, np.random.default_rng(0).normal(size=array.shape))
            for name, array in arrays.items()
        }
        beside = [replaced(given, {name: arrays[name] + _STEP * way}) for name, way in ways.items()]
        first, *others = case.compiled(given, *beside)
        assert_numbers(first.slopes, "derivatives by the ")
        others, ways = [*others, *case.compiled(given, step=_STEP)], ways | {"numbers": np.ones(())}
        for other, (name, way) in zip(others, ways.items(), strict=True):
            padding = np.where(np.asarray(way) == 0, first.slopes[name], 0)
            assert_same(padding, np.zeros_like(padding), f"derivatives by the {name} of padding")
            # By the trapezoid rule, (f(h) − f(0))/h is (f′(0) + f′(h))/2, with an error of about h²/12 · f‴.
            slope = sum((found.slopes[name] * way).sum() for found in (first, other)) / 2
            expected = (other.value - first.value) / _STEP
            assert abs(slope - expected) <= 1e-5 * abs(expected) + 1e-6, (
                f"the derivative by the {name} is {slope}, differences give {expected}"
            )


def assert_copied(tree: Any, what: str) -> None:
    """Raise AssertionError unless a pytree's leaves are finite and copies of it have its tree structure."""
    assert_numbers(tree, what)
    leaves, structure = jax.tree.flatten(tree)
    assert isinstance(hash(structure), int)
    for copied in (jax.tree.unflatten(structure, leaves), copy.deepcopy(tree)):
        assert jax.tree.structure(copied) == structure, (
            f"{what}: a copy has another structure, so that all would be compiled anew for it; make its "
            f"records frozen dataclasses: {structure} and {jax.tree.structure(copied)}"
        )
