"""Laws that an estimator of a covariance or a scatter keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.optional import optional
from covfree.testing.federations import CLASSES, table
from covfree.testing.laws import (
    SINGLE,
    STEP,
    Batched,
    assert_close,
    assert_derivative,
    assert_numbers,
    assert_same,
    double,
    hold,
    on_examples,
)
from covfree.types import Rows

_BATCH = 2


@dataclass(frozen=True)
class _Subject:
    """An estimator under check."""

    estimate: Callable[[Rows, int], Any]
    dim: int

    @cached_property
    def example(self) -> Rows:
        return table(self.dim)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """Hypothesis's strategies of tables of rows."""
        strategies = optional("hypothesis.strategies", "testing")
        seeds, classes = strategies.integers(0, 2**16), strategies.integers(0, CLASSES - 1)
        return {"rows": strategies.builds(table, strategies.just(self.dim), seeds, classes)}

    def direct(self, rows: Rows) -> Any:
        """Of a call outside of ``jit``, in float32."""
        return self.estimate(_single(rows), CLASSES)

    @cached_property
    def _compiled(self) -> Batched:
        def of_one(_: None, rows: Any) -> Any:
            def value(mean: Any) -> Any:
                matrix = self.estimate(replace(rows, mean=mean), CLASSES)
                return jnp.sin(matrix).sum(), matrix

            (loss, matrix), slope = jax.value_and_grad(value, has_aux=True)(rows.mean)
            return matrix, loss, slope

        return Batched(of_one, _BATCH)

    def compiled(self, *rows: Rows) -> list[Any]:
        """The estimate, a value and its derivative: in float64, under ``jit`` and ``vmap``."""
        with double():
            return self._compiled(None, *rows)


def _single(rows: Rows) -> Rows:
    return replace(rows, mean=jnp.asarray(rows.mean, jnp.float32))


def _mapped(rows: Rows, function: Callable[[np.ndarray], np.ndarray]) -> Rows:
    return replace(rows, mean=function(np.asarray(rows.mean)))


def pytree(subject: _Subject) -> None:
    """The estimate is an array of finite numbers, [dim, dim] or one such matrix for each class."""
    matrix = subject.direct(subject.example)
    assert_numbers(matrix, "the estimate")
    size = (subject.dim, subject.dim)
    assert jnp.shape(matrix) in (size, (CLASSES, *size)), f"the estimate has shape {jnp.shape(matrix)}"


def pure(subject: _Subject) -> None:
    """The same rows give the same estimate, to the bit, and are not changed."""
    rows = _single(subject.example)
    before = copy.deepcopy(rows)
    first = subject.estimate(rows, CLASSES)
    assert_same(subject.estimate(rows, CLASSES), first, "the second estimate, and the first")
    assert_same(rows, before, "the rows after the call, and before")


def jit(subject: _Subject) -> None:
    """Called directly in float32 it gives what it gives compiled and batched (jit of vmap) in float64."""
    ((matrix, *_),) = subject.compiled(subject.example)
    assert_close(np.asarray(subject.direct(subject.example)), matrix, SINGLE, "the estimate")


def trace(subject: _Subject) -> None:
    """Other rows of the same shape trace nothing anew."""
    subject.compiled(table(subject.dim, 1))


def order(subject: _Subject) -> None:
    """The order of the rows does not matter."""

    def check(rows: Rows) -> None:
        places = np.random.default_rng(0).permutation(len(rows.label))
        other = jax.tree.map(lambda column: column[places], rows)
        (first, *_), (second, *_) = subject.compiled(rows, other)
        assert_close(second, first, 1e-6, "the estimate from rows in another order")

    on_examples(check, **subject.drawn)


def padding(subject: _Subject) -> None:
    """Rows with count 0 or a label below 0 change nothing, whatever their means hold."""

    def check(rows: Rows) -> None:
        junk = _mapped(rows, lambda mean: np.where(np.isnan(mean), 1e30, mean))
        ((matrix, *_),), ((other, *_),) = subject.compiled(rows), subject.compiled(junk)
        assert_same(other, matrix, "the estimate with 1e30 in padding, and with NaN")

    on_examples(check, **subject.drawn)
    rows = subject.example
    kept = (np.asarray(rows.count) > 0) & (np.asarray(rows.label) >= 0)
    clean = jax.tree.map(lambda column: column[kept], rows)
    ((matrix, *_),) = subject.compiled(rows)
    assert_close(np.asarray(subject.direct(clean)), matrix, SINGLE, "the estimate without padding")


