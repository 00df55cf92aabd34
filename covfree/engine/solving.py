"""Solve for the head from the server's state. Automatic shrinkage is compiled once for many methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.compiling import jit
from covfree.core.doors import finite
from covfree.core.types import H, LinearHead, Moments, is_traced
from covfree.estimators.automatic import is_automatic
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.composed import MappedHead, SelectedHead, taken
from covfree.methods import Method
from covfree.methods.method import check_method

# If all class means are below this multiple of √(smallest normal number), squares of features underflow, and
# an error is raised.
_LEAST = 100
# Differences between vectors of up to this share of the largest entry (or norm) are taken for rounding.
_ROUNDING = 1e-5


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


def solve_totals(method: Method[H], *totals: Any) -> H:
    """Solve for the head from the totals of the method's rounds.

    Args:
        method: the method.
        totals: the server's state after the last round, from `accumulate` or another function that sums.

    Returns:
        The method's head.

    Raises:
        ValueError: if the head is not finite; if it needs sums of squares, and these underflow or are 0, so
            that its weights are the same for all classes (not checked if the totals are traced).
    """
    check_method(method)
    head = head_of(method, totals)
    chosen: Any = taken(head) if isinstance(head, SelectedHead) else head
    _check_squares(totals, chosen)
    return finite(chosen)


def _check_squares(totals: tuple[Any, ...], head: Any) -> None:
    """Raise a ValueError if squares of the features are all 0, so that the head knows nothing of the classes.

    This happens if the squares underflow; or if there is no shrinkage, and no class has two rows that differ.
    Totals that contain only class sums need no squares, so they are not checked; nor are traced totals.
    """
    nodes = jax.tree.leaves(totals, is_leaf=lambda node: isinstance(node, Moments))
    moments = next((node for node in nodes if isinstance(node, Moments)), None)
    if moments is None or len(nodes) == 1 or is_traced(*jax.tree.leaves((totals, head))):
        return
    total, count = np.asarray(moments.total), np.asarray(moments.count)
    largest = np.abs(total).max(initial=0)
    if 0 < largest < _LEAST * np.sqrt(np.finfo(total.dtype).tiny) * count.max(initial=1):
        raise ValueError(
            f"features: expected numbers whose squares do not underflow in {total.dtype}, got sums over "
            f"classes of at most {largest:.0e}; multiply all features by one number, the same at all clients"
        )
    present = np.flatnonzero(count > 0)
    # With one example of each class there is no covariance that any method could see.
    if not isinstance(head, LinearHead) or total.shape[1] < 2 or not 2 <= len(present) < count.sum():
        return
    # A user's head function may return columns that do not correspond to classes.
    if head.weight.shape[1] != len(count):
        return
    weights, means = np.asarray(head.weight)[:, present].T, total[present] / count[present, None]
    # Means of equal features may differ by rounding, so compare means up to that.
    lost = (weights == weights[0]).all() and np.abs(means - means[0]).max() > _ROUNDING * np.abs(means).max()
    # A ridge head without a covariance has multiples of one vector, the mean of all examples, as weights.
    if np.asarray(moments.num_rows).max() == 1 and not np.asarray(head.bias)[present].any():
        lost = lost or (_on_one_line(weights) and not _on_one_line(means))
    if lost:
        raise ValueError(
            "head: expected weights that differ between classes, got multiples of one vector, as the "
            "covariance is 0. A covariance is seen only if a class has two rows, such as means at two "
            "clients; set shrinkage to 'auto' or a number above 0 (a share such as '10%' of 0 is 0), or "
            "num_subsets to 2"
        )


def _on_one_line(vectors: np.ndarray) -> bool:
    """Return whether vectors, the rows of a matrix, are multiples of one vector, within rounding."""
    with np.errstate(invalid="ignore"):  # heads that are not finite are refused elsewhere
        vectors = vectors / (np.abs(vectors).max() or 1)  # so that no square overflows
        norms = np.linalg.norm(vectors, axis=1)
        unit = vectors[norms.argmax()] / max(norms.max(), 1)
        rest = vectors - np.outer(vectors @ unit, unit)
    return bool(np.abs(rest).max() <= _ROUNDING * norms.max())
