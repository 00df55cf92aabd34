"""Laws that a head keeps: what makes a classifier of a covariance and the moments of the classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.linalg import Scatter
from covfree.optional import optional
from covfree.testing.federations import CLASSES, federation
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
from covfree.types import Head, Moments

_BATCH = 3


class _Given(NamedTuple):
    """What a head is made of, and where its scores are looked at; in float64 NumPy."""

    covariance: np.ndarray
    counts: np.ndarray
    total: np.ndarray
    probes: np.ndarray

    def arguments(self, dtype: Any = np.float64) -> tuple[Scatter, Moments]:
        """As a method passes them on."""
        count = jnp.asarray(self.counts, jnp.int32)
        moments = Moments(count, jnp.minimum(count, 4), jnp.asarray(self.total, dtype))
        return Scatter.from_matrix(jnp.asarray(self.covariance, dtype)), moments

    def transformed(self, matrix: np.ndarray) -> _Given:
        """Of features that are multiplied by a matrix."""
        covariance = matrix.T @ self.covariance @ matrix
        return _Given(covariance, self.counts, self.total @ matrix, self.probes @ matrix)


def _given(dim: int, seed: int = 0, absent: int = 3) -> _Given:
    """Of a small federation; the class ``absent`` has no example."""
    examples = federation(dim, seed, absent).clean
    count = np.bincount(examples.labels, minlength=CLASSES)
    total = np.stack([examples.features[examples.labels == c].sum(0) for c in range(CLASSES)])
    away = examples.features - (total / np.maximum(count, 1)[:, None])[examples.labels]
    covariance = away.T @ away / len(away) + 0.1 * np.eye(dim)
    probes = 2 * np.random.default_rng(1).normal(size=(16, dim)).astype(np.float32)
    return _Given(covariance, count, total, probes.astype(np.float64))


@dataclass(frozen=True)
class _Subject:
    """A head under check."""

    make: Callable[[Scatter, Moments], Head]
    dim: int

    @cached_property
    def example(self) -> _Given:
        return _given(self.dim)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """Hypothesis's strategies of what heads are made of."""
        strategies = optional("hypothesis.strategies", "testing")
        seeds, classes = strategies.integers(0, 2**16), strategies.integers(0, CLASSES - 1)
        return {"given": strategies.builds(_given, strategies.just(self.dim), seeds, classes)}

    @cached_property
    def head(self) -> Any:
        """Of the example, in float32."""
        return self.make(*self.example.arguments(np.float32))

    @cached_property
    def _compiled(self) -> Batched:
        def of_one(_: None, given: Any) -> Any:
            def value(covariance: Any, total: Any) -> Any:
                moved = given._replace(covariance=covariance, total=total)
                scores = self.make(*moved.arguments())(given.probes)
                return jnp.sin(jnp.where(jnp.isfinite(scores), scores, 0)).sum(), scores

            found = jax.value_and_grad(value, (0, 1), has_aux=True)(given.covariance, given.total)
            (loss, scores), slopes = found
            return scores, loss, slopes

        return Batched(of_one, _BATCH)

    def compiled(self, *given: _Given) -> list[Any]:
        """Scores at the probes, a value and its derivatives: in float64, under ``jit`` and ``vmap``."""
        with double():
            return self._compiled(None, *given)


def pytree(subject: _Subject) -> None:
    """The head is a pytree of finite numbers."""
    assert_numbers(subject.head, "the head")


def scores(subject: _Subject) -> None:
    """It gives features [*batch, dim] scores [*batch, classes], the same in any batch, in their precision."""
    features = subject.example.probes.astype(np.float32)
    together = np.asarray(subject.head(features))
    assert together.dtype == np.float32, f"scores of float32 features are {together.dtype}"
    assert together.shape == (16, CLASSES), f"scores of features [16, dim] have shape {together.shape}"
    for batch, expected in (
        (features.reshape(2, 8, -1), together.reshape(2, 8, -1)),
        (features[0], together[0]),
    ):
        found = np.asarray(subject.head(batch))
        assert found.shape == expected.shape, f"scores of features {batch.shape} have shape {found.shape}"
        assert_close(found, expected, SINGLE, f"scores of features {batch.shape}")


def pure(subject: _Subject) -> None:
    """The same arguments give the same head, to the bit, and are not changed."""
    given = subject.example.arguments(np.float32)
    before = copy.deepcopy(given)
    assert_same(subject.make(*given), subject.head, "the second head, and the first")
    assert_same(given, before, "the arguments after the call, and before")


def jit(subject: _Subject) -> None:
    """Called directly in float32 it gives what it gives compiled and batched (jit of vmap) in float64."""
    direct = np.asarray(subject.head(subject.example.probes.astype(np.float32)))
    assert_close(direct, subject.compiled(subject.example)[0][0], SINGLE, "scores")


