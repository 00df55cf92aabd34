"""Totals of a method's phases: over rows in memory, or over parts of rows that are made on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Integer

from covfree.doors import compiled
from covfree.estimators.automatic import numbered
from covfree.linalg import Scatter
from covfree.methods import Factor, Kept, Method
from covfree.methods.method import check_method, check_method_and_rows
from covfree.products import symmetric_product
from covfree.sharding import whole
from covfree.sums import PART, Compensated, fold_parts
from covfree.types import Rows, is_traced

# Names of mesh axes.
AxisName: TypeAlias = str | tuple[str, ...]


def _special(term: Any) -> bool:
    return isinstance(term, (Factor, Kept))


def _map(function: Callable[[Any], Any], terms: Any) -> Any:
    return jax.tree.map(function, terms, is_leaf=_special)


def zeros_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Zeros in the shapes of what a function gives, without calling it on numbers."""
    structure: Any = None

    def leaves(*arguments: Any) -> list[jax.Array]:
        nonlocal structure
        # Leaves alone: records of shapes would not be what their fields' types say.
        flat, structure = jax.tree.flatten(function(*arguments))
        return flat

    flat = jax.eval_shape(leaves, *arguments)
    return jax.tree.unflatten(structure, [jnp.zeros(leaf.shape, leaf.dtype) for leaf in flat])


def _in_parts(method: Method, terms: Callable[[Rows], Any], rows: Rows) -> bool:
    """Whether the terms are to be made part by part."""
    length, kept, widest = rows.label.shape[0], False, 0

    def look(rows: Rows) -> None:
        nonlocal kept, widest
        for term in jax.tree.leaves(terms(rows), is_leaf=_special):
            kept |= isinstance(term, Kept)
            widest = max(widest, term.value.shape[1] if isinstance(term, Factor) else 0)

    # The symbol of `jax.export` does not tell how many parts there are.
    if not isinstance(length, int) or length < 2 * PART or method.whole_clients:
        return False
    jax.eval_shape(look, rows)
    # Fewer rows than features stay a factor (see Scatter).
    return 0 < widest <= length + 1 and not kept


def _whole(term: Any) -> Any:
    """A term as the total that it is of itself."""
    if isinstance(term, Factor):
        return Scatter.from_factor(term.value)
    return term.rows if isinstance(term, Kept) else term


def _dense(term: Any) -> Any:
    """A term as one that arrays can be added to."""
    return Scatter.from_matrix(symmetric_product(term.value)) if isinstance(term, Factor) else term


def _across(term: Any, axis_name: AxisName) -> Any:
    """The total over devices of a term of each."""
    if isinstance(term, Kept):
        return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), term.rows)
    return jax.lax.psum(_dense(term), axis_name)


def dense_terms(method: Method, phase: int, totals: tuple[Any, ...], rows: Rows, num_classes: int) -> Any:
    """Terms of a phase over some rows in arrays of fixed size, which add up leaf by leaf to its total.

    Raises:
        ValueError: if the phase keeps rows, whose total has no fixed size.
    """
    terms = method.phases[phase](method.params, totals, rows, num_classes)
    if any(isinstance(term, Kept) for term in jax.tree.leaves(terms, is_leaf=_special)):
        raise ValueError(
            f"method: expected one with totals of fixed size, got {method.name!r}, which keeps all rows; "
            "hold them in memory and call solve_rows"
        )
    return _map(_dense, terms)


@compiled(("num_classes", "axis_name"), check=check_method_and_rows)
def accumulate(
    method: Method, rows: Rows, *, num_classes: int, axis_name: AxisName | None = None
) -> tuple[Any, ...]:
    """Compute the totals of a method's phases over rows in memory.

    Products are summed over parts of the rows, so the memory beside the rows does not grow with their number.

    Args:
        method: the method.
        rows: all rows; under ``shard_map``, those of the device.
        num_classes: C, static.
        axis_name: under ``shard_map``, the mesh axes over which the rows are sharded. The totals are then
            those of all devices. If the method has ``whole_clients``, all rows of a client must lie on one
            device, as `shard_rows` places them.

    Returns:
        One total for each phase. The total of a `Factor` is a `covfree.linalg.Scatter`, that of a `Kept` the
        `Rows`.
    """
    # Parts of the rows must agree on whose they are.
    rows = numbered(jax.tree.map(whole, rows), axis_name)
    totals: tuple[Any, ...] = ()
    for phase, function in enumerate(method.phases):

        def terms(rows: Rows, function: Any = function, totals: tuple[Any, ...] = totals) -> Any:
            return function(method.params, totals, rows, num_classes)

        if _in_parts(method, terms, rows):
            dense = partial(dense_terms, method, phase, totals, num_classes=num_classes)

            def add(total: Any, part: Rows, dense: Any = dense) -> Any:
                return jax.tree.map(jnp.add, total, dense(part))

            own = fold_parts(add, zeros_of(dense, rows), rows)
        else:
            own = terms(rows)
        totals += (_map(_whole if axis_name is None else partial(_across, axis_name=axis_name), own),)
    return totals


