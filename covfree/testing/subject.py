"""A method under check, and the ways in which it is run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.linalg import Scatter
from covfree.testing.federations import CLASSES, Federation, federation
from covfree.testing.laws import SINGLE, Batched, double
from covfree.types import Rows

# (features, labels, clients, num_classes) of the examples without padding to a function from features to
# scores, in float64 NumPy.
Reference: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Callable[[np.ndarray], Any]]

# Federations that are fitted by one call of the compiled function.
BATCH = 4


class Fitted(NamedTuple):
    """What one fit gives.

    Attributes:
        scores: at the probes.
        value: a smooth function of the scores.
        slope: its derivative as all numbers of the method move.
        gradient: its derivatives by the features.
    """

    scores: Any
    value: Any
    slope: Any = None
    gradient: Any = None


class Task(NamedTuple):
    """What is fitted: a federation, by how much the numbers move, where scores are looked at."""

    federation: Federation
    step: float = 0.0
    probes: np.ndarray | None = None


@dataclass(frozen=True)
class Subject:
    """A method under check, and the ways in which it is run."""

    method: Any
    key: Any
    dim: int
    tolerance: float
    reference: Reference | None
    differentiable: bool

    @cached_property
    def probes(self) -> np.ndarray:
        """Features, exact in float32, at which classifiers are compared."""
        return 2 * np.random.default_rng(1).normal(size=(16, self.dim)).astype(np.float32).astype(np.float64)

    @cached_property
    def example(self) -> Federation:
        """One federation, for what is compiled for its shape alone."""
        return federation(self.dim).padded_last

    @cached_property
    def _compiled(self) -> Batched:
        def of_one(method: Any, task: Any) -> Fitted:
            features, labels, clients = task.federation

            def value(step: Any, features: Any) -> tuple[Any, Any]:
                moved = replace(method, params=_moved(method.params, step))
                head = covfree.fit(moved, features, labels, clients, num_classes=CLASSES, key=self.key)
                scores = head(task.probes)
                return jnp.sin(jnp.where(jnp.isfinite(scores), scores, 0)).sum(), scores

            if not self.differentiable:
                loss, scores = value(task.step, features)
                return Fitted(scores, loss)
            (loss, scores), slopes = jax.value_and_grad(value, (0, 1), has_aux=True)(task.step, features)
            return Fitted(scores, loss, *slopes)

        return Batched(of_one, BATCH)

    def compiled(self, *tasks: Task, method: Any = None) -> list[Fitted]:
        """Fit under ``jit`` and ``vmap``; in float64, where derivatives or a formula are looked at."""
        given = [task if task.probes is not None else task._replace(probes=self.probes) for task in tasks]
        exact = self.differentiable or self.reference is not None
        with double() if exact else nullcontext():
            return self._compiled(self.method if method is None else method, *given)

    def direct(self, federation: Federation) -> Any:
        """The head of a call outside of ``jit``, on float32 features."""
        features = federation.features.astype(np.float32)
        return covfree.fit(self.method, features, *federation[1:], num_classes=CLASSES, key=self.key)

    @cached_property
    def head(self) -> Any:
        """That of the example without padding."""
        return self.direct(self.example.clean)

    def scores(self, head: Any) -> np.ndarray:
        """Scores of a head at the probes."""
        return np.asarray(head(self.probes.astype(np.float32)))

    @property
    def single(self) -> float:
        """How near two results are of which one is in float32."""
        return max(self.tolerance, SINGLE)

    @cached_property
    def rows(self) -> Rows:
        """What the clients of the example without padding send."""
        features, labels, clients = self.example.clean
        return covfree.summarise(self.method, features.astype(np.float32), labels, clients, key=self.key)

    @cached_property
    def totals(self) -> Any:
        """Totals over these rows."""
        return covfree.accumulate(self.method, self.rows, num_classes=CLASSES)


def _moved(numbers: Any, step: Any) -> Any:
    """The numbers, moved at different speeds; integers stay."""
    leaves, structure = jax.tree.flatten(numbers)
    speeds = np.linspace(1, 0.5, max(len(leaves), 1))
    moved = [
        leaf + step * speed if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) else leaf
        for leaf, speed in zip(leaves, speeds, strict=False)
    ]
    return jax.tree.unflatten(structure, moved)


def plain(totals: Any) -> Any:
    """Totals as they may be compared: matrices in full, tables in an order of their own."""

    def one(total: Any) -> Any:
        if isinstance(total, Scatter):
            return total.dense()
        if not isinstance(total, Rows):
            return total
        columns = [np.asarray(x, np.float64).reshape(len(total.label), -1) for x in jax.tree.leaves(total)]
        table = np.concatenate(columns, axis=1)[np.asarray(total.count) > 0]
        return table[np.lexsort(table.T)]

    return jax.tree.map(one, totals, is_leaf=lambda node: isinstance(node, Scatter | Rows))
