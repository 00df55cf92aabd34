"""Solve for the head from the server's state. Automatic shrinkage is compiled once for many methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.compiling import jit
from covfree.core.types import is_traced
from covfree.estimators.automatic import is_automatic
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.composed import MappedHead
from covfree.methods import Method


def head_of(method: Method[Any], state: tuple[Any, ...]) -> Any:
    """Solve for the head from the server's state after the last round.

    Automatic shrinkage takes longer to compile than everything else. So it runs first, compiled by itself:
    methods whose sums have the same shapes share this compiled function. Then the head is solved with the
    shrinkage that it chose.

    Shrinkage and head are compiled together if arrays are traced, or if ``method.system``, which makes the
    regularised matrix, does not call automatic shrinkage exactly once.
    """
    params = numbers = method.params
    nodes, structure = jax.tree.flatten(params, is_leaf=lambda node: isinstance(node, Shrinkage))
    places = [place for place, node in enumerate(nodes) if is_automatic(node)]
    if method.system is not None and len(places) == 1 and not is_traced(*jax.tree.leaves((params, state))):
        asked = _asked(method.system, params, state)
        if len(asked) == 1:
            rule = nodes[places[0]]
            nodes[places[0]] = Shrinkage(rule.rule(rule.strength, *asked[0]), _given)
            numbers = jax.tree.unflatten(structure, nodes)
    return _head(method.system, method.head, params, numbers, method.feature_map, state)


@partial(jit, plain="small", static_argnums=(0, 1))
def _head(
    system: Any, head: Callable[..., Any], params: Any, numbers: Any, feature_map: Any, state: tuple[Any, ...]
) -> Any:
    """Make the head: ``head(params, system(numbers, *state), *state)``; with a feature map, a `MappedHead`.

    ``system`` makes the regularised matrix with which the head is solved; without it, the head gets None.
    ``state`` is the server's state after the last round. ``params`` are the method's hyperparameters, and
    ``numbers`` are the same hyperparameters, but with the amount of shrinkage already chosen (`head_of`).
    """
    found = head(params, None if system is None else system(numbers, *state), *state)
    return found if feature_map is None else MappedHead(feature_map, found)


def _given(strength: Any, *_: Any) -> tuple[jax.Array, jax.Array]:
    """Return a and b of the shrunk covariance aΣ̂ + bI, which are known: ``strength`` is the pair (a, b).

    `head_of` gives this rule to a `Shrinkage` after it has computed a and b by the automatic rule.
    """
    return strength[0], strength[1]


@partial(jit, static_argnums=0)
def _asked(system: Callable[..., Any], params: Any, state: tuple[Any, ...]) -> list[Any]:
    """Return the arguments, without the strength, that ``system`` passes to automatic shrinkage rules.

    There is a tuple for each call. ``system`` makes a method's regularised matrix. Here it runs on ``params``
    in which each automatic rule is replaced by a function that only records its arguments.
    """
    asked = []

    def note(strength: Any, *given: Any) -> tuple[jax.Array, jax.Array]:
        asked.append(given)
        return jnp.ones(()), jnp.zeros(())

    def noting(node: Any) -> Any:
        return replace(node, rule=note) if is_automatic(node) else node

    system(jax.tree.map(noting, params, is_leaf=lambda node: isinstance(node, Shrinkage)), *state)
    return asked
