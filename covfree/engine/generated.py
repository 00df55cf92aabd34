"""Rows that a function makes part by part, anew in each round, so that they are never all in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Integer

from covfree.core.compiling import jit
from covfree.core.forms import zeros_of
from covfree.core.sums import Compensated
from covfree.core.types import Rows, is_traced
from covfree.engine.totals import How, through
from covfree.methods import Method
from covfree.methods.rounds import Round, dense


class Generated(NamedTuple):
    """Rows that a function makes part by part, so that any number of clients needs the memory of one part.

    Every round calls the function once for each index; it must return the same rows each time, so draw with
    ``jax.random.fold_in(key, index)``. Sums are compensated: their rounding does not grow with the number of
    parts. The function is compiled once, whatever the number of parts.

    Attributes:
        part: function from an index to `Rows`, of the same shape for every index. Pass the arrays that it
            needs, such as a PRNG key, as arguments: ``jax.tree_util.Partial(function, key)`` calls
            ``function(key, index)``, and another key does not recompile. If rows have a ``client``, number
            the clients from 0 without gaps over all parts, in random order: automatic shrinkage takes the
            clients below 256 as its sample. (With all other sources covfree draws the sample itself.) Under
            ``shard_map`` each device makes its own parts; ``part`` can tell devices apart by
            ``jax.lax.axis_index``.
        num_parts: the number of parts. For reverse-mode derivatives (``grad``, ``vjp``) it must not be
            traced; the backward pass makes each part of every round again.

    >>> import covfree, jax, jax.numpy as jnp
    >>> def cohort(key, index):
    ...     features = jax.random.normal(jax.random.fold_in(key, index), (6, 2))
    ...     return covfree.Rows.from_examples(features, jnp.array([0, 0, 0, 1, 1, 1]))
    >>> cohorts = Generated(jax.tree_util.Partial(cohort, jax.random.key(0)), 1000)
    >>> moments, scatter = covfree.accumulate(covfree.fedcof(), cohorts, num_classes=2)
    >>> moments.count.tolist()
    [3000.0, 3000.0]
    """

    part: Callable[[Integer[Array, ""]], Rows]
    num_parts: Integer[Array, ""] | int


def over_parts(method: Method[Any], rows: Generated, how: How) -> tuple[Any, ...]:
    """Run a method's rounds over rows that a function makes part by part; return the server's state."""
    part = rows.part if isinstance(rows.part, Partial) else Partial(rows.part)
    # If an argument is traced, do not compile: the reverse-mode derivative of a loop needs its length as a
    # Python number, and under ``jit`` the length would be traced.
    closed = [cell.cell_contents for cell in getattr(part.func, "__closure__", None) or ()]
    traced = isinstance(rows.num_parts, int) and is_traced(*jax.tree.leaves((method, part, closed)))
    run: Any = _total_over_parts if traced else _compiled_total_over_parts

    def source(each: Round, params: Any, sent: Any) -> Any:
        return run(each.client, params, sent, part, rows.num_parts, how)

    return through(method.rounds, method.params, source)


def _total_over_parts(client: Any, params: Any, sent: Any, part: Any, num_parts: Any, how: How) -> Any:
    # Let the backward pass make each part again, instead of keeping intermediate values.
    @jax.checkpoint
    def terms(index: Any) -> Any:
        return dense(client(params, sent, part(index), how.num_classes))

    zeros = zeros_of(terms, jnp.zeros((), jnp.int32))
    if how.axis_name is not None:
        # Under shard_map the terms vary over devices, and jax wants the loop's first carry typed as varying
        # too: so add 0 times the device's number.
        device = jax.lax.axis_index(how.axis_name)
        zeros = jax.tree.map(lambda x: x + 0 * device.astype(x.dtype), zeros)

    def add(index: Any, running: Compensated) -> Compensated:
        return running.plus(terms(index))

    running = jax.lax.fori_loop(0, num_parts, add, Compensated(zeros, zeros))
    return running.value if how.axis_name is None else jax.lax.psum(running.value, how.axis_name)


_compiled_total_over_parts = jit(_total_over_parts, static_argnums=(0, 5))