def accumulate_parts(
    method: Method,
    part: Callable[[Integer[Array, ""]], Rows],
    num_parts: Integer[Array, ""] | int,
    *,
    num_classes: int,
    axis_name: AxisName | None = None,
) -> tuple[Any, ...]:
    """Compute the totals of a method's phases over rows that a function makes part by part.

    So a federation of any size is simulated in the memory of one part: ``part`` draws a cohort of clients and
    returns their rows. It is called for each index once in every phase, and must return the same rows each
    time; draw with ``jax.random.fold_in(key, index)``. Sums are compensated: their rounding does not grow
    with the number of parts. One function is compiled, whatever the number of parts.

    Args:
        method: the method; not one that keeps rows.
        part: function from an index to `Rows`, of the same shape for every index. Pass arrays that it needs,
            such as a PRNG key, as arguments: ``jax.tree_util.Partial(function, key)`` calls
            ``function(key, index)``, and another key compiles nothing anew. If rows name their clients,
            number these through all parts, from 0 and in random order: automatic shrinkage takes the clients
            below 256 as its sample. (All other functions number clients anew to draw a fair sample.)
        num_parts: how many; indices are 0 … num_parts − 1. Derivatives in reverse (``grad``, ``vjp``) need a
            number that is not traced; each part is then made anew in every phase on the way back.
        num_classes: C, static.
        axis_name: see `accumulate`; each device then goes over parts of its own, which ``part`` can tell by
            ``jax.lax.axis_index``.

    Returns:
        One total a phase, for `solve_totals`.

    Raises:
        ValueError: if the method keeps rows.

    >>> import covfree, jax, jax.numpy as jnp
    >>> def cohort(key, index):
    ...     features = jax.random.normal(jax.random.fold_in(key, index), (6, 2))
    ...     return covfree.Rows.from_examples(features, jnp.array([0, 0, 0, 1, 1, 1]))
    >>> draw = jax.tree_util.Partial(cohort, jax.random.key(0))
    >>> moments, scatter = accumulate_parts(covfree.fedcof(), draw, 1000, num_classes=2)
    >>> moments.count.tolist()
    [3000.0, 3000.0]
    """
    check_method(method)
    part = part if isinstance(part, Partial) else Partial(part)
    # A loop has derivatives in reverse only if its length is known when it is traced.
    traced = isinstance(num_parts, int) and is_traced(*jax.tree.leaves((method, part)))
    run = _parts_totals if traced else _compiled_parts_totals
    return run(method, part, num_parts, num_classes=num_classes, axis_name=axis_name)


def _parts_totals(
    method: Method, part: Any, num_parts: Any, *, num_classes: int, axis_name: AxisName | None
) -> tuple[Any, ...]:
    totals: tuple[Any, ...] = ()
    for phase in range(len(method.phases)):
        # In reverse, what a part is made of is not kept.
        @jax.checkpoint
        def terms(index: Any, phase: int = phase, totals: tuple[Any, ...] = totals) -> Any:
            return dense_terms(method, phase, totals, part(index), num_classes)

        def add(index: Any, running: Compensated, terms: Any = terms) -> Compensated:
            return running.plus(terms(index))

        zeros = zeros_of(terms, jnp.zeros((), jnp.int32))
        if axis_name is not None:
            # Under shard_map the loop's carry must be of the type of its terms, which vary over the devices.
            device = jax.lax.axis_index(axis_name)
            zeros = jax.tree.map(lambda x, device=device: x + 0 * device.astype(x.dtype), zeros)
        running = jax.lax.fori_loop(0, num_parts, add, Compensated(zeros, zeros))
        totals += (running.value if axis_name is None else jax.lax.psum(running.value, axis_name),)
    return totals


_compiled_parts_totals = jax.jit(_parts_totals, static_argnames=("num_classes", "axis_name"))