def positive(subject: _Subject) -> None:
    """The estimate is symmetric, and no eigenvalue is below 0."""

    def check(rows: Rows) -> None:
        ((matrix, *_),) = subject.compiled(rows)
        assert_close(np.swapaxes(matrix, -1, -2), matrix, 1e-9, "the transposed estimate, and the estimate")
        values = np.linalg.eigvalsh(matrix)
        least, most = values.min(), np.abs(values).max()
        assert least >= -1e-9 * most, f"the least eigenvalue is {least}, the largest {most}"

    on_examples(check, **subject.drawn)


def scaling(subject: _Subject) -> None:
    """Features times s have an estimate times s²."""

    def check(rows: Rows) -> None:
        (first, *_), (second, *_) = subject.compiled(rows, _mapped(rows, lambda mean: 8 * mean))
        assert_close(second, 64 * first, 1e-6, "the estimate from 8 times the features")

    on_examples(check, **subject.drawn)


def translation(subject: _Subject) -> None:
    """Features that are all moved alike have the same estimate."""

    def check(rows: Rows) -> None:
        (first, *_), (second, *_) = subject.compiled(rows, _mapped(rows, lambda mean: mean + 5))
        assert_close(second, first, 1e-6, "the estimate from features plus 5")

    on_examples(check, **subject.drawn)


def rotation(subject: _Subject) -> None:
    """Features X R have the estimate Rᵀ Σ̂ R, for a rotation R."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(subject.dim, subject.dim)))[0]

    def check(rows: Rows) -> None:
        (first, *_), (second, *_) = subject.compiled(rows, _mapped(rows, lambda mean: mean @ turn))
        assert_close(second, turn.T @ first @ turn, 1e-6, "the estimate from rotated features")

    on_examples(check, **subject.drawn)


def gradients(subject: _Subject) -> None:
    """Derivatives by the means are finite, those of differences, and 0 for padding."""

    def check(rows: Rows) -> None:
        kept = ((np.asarray(rows.count) > 0) & (np.asarray(rows.label) >= 0))[:, None]
        zero = np.zeros(np.shape(rows.mean))
        way = np.where(kept, np.random.default_rng(0).normal(size=zero.shape), zero)
        moved = _mapped(rows, lambda mean: mean + STEP * way)
        (_, value, slope), (_, other, after) = subject.compiled(rows, moved)
        assert_numbers(slope, "derivatives")
        assert_same(np.where(kept, zero, slope), zero, "derivatives by the means of padding")
        assert_derivative("means", (slope * way).sum(), (after * way).sum(), value, other)

    on_examples(check, **subject.drawn)


ESTIMATOR_LAWS = (
    pytree,
    pure,
    jit,
    trace,
    order,
    padding,
    positive,
    scaling,
    translation,
    rotation,
    gradients,
)


def check_estimator(
    estimate: Callable[[Rows, int], Any],
    *,
    dim: int = 5,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Hold an estimator to the laws of a covariance that is estimated from rows.

    A shrinkage rule is held to them as what it makes of an estimate, see docs/your-own.md.

    Args:
        estimate: takes `Rows` and the number of classes, gives a matrix [dim, dim], or one for each class.
        dim: size of the features.
        exclude: laws that are none for this estimator, each with the reason: e.g. ``scaling`` where a number
            is in the features' unit, ``translation`` where it is about the origin.

    Raises:
        AssertionError: if a law is broken: its name, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.

    >>> import covfree
    >>> def within(rows, num_classes):
    ...     return covfree.within_scatter(rows, covfree.first_moments(rows, num_classes))
    >>> check_estimator(within)
    """
    name = getattr(estimate, "__name__", repr(estimate))
    hold(ESTIMATOR_LAWS, f"estimator {name!r}", _Subject(estimate, dim), exclude)
