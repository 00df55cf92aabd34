"""Run the rounds of several methods together; work that methods have in common is done once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from covfree.core.types import Rows
from covfree.methods.method import Method
from covfree.methods.rounds import Round
from covfree.statistics.kept import kept_aside

# Before the first round, all methods share one empty state.
_START = ((),)
# The server's state while several methods run together, before their heads are made: the methods' own states.
# Methods whose rounds so far were identical share one state, so there may be fewer states than methods.
Running: TypeAlias = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Step:
    """How one new state is computed in a round that several methods run together.

    Methods whose rounds were identical so far share a state. All states are in `Running`.

    Attributes:
        parent: the index in `Running`, before the round, of the state to start from.
        who: the index of the first method that shares the new state; its ``params`` are used.
        each: the round of method ``who``; None if its rounds over rows (or over examples) have ended: it
            keeps its state.
        received: `Method.received` of method ``who``, which stores clients' rows in the state.
    """

    parent: int
    who: int
    each: Round | None
    received: Callable[[Any, Rows], Any] | None


class Tracks(NamedTuple):
    """A plan of rounds in which several methods run side by side, and equal computations are done once.

    A round consists of `Step` records. Each computes one new state for all the methods that share it.

    Attributes:
        over_rows: the rounds in which clients use the rows of the methods' summary, such as class means: the
            steps of each round.
        over_examples: the rounds in which clients use their examples: the steps of each round.
        ends: for each method, the index in `Running` of its state after all rounds.
    """

    over_rows: tuple[tuple[Step, ...], ...]
    over_examples: tuple[tuple[Step, ...], ...]
    ends: tuple[int, ...]


def side_by_side(methods: Sequence[Method[Any]]) -> Tracks:
    """Plan how several methods run at once: round i of the plan computes round i of every method.

    Methods whose rounds were identical so far share one computation. The rounds that sum over rows (such as
    class means) come before those that sum over clients' examples; each of the two kinds is numbered from 0.
    """
    track = [0] * len(methods)
    found: list[tuple[tuple[Step, ...], ...]] = []
    for examples in (False, True):
        own = [[each for each in method.rounds if each.examples == examples] for method in methods]
        rounds = []
        for place in range(max(map(len, own))):
            known: dict[Any, int] = {}
            steps: list[Step] = []
            for who, method in enumerate(methods):
                each = own[who][place] if place < len(own[who]) else None
                key = track[who], method.received, _likeness(each, method, who)
                if key not in known:
                    known[key] = len(steps)
                    steps.append(Step(track[who], who, each, method.received))
                track[who] = known[key]
            rounds.append(tuple(steps))
        found.append(tuple(rounds))
    over_rows, over_examples = found
    return Tracks(over_rows, over_examples, tuple(track))


def _likeness(each: Round | None, method: Method[Any], who: int) -> Any:
    """Return a key for ``each``, a round of ``method``; None if its rounds of this kind have ended.

    If two methods have equal keys, their rounds make the same new state from equal states, so the round is
    run once for both. ``who`` is the method's index.
    """
    if each is None:
        return None
    structure = jax.tree.structure(each.own(method.params))
    # Methods with different hyperparameters can share a round that uses none of them: the clients' terms are
    # ``fixed``, and the server only keeps the total.
    same = structure.num_leaves == 0 or (each.fixed and each.server is None and each.broadcast is None)
    return each.client, each.broadcast, each.server, structure if same else who


def terms(
    params: tuple[Any, ...],
    sent: tuple[Any, ...],
    rows: Rows,
    num_classes: int,
    *,
    steps: tuple[Step, ...],
    share: float,
) -> tuple[Any, ...]:
    """Compute what a client uploads in a round that several methods run together.

    The result is a tuple, with the upload of each step that has a round (methods with the same round share a
    step). ``params`` has each method's hyperparameters, ``sent`` the broadcast of each of these steps. If
    ``share`` is above 0, the rows are examples, and those kept aside, about this share of all, are not used.
    """
    if share:
        rows = labelled(rows, ~kept_aside(rows.mean, share))
    own = [(step.each, params[step.who]) for step in steps if step.each is not None]
    return tuple(
        each.client(each.own(numbers), asked, rows, num_classes)
        for (each, numbers), asked in zip(own, sent, strict=True)
    )


def labelled(rows: Rows, used: jax.Array) -> Rows:
    """Return ``rows`` with label −1, which marks padding, where ``used`` is False."""
    return replace(rows, label=jnp.where(used, rows.label, -1))


def ask(params: tuple[Any, ...], state: Running, *, steps: tuple[Step, ...]) -> tuple[Any, ...]:
    """Return what the server broadcasts in a round of several methods: a tuple of their broadcasts.

    It has one entry for each step in ``steps``, except steps of methods whose rounds have ended. ``params``
    has the hyperparameters of each method; ``state`` is the server's state before the round.
    """
    state, found = state or _START, []
    for step in steps:
        if step.each is not None:
            before, own = state[step.parent], step.each.own(params[step.who])
            found.append(before if step.each.broadcast is None else step.each.broadcast(own, before))
    return tuple(found)


def serve(
    params: tuple[Any, ...], state: Running, total: tuple[Any, ...], *, steps: tuple[Step, ...]
) -> Running:
    """Compute the server's state after a round that several methods run together.

    Args:
        params: the hyperparameters of each method.
        state: the server's state before the round.
        total: the sum of all clients' uploads, which are from `terms`.
        steps: how this round computes the state of each method.
    """
    state, totals, found = state or _START, iter(total), []
    for step in steps:
        before = state[step.parent]
        if step.each is None:
            found.append(before)
        elif step.each.server is None:
            found.append((*before, next(totals)))
        else:
            found.append(step.each.server(step.each.own(params[step.who]), before, next(totals)))
    return tuple(found)


def receive(state: Running, rows: Rows, *, steps: tuple[Step, ...]) -> Running:
    """Give the rows that clients sent, such as class means, to the methods that store them in their state.

    ``steps`` are those of the last round over rows, one for each state in `Running`. A state whose step has
    ``received`` (`Method.received`) gets the rows. Return the server's new state.
    """
    every = zip(state, steps, strict=True)
    return tuple(own if step.received is None else step.received(own, rows) for own, step in every)