def trace(subject: _Subject) -> None:
    """Other numbers of the same shapes trace nothing anew."""
    subject.compiled(_given(subject.dim, 1))


def finite(subject: _Subject) -> None:
    """Scores are −∞ of classes without an example and finite of all others, also if there is only one."""
    alone = np.arange(CLASSES) == 2
    example = subject.example
    one = example._replace(
        counts=np.where(alone, example.counts, 0), total=np.where(alone[:, None], example.total, 0)
    )
    none = example._replace(counts=0 * example.counts, total=0 * example.total)
    cases = {"an absent class": example, "one class": one, "no class": none}
    for (name, given), (found, *_) in zip(cases.items(), subject.compiled(*cases.values()), strict=True):
        expected = np.broadcast_to(np.where(given.counts > 0, 0, -np.inf), found.shape)
        assert_same(np.where(np.isfinite(found), 0, found), expected, f"{name}: scores")


def classes(subject: _Subject) -> None:
    """Classes are names: where they are numbered otherwise, so are the scores."""

    def check(given: _Given) -> None:
        order = np.random.default_rng(0).permutation(CLASSES)
        other = given._replace(counts=given.counts[order], total=given.total[order])
        (first, *_), (second, *_) = subject.compiled(given, other)
        assert_close(second, first[:, order], 1e-6, "scores with classes renamed")

    on_examples(check, **subject.drawn)


def scaling(subject: _Subject) -> None:
    """The unit of the features does not matter: predictions of scaled features are the same."""

    def check(given: _Given) -> None:
        units = [given.transformed(scale * np.eye(subject.dim)) for scale in (1.0, 2.0**-12, 2.0**12)]
        first, *others = (found.argmax(-1) for found, *_ in subject.compiled(*units))
        for other in others:
            assert_same(other, first, "classes predicted with features scaled by 2^±12, and without")

    on_examples(check, **subject.drawn)


def rotation(subject: _Subject) -> None:
    """Directions do not matter: rotated features have the scores of the features."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(subject.dim, subject.dim)))[0]

    def check(given: _Given) -> None:
        (first, *_), (second, *_) = subject.compiled(given, given.transformed(turn))
        assert_close(second, first, 1e-6, "scores of rotated features")

    on_examples(check, **subject.drawn)


def factor(subject: _Subject) -> None:
    """A covariance that comes as a factor of few rows gives the head of the matrix in full."""
    _, moments = subject.example.arguments(np.float32)
    rows = np.random.default_rng(0).normal(size=(subject.dim - 2, subject.dim)).astype(np.float32)
    factored = Scatter.from_factor(jnp.asarray(rows)).shifted(0.5)
    features = subject.example.probes.astype(np.float32)
    full = Scatter.from_matrix(factored.dense())
    found, expected = (np.asarray(subject.make(given, moments)(features)) for given in (factored, full))
    assert_close(found, expected, 10 * SINGLE, "scores with a factor, and with the matrix")


def gradients(subject: _Subject) -> None:
    """Derivatives by the covariance and by the class sums are finite, and those of differences."""

    def check(given: _Given) -> None:
        rng = np.random.default_rng(0)
        way = rng.normal(size=given.covariance.shape)
        ways = {"covariance": way + way.T, "total": rng.normal(size=given.total.shape)}
        ways["total"][given.counts == 0] = 0
        moved = [given._replace(**{k: getattr(given, k) + STEP * way}) for k, way in ways.items()]
        (_, value, slopes), *others = subject.compiled(given, *moved)
        assert_numbers(slopes, "derivatives")
        for place, (name, way) in enumerate(ways.items()):
            _, other, after = others[place]
            assert_derivative(name, (slopes[place] * way).sum(), (after[place] * way).sum(), value, other)

    on_examples(check, **subject.drawn)


HEAD_LAWS = (pytree, scores, pure, jit, trace, finite, classes, scaling, rotation, factor, gradients)


def check_head(
    make: Callable[[Scatter, Moments], Any],
    *,
    dim: int = 5,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Hold a head to the laws that every head keeps.

    Args:
        make: as ``head=`` of `fedcof` takes it: makes a head of the within-class covariance, a `Scatter`, and
            the `Moments`.
        dim: size of the features.
        exclude: laws that are none for this head, each with the reason: ``scaling`` or ``rotation`` where a
            number is in the features' unit or directions are not all alike, ``gradients`` where there is no
            derivative.

    Raises:
        AssertionError: if a law is broken: its name, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.

    >>> import covfree
    >>> check_head(covfree.lda_head)
    """
    name = getattr(make, "__name__", repr(make))
    hold(HEAD_LAWS, f"head {name!r}", _Subject(make, dim), exclude)
