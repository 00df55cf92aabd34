"""Run a method's rounds one after another, and compute a round's total from rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.compiling import jit
from covfree.core.doors import compiled
from covfree.core.doors import whole as on_all_devices
from covfree.core.forms import forms_of, zeros_of
from covfree.core.sums import PART, Table, fold_parts
from covfree.core.types import Rows, is_traced
from covfree.estimators.automatic import SAMPLE, numbered
from covfree.methods import Factor
from covfree.methods.method import check_method
from covfree.methods.rounds import Round, as_total, dense, is_special

# Names of mesh axes.
AxisName: TypeAlias = str | tuple[str, ...]


# A function ``(round, params, sent) -> total``: it sums a round's terms over all clients.
Source: TypeAlias = Callable[[Round, Any, Any], Any]


def through(
    rounds: tuple[Round, ...],
    params: Any,
    source: Source,
    state: tuple[Any, ...] = (),
    *,
    do: Callable[[Literal["clients", "server"], Callable[[], Any]], Any] | None = None,
) -> tuple[Any, ...]:
    """Run a method's rounds, and return the server's state after the last one.

    In each round, compute the server's broadcast, get the total of the clients' answers from ``source``, and
    compute the server's next state.

    Args:
        rounds: the method's rounds, or some of them.
        params: the method's ``params``.
        source: the function ``(round, params, sent) -> total``; ``sent`` is the broadcast.
        state: the server's state before these rounds.
        do: a function that runs each step, e.g. to time it: ``do(party, work)`` must return ``work()``. None
            runs steps directly.

    Returns:
        The server's state, for `solve_totals`.
    """
    for each in rounds:
        own = each.own(params)
        sent = state if each.broadcast is None else each.broadcast(own, state)
        if do is None:
            state = serve(each, own, state, source(each, own, sent))
        else:
            total = do("clients", partial(source, each, own, sent))
            state = do("server", partial(serve, each, own, state, total))
    return state


def serve(each: Round, params: Any, state: tuple[Any, ...], total: Any) -> tuple[Any, ...]:
    """Compute the server's state after a round. Rounds with the same server function share compiled code."""
    return (*state, total) if each.server is None else _call(each.server, params, state, total)


@partial(jit, plain="small", static_argnums=0)
def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _in_parts(terms: Callable[[Rows], Any], rows: Rows) -> bool:
    """Return whether to call ``terms`` on parts of ``rows`` in turn, and add up the results.

    True if there are many rows (at least about as many as features), and the results contain a `Factor` (a
    matrix Y that stands for YᵀY) but no `Table`.
    """
    length, kept, widest = rows.label.shape[0], False, 0

    def look(rows: Rows) -> None:
        nonlocal kept, widest
        for term in jax.tree.leaves(terms(rows), is_leaf=is_special):
            kept |= isinstance(term, Table)
            widest = max(widest, term.value.shape[1] if isinstance(term, Factor) else 0)

    # A symbolic length from `jax.export` does not determine the number of parts.
    if not isinstance(length, int) or length < 2 * PART:
        return False
    jax.eval_shape(look, rows)
    # With fewer rows than features, the total stays a factor (see `Scatter`), and is not summed in parts.
    return 0 < widest <= length + 1 and not kept


def _across(terms: Any, axis_name: AxisName) -> Any:
    """Combine each device's terms over all devices: add arrays, and concatenate the items of a `Table`."""

    def one(term: Any) -> Any:
        if isinstance(term, Table):
            return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), term.items)
        return jax.lax.psum(dense(term), axis_name)

    return jax.tree.map(one, terms, is_leaf=is_special)


class How(NamedTuple):
    """Settings with which a round's total is computed from rows.

    Attributes:
        num_classes: C.
        whole: True if all rows of a client must stay together, so that the rows of one call are not summed
            in smaller parts; see `Method.whole_clients`.
        axis_name: under ``shard_map``, the mesh axes over which rows are sharded.
        few: whether all client numbers are below `SAMPLE`, the number of clients that automatic shrinkage
            samples. Then it uses all clients, and they keep their numbers (see `numbered`).
    """

    num_classes: int
    whole: bool
    axis_name: AxisName | None = None
    few: bool = False


def have_few_numbers(clients: Any) -> bool:
    """Return whether all numbers in ``clients`` are below `SAMPLE`.

    Automatic shrinkage takes the clients with such numbers as its sample. So if the result is True, it uses
    all clients. The result is False if the numbers are traced or None.
    """
    if clients is None or is_traced(clients):
        return False
    return int(np.asarray(clients).max(initial=0)) < SAMPLE


def total_over_rows(rows: Rows, how: How, each: Round, params: Any, sent: Any) -> Any:
    """Return the total of the round ``each``: the sum of what clients compute from ``rows``.

    ``sent`` is the server's broadcast. Many rows are summed part by part. If rows are sharded over mesh axes,
    the sum is over all shards.
    """

    def terms(rows: Rows) -> Any:
        return each.client(params, sent, rows, how.num_classes)

    if not how.whole and _in_parts(terms, rows):

        def add(total: Any, part: Rows) -> Any:
            return jax.tree.map(jnp.add, total, dense(terms(part)))

        own = fold_parts(add, zeros_of(lambda rows: dense(terms(rows)), rows), rows)
    else:
        own = terms(rows)
    return as_total(own) if how.axis_name is None else _across(own, how.axis_name)


