"""Laws that a transform of a client's rows keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.optional import optional
from covfree.testing.federations import table
from covfree.testing.laws import SINGLE, Batched, assert_close, assert_numbers, assert_same, hold, on_examples
from covfree.types import Rows

_KEYS = 2


@dataclass(frozen=True)
class _Subject:
    """A transform under check."""

    transform: Any
    dim: int

    @cached_property
    def keys(self) -> Any:
        return jax.random.split(jax.random.key(0), _KEYS)

    @cached_property
    def example(self) -> Rows:
        return table(self.dim)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """Hypothesis's strategies of tables of rows."""
        strategies = optional("hypothesis.strategies", "testing")
        return {"rows": strategies.builds(table, strategies.just(self.dim), strategies.integers(0, 2**16))}

    def direct(self, rows: Rows) -> Rows:
        """Of a call outside of ``jit``, with the first key."""
        return self.transform(_arrays(rows), key=self.keys[0])

    @cached_property
    def _compiled(self) -> Batched:
        def of_one(given: Any, key: Any) -> Any:
            transform, rows = given

            def value(transform: Any) -> Any:
                sent = transform(rows, key=key)
                used = _used(jnp, sent)
                mean = jnp.where(used[:, None], sent.mean, 0)
                return jnp.sin(mean).sum() + jnp.where(used, sent.count, 0).sum().astype(mean.dtype), sent

            slope, sent = jax.grad(value, has_aux=True, allow_int=True)(transform)
            return sent, jax.tree.leaves(slope)

        return Batched(of_one, _KEYS)

    def compiled(self, rows: Rows, transform: Any = None) -> list[Any]:
        """What is sent with each key, and derivatives by the numbers: under ``jit`` and ``vmap``."""
        transform = self.transform if transform is None else transform
        return self._compiled((transform, _arrays(rows)), *self.keys)


def _arrays(rows: Rows) -> Rows:
    """In float32 as jax holds it."""
    return replace(jax.tree.map(jnp.asarray, rows), mean=jnp.asarray(rows.mean, jnp.float32))


def _used(numpy: Any, rows: Any) -> Any:
    """Which rows are no padding."""
    return (numpy.asarray(rows.count) > 0) & (numpy.asarray(rows.label) >= 0)


def pytree(subject: _Subject) -> None:
    """The transform is a pytree of finite numbers; a copy of it has the same structure."""
    assert_numbers(subject.transform, "the transform")
    structure = jax.tree.structure(subject.transform)
    assert jax.tree.structure(copy.deepcopy(subject.transform)) == structure, "a copy has another structure"


def pure(subject: _Subject) -> None:
    """The same rows and the same key give the same, to the bit, and are not changed."""
    rows = _arrays(subject.example)
    before = copy.deepcopy(rows)
    first = subject.transform(rows, key=subject.keys[0])
    assert_same(subject.transform(rows, key=subject.keys[0]), first, "the second call, and the first")
    assert_same(rows, before, "the rows after the call, and before")


def rows(subject: _Subject) -> None:
    """Rows come out, as many, of the same classes and clients, with finite means and counts of at least 0."""

    def check(rows: Rows) -> None:
        sent = subject.direct(rows)
        assert isinstance(sent, Rows), f"expected Rows, got {type(sent).__name__}"
        assert jnp.shape(sent.mean) == jnp.shape(rows.mean), f"means have shape {jnp.shape(sent.mean)}"
        assert jnp.shape(sent.count) == jnp.shape(rows.count), f"counts have shape {jnp.shape(sent.count)}"
        used, count = _used(np, rows), np.asarray(sent.count)
        for name in ("label", "client"):
            assert_same(np.asarray(getattr(sent, name))[used], getattr(rows, name)[used], name)
        assert_numbers((np.asarray(sent.mean)[used], count[used]), "what is sent")
        assert (count[used] >= 0).all(), f"the least count is {count[used].min()}"

    on_examples(check, **subject.drawn)


def padding(subject: _Subject) -> None:
    """Padding stays padding, and changes nothing in other rows, whatever it holds."""

    def check(rows: Rows) -> None:
        used = _used(np, rows)
        junk = replace(rows, mean=np.where(np.isnan(rows.mean), 1e30, rows.mean))
        sent, other = subject.direct(rows), subject.direct(junk)
        revived = _used(np, sent) & ~used
        assert not revived.any(), f"padding that is none any more: rows {np.flatnonzero(revived).tolist()}"
        for one, two in zip(jax.tree.leaves(sent), jax.tree.leaves(other), strict=True):
            assert_same(
                np.asarray(two)[used], np.asarray(one)[used], "rows beside padding of 1e30, and of NaN"
            )

    on_examples(check, **subject.drawn)


def splitting(subject: _Subject) -> None:
    """Each row is transformed by itself: other rows in its company change nothing in it."""

    def check(rows: Rows) -> None:
        mine = np.arange(len(rows.label)) % 2 == 0
        others = replace(
            rows,
            mean=np.where(mine[:, None], rows.mean, 3 * rows.mean - 1),
            count=np.where(mine, rows.count, 2 * rows.count).astype(np.int32),
        )
        sent, beside = subject.direct(rows), subject.direct(others)
        for one, two in zip(jax.tree.leaves(sent), jax.tree.leaves(beside), strict=True):
            assert_same(np.asarray(two)[mine], np.asarray(one)[mine], "the same rows among other rows")

    on_examples(check, **subject.drawn)


def jit(subject: _Subject) -> None:
    """Called directly it gives what it gives compiled and batched over keys (jit of vmap)."""
    sent, _ = subject.compiled(subject.example)[0]
    assert_close(jax.tree.map(np.asarray, subject.direct(subject.example)), sent, SINGLE, "rows")


def trace(subject: _Subject) -> None:
    """Other rows of the same shape and a copy of the transform trace nothing anew."""
    subject.compiled(subject.example)
    subject.compiled(table(subject.dim, 1), copy.deepcopy(subject.transform))


def gradients(subject: _Subject) -> None:
    """Derivatives by the transform's numbers are finite."""
    _, slopes = subject.compiled(subject.example)[0]
    floats = [leaf for leaf in slopes if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    assert_numbers(floats, "derivatives")


TRANSFORM_LAWS = (pytree, pure, rows, padding, splitting, jit, trace, gradients)


def check_transform(transform: Any, *, dim: int = 5, exclude: Mapping[str, str] | None = None) -> None:
    """Hold a transform of rows to the laws that let it run on one client's rows and on all clients' alike.

    Args:
        transform: e.g. ``covfree.count_noise("laplace", 0.5)``.
        dim: size of the features.
        exclude: laws that are none for this transform, each with the reason.

    Raises:
        AssertionError: if a law is broken: its name, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.

    >>> import covfree
    >>> check_transform(covfree.count_noise("laplace", 0.5))
    """
    name = getattr(getattr(transform, "apply", transform), "__name__", repr(transform))
    hold(TRANSFORM_LAWS, f"transform {name!r}", _Subject(transform, dim), exclude)
