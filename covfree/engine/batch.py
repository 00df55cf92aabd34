"""The public functions that compute totals and heads from rows, messages or examples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from covfree.core.checks import check, check_integer, check_row_structure, num_classes_of
from covfree.core.compiling import jit
from covfree.core.doors import as_array, as_int32
from covfree.core.keys import check_key
from covfree.core.padding import as_arrays, is_large
from covfree.core.row_types import summable
from covfree.core.types import H, Message, PRNGKey, Rows, is_traced
from covfree.engine.examples import examples_of, over_examples, over_rows, summarise
from covfree.engine.generated import Generated, over_parts
from covfree.engine.sharded import over_devices
from covfree.engine.solving import solve_totals
from covfree.engine.stream import Stream, over_stream
from covfree.engine.totals import (
    AxisName,
    How,
    check_over_rows,
    have_few_numbers,
    in_memory,
    through,
)
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.methods.summary import Merge
from covfree.protocol.sites import leave_out

# Rows in memory, made by a function, or read from files.
Source: TypeAlias = Rows | Generated | Stream


def accumulate(
    method: Method[Any],
    source: Source,
    *,
    num_classes: int,
    mesh: Mesh | None = None,
    axis_name: AxisName | None = None,
) -> tuple[Any, ...]:
    """Compute the totals (sums over clients) of a method's rounds, from rows of any source.

    For rows in memory, products are summed part by part, so the extra memory does not grow with the number of
    rows. On a mesh each device sums its own rows, and devices exchange only the totals: C·d + d²
    numbers for features of dimension d, unless the method's state contains all rows.

    Args:
        method: the method. If its state contains rows (as a `Table`), ``source`` must be `Rows`.
        source: all rows: in memory (`Rows`), made part by part (`Generated`), or in files (`Stream`). Under
            ``shard_map``, the device's own rows.
        num_classes: C, static.
        mesh: the mesh over which `shard_rows` spread the rows. Call `shard_rows` with the method's
            ``whole_clients``, which says whether a client's rows must stay together.
        axis_name: if you call this under ``shard_map``, the mesh axes over which rows are sharded. The
            result is then the totals over all devices. If the method has ``whole_clients``, all rows of a
            client must lie on one device, as `shard_rows` places them.

    Returns:
        The server's state after the last round: for most methods, one total for each round. Where clients
        compute a `Factor` (a matrix Y that stands for YᵀY), the total is a `covfree.linalg.Scatter`. Where
        they compute a `Table`, the total is the items of all clients, concatenated.

    Raises:
        TypeError: if ``method`` is no `Method`, or ``source`` is no `Rows`, `Generated` or `Stream`.
        ValueError: if the method also needs sums over clients' examples; if its state contains rows and
            ``source`` is not `Rows`; if the method needs whole clients and a client's rows are on several
            devices (not checked under the caller's ``jit``); if reading the source fails.
    """
    check_over_rows(method, source.rows if isinstance(source, Stream) else source)
    if isinstance(source, Stream):
        if mesh is not None or axis_name is not None:
            raise ValueError("source: expected rows of each device on a mesh, got a Stream")
        return over_stream(method, source, num_classes, lambda *totals: totals)
    if isinstance(source, Generated):
        if mesh is not None:
            raise ValueError("source: expected rows from shard_rows on a mesh, got Generated ones")
        return over_parts(method, source, How(num_classes, False, axis_name))
    check_row_structure(source)
    if mesh is not None:
        return over_devices(method, source, num_classes, mesh)
    how = How(num_classes, method.whole_clients, axis_name)
    return in_memory(method.rounds, method.params, source, how, guarded=True)


def solve_rows(method: Method[H], rows: Source, *, num_classes: int) -> H:
    """Compute a method's head from the rows (class means) of all clients.

    Args:
        method: the method; its numbers, such as γ, may be traced, so that ``vmap`` sweeps them.
        rows: all rows: `Rows` in memory, or `Generated` or `Stream`, which give them part by part. Padding
            changes nothing.
        num_classes: C, static.

    Returns:
        The method's head.

    Raises:
        ValueError: as `accumulate` and `solve_totals`.

    >>> import covfree, jax, jax.numpy as jnp
    >>> rows = covfree.Rows(jnp.array([[0.0], [2.0], [5.0], [7.0]]), jnp.ones(4), jnp.array([0, 0, 1, 1]))
    >>> def bias(gamma):
    ...     return solve_rows(covfree.fedcof(shrinkage=gamma), rows, num_classes=2).bias
    >>> jax.vmap(bias)(jnp.array([0.0, 0.1, 1.0])).shape
    (3, 2)
    """
    if isinstance(rows, Stream):
        check_over_rows(method, rows.rows)
        return over_stream(method, rows, num_classes, partial(solve_totals, method))
    # Compile totals and head separately: the head takes longer, but is compiled once for any number of rows.
    return solve_totals(method, *accumulate(method, rows, num_classes=num_classes))


def solve_message(method: Method[H], message: Message, *, num_classes: int, judge_sites: bool = False) -> H:
    """Solve for the head from the clients' messages: the server's side of a real federation.

    Args:
        method: the method that the clients used for `client_message`.
        message: all clients' messages in one, ``collect(...).message``.
        num_classes: C, static.
        judge_sites: whether to leave out the rows of clients that fail `diagnose_sites`; a warning gives each
            client's number in the message, and the reason. Prefer `judge_sites` of `collect`, which gives
            clients' names.

    Returns:
        The method's head; equal, within rounding, to the head of `fit` on the clients' examples.

    Raises:
        ValueError: if the message lacks an array that the method needs, was made for another kind of method,
            does not come from `collect`, or has no rows; if the head is not finite (unless it is traced).

    >>> import covfree, jax.numpy as jnp
    >>> method = covfree.fed3r()
    >>> sent = covfree.client_message(method, jnp.eye(2), jnp.array([0, 1]), num_classes=2)
    >>> received = covfree.collect({"a": sent, "b": sent}, num_classes=2).message
    >>> solve_message(method, received, num_classes=2).weight.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    check_method(method)
    method.check_message()
    if not isinstance(message, Message):
        raise TypeError(
            f"message: expected a covfree.Message, such as collect(...).message, got {type(message).__name__}"
        )
    if message.solved:
        raise ValueError(
            "message: expected collect(...).message, in which ridge solutions are converted to class means; "
            "got a client's message of ridge solutions (solved = True)"
        )
    method.check_sends(message.sends)
    count = message.rows.count
    if not len(count):
        raise ValueError(
            "message: expected the rows of a client at least, got none; see `rejected` and `late` of "
            "the result of collect for the clients whose messages did not count"
        )
    if judge_sites:
        message = leave_out(message, num_classes=num_classes)
        count = message.rows.count
    if isinstance(count, np.ndarray):
        # Convert the counts to a type that holds their sum: jax would silently truncate them to 32 bits.
        message = replace(message, rows=replace(message.rows, count=summable(count)))
    return solve_totals(method, *state_of_message(method, message, num_classes))


@partial(jit, static_argnums=(0, 3))
def _merged(merge: Merge, params: Any, message: Message, num_classes: int) -> tuple[Any, ...]:
    return merge(params, message, num_classes)


def state_of_message(method: Method[Any], message: Message, num_classes: int) -> tuple[Any, ...]:
    """Compute the server's state from ``message``, into which the messages of all clients were merged.

    If clients send sums, such as Gram matrices, the method's ``merge`` computes the state from them.
    Otherwise the method's first rounds run over the message's rows, such as class means. `solve_totals`
    makes the head from the state.
    """
    if method.summary.merge is not None:
        method.summary.check(message)
        return _merged(method.summary.merge, method.params, message, num_classes)
    how = How(num_classes, method.whole_clients, few=have_few_numbers(message.rows.client))
    state = in_memory(method.rounds[: method.message_rounds], method.params, message.rows, how)
    return state if method.received is None else method.received(state, message.rows)


def fit(
    method: Method[H],
    features: Any,
    labels: Any,
    clients: Any,
    *,
    num_classes: int | None = None,
    key: PRNGKey | None = None,
) -> H:
    """Simulate a federation: summarise each client's examples, and solve for the server's head.

    Args:
        method: e.g. ``covfree.fedcof()``, ``covfree.refined(covfree.fedcof())`` or ``covfree.deepafl()``.
        features: [examples, dim], floating point; half precisions are summed in float32.
            Features of 1 GiB or more on the host (e.g. memory-mapped) are read part by part in each round.
        labels: [examples], integers; below 0 is padding.
        clients: [examples], integers in any order, gaps allowed; below 0 is padding.
        num_classes: C; by default the largest label plus 1. Needed under ``jit``.
        key: PRNG key for methods that draw at random.

    Returns:
        The method's head.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if a shape or value is wrong; the message names the client and the row.

    >>> import covfree, numpy as np
    >>> features = np.array([[0.0], [1.0], [4.0], [5.0]], np.float32)
    >>> head = fit(covfree.fedcof(), features, np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    >>> head(features).argmax(-1)
    Array([0, 0, 1, 1], dtype=int32)
    """
    return solve_totals(method, *state_of(method, features, labels, clients, num_classes, key))


def state_of(
    method: Method[Any],
    features: Any,
    labels: Any,
    clients: Any,
    num_classes: int | None = None,
    key: PRNGKey | None = None,
) -> tuple[Any, ...]:
    """Check the arguments of `fit`, and run the method's rounds; return the server's state."""
    check_method(method)
    if num_classes is not None:
        check_integer("num_classes", num_classes, 1)
    if clients is None:
        raise TypeError("clients: expected integers, one for each example, got None")
    check_key(key)
    given = {"features": features, "labels": labels, "clients": clients}
    features, labels, clients = as_arrays(given, given).values()
    check(features, labels, clients, num_classes=num_classes)
    if num_classes is None:
        if is_traced(labels):
            raise ValueError("num_classes: expected the number of classes, as labels are traced; got None")
        num_classes = num_classes_of(labels if isinstance(labels, jax.Array) else np.asarray(labels))
        if num_classes < 1:
            raise ValueError("labels: expected at least one label of 0 or above, got none")
    if (
        not is_traced(labels, clients)
        and len(labels)
        and not np.any((np.asarray(labels) >= 0) & (np.asarray(clients) >= 0))
    ):
        raise ValueError(
            f"clients: expected an example whose client and label are 0 or above (below 0 is padding), "
            f"got none of {len(labels)}"
        )
    how = How(num_classes, method.whole_clients, few=have_few_numbers(clients))
    first = method.rounds_over_rows
    # Clients stay on the host: their numbers may exceed int32.
    clients = clients if isinstance(clients, jax.Array) else np.asarray(clients)
    if is_large(features):
        source = over_rows(method, features, labels, clients, how, key)
        state = through(method.rounds[:first], method.params, source)
        source = over_examples(method, features, labels, clients, how)
        return through(method.rounds[first:], method.params, source, state)
    features, labels = as_array(features), as_int32("labels", labels)
    rows = summarise(method, features, labels, clients, key=key)
    state = in_memory(method.rounds[:first], method.params, rows, how)
    if first < len(method.rounds):
        examples = examples_of(method, features, jnp.where(as_array(clients >= 0), labels, -1))
        state = in_memory(method.rounds[first:], method.params, examples, how, state)
    return state