_compiled_total = jit(total_over_rows, plain="small", static_argnums=(1, 2))


@dataclass(frozen=True, eq=False)
class InMemory:
    """A callable that computes a round's total over ``rows``: the sum of what clients compute from them.

    All rows are in memory. If they have clients, these are numbered by `with_numbers`. ``how`` has settings.
    """

    rows: Rows
    how: How

    @property
    def num_rows(self) -> int:
        """The number of rows without padding."""
        return int((np.asarray(self.rows.count) > 0).sum())

    def __call__(self, each: Round, params: Any, sent: Any) -> Any:
        """Return a round's total over all rows. Rounds with the same client function share compiled code."""
        return _compiled_total(self.rows, self.how, Round(each.client), params, sent)


@partial(jit, static_argnames=("axis_name", "few"))
def with_numbers(rows: Rows, axis_name: AxisName | None = None, few: bool = False) -> Rows:
    """Return the rows with new client numbers, from `numbered`. For the arguments see `How`.

    Call it on all rows at once, before they are cut into parts: numbers depend on all rows.
    """
    return numbered(jax.tree.map(on_all_devices, rows), axis_name, few=few)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Kept:
    """How to put ``rows.mean`` back into a state that a compiled function returned without it.

    A compiled function copies an input that it returns, and ``rows.mean``, the means of all rows, is large.
    So `_in_memory` leaves it out of the leaves that it returns, and `in_memory` puts it back.

    Attributes:
        structure: the pytree structure of the whole state.
        places: the indices of ``rows.mean`` among all leaves of the whole state.
    """

    structure: Any
    places: tuple[int, ...]


def _in_memory(
    rounds: tuple[Round, ...], params: Any, rows: Rows, how: How, state: tuple[Any, ...] = ()
) -> tuple[list[Any], _Kept]:
    # Number clients before the rows are cut, so that parts agree on the numbers.
    rows = numbered(jax.tree.map(on_all_devices, rows), how.axis_name, few=how.few)
    # Compile all rounds as one function: a round compiled alone would return a copy of the rows' means.
    source = partial(total_over_rows, rows, how)
    for each, alike in groupby(rounds):
        number = len(list(alike))
        once = partial(through, (each,), params, source)
        if number > 1 and _keeps_form(once, state):
            # A loop compiles its body once, however many rounds there are.
            state = jax.lax.scan(lambda state, _, once=once: (once(state), None), state, length=number)[0]
        else:
            state = through((each,) * number, params, source, state)
    leaves, structure = jax.tree.flatten(state)
    places = tuple(place for place, leaf in enumerate(leaves) if leaf is rows.mean)
    return [leaf for leaf in leaves if leaf is not rows.mean], _Kept(structure, places)


def _keeps_form(function: Callable[[Any], Any], state: Any) -> bool:
    """Return whether a function's result has the structure, shapes and data types of its argument."""
    before, after = forms_of(lambda state: (state, function(state)), state)
    return before == after


_compiled = jit(_in_memory, plain="small", static_argnums=(0, 3))
_guarded = compiled(("rounds", "how"))(_in_memory)


def in_memory(
    rounds: tuple[Round, ...],
    params: Any,
    rows: Rows,
    how: How,
    state: tuple[Any, ...] = (),
    *,
    guarded: bool = False,
) -> tuple[Any, ...]:
    """Compute the server's state after the given rounds over rows in memory, in one compiled call.

    Args:
        rounds: the rounds.
        params: the method's ``params``.
        rows: class means or examples of all clients. If the server's state keeps the array ``rows.mean``, the
            result contains this array itself, not a copy.
        how: see `How`.
        state: the server's state before these rounds.
        guarded: whether to check for integers that jax would truncate to 32 bits, see `compiled`.
    """
    run = _guarded if guarded else _compiled
    leaves, kept = run(rounds, params, rows, how, state)
    for place in kept.places:
        leaves.insert(place, jnp.asarray(rows.mean))
    return jax.tree.unflatten(kept.structure, leaves)


def check_over_rows(method: Any, rows: Any) -> None:
    """Raise an error unless ``rows`` are all that ``method`` needs from clients.

    They are not enough if the server also asks clients for sums over their examples. If clients send
    matrices, ``rows`` must be single examples: class means (counts above 1) do not determine the matrices.
    """
    check_method(method)
    known = isinstance(rows, Rows) and not is_traced(rows.count)
    if method.summary.merge is not None and known and np.asarray(rows.count).max(initial=0) > 1:
        raise ValueError(
            f"rows: expected one for each example, as clients of {method.name!r} send "
            f"{method.summary.name}, got counts above 1; use collect and solve_message"
        )
    if more := len(method.rounds) - method.rounds_over_rows:
        raise ValueError(
            f"method: expected one whose rounds run over rows, got {method.name!r}, which asks clients for "
            f"sums over their examples in {more} round{'s' * (more > 1)}; use covfree.fit, or "
            "covfree.rounds.as_algorithm and run"
        )
