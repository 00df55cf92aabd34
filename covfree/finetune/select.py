"""`select`: clients' own examples choose among learning rates, or other numbers of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from covfree.core.checks import check_choice
from covfree.core.types import PRNGKey
from covfree.finetune import averaging
from covfree.methods.rounds import bound
from covfree.methods.selecting.counting import By, Count, results_of
from covfree.rounds.algorithm import Algorithm, ClientData, check_algorithm
from covfree.statistics.kept import check_keep, kept_aside

# A client evaluates this many examples at once.
_BATCH = 128


class State(NamedTuple):
    """The server's state.

    Attributes:
        states: the candidates' states, stacked.
        counted: the sums of the last round, of the models with which that round began.
    """

    states: Any
    counted: Count


class Upload(NamedTuple):
    """A client's upload: the candidates' uploads, stacked, and the results of the models it was sent."""

    uploads: Any
    counted: Count


def _init(params: Any, num_clients: int, key: PRNGKey, *, own: Algorithm) -> tuple[State, tuple[()]]:
    # All candidates have the same key, and so the same order of examples.
    states, _ = jax.vmap(lambda p: own.init(p, num_clients, key))(params)
    number = jax.tree.leaves(params)[0].shape[0]
    return State(states, Count(jnp.zeros(number), jnp.zeros(()))), ()


def _broadcast(params: Any, state: State, *, own: Algorithm) -> Any:
    return jax.vmap(own.broadcast)(params, state.states)


def _client(
    params: Any,
    sent: Any,
    data: ClientData,
    memory: tuple[()],
    key: PRNGKey,
    *,
    own: Algorithm,
    by: By,
    keep: float,
) -> tuple[Upload, tuple[()], dict[str, Any]]:
    """Add up the sent models' results on the examples kept aside, and train each model on the others."""
    kept, count = _count(params, sent, data, by, keep)
    index = jnp.where(kept, -1, data.index)
    rest = replace(data, index=index[jnp.argsort(index < 0, stable=True)])
    train = jax.vmap(lambda p, sent: own.client(p, sent, rest, (), key))
    uploads, _, metrics = train(params, sent)
    return Upload(uploads, count), (), jax.tree.map(partial(jnp.nanmean, axis=0), metrics)


def _count(params: Any, sent: Any, data: ClientData, by: By, keep: float) -> tuple[Array, Count]:
    """Return which of the client's examples are kept aside, and the sent models' results on these."""
    size = data.index.shape[0]
    batch = min(_BATCH, size)

    def part(places: Array) -> tuple[Array, Count]:
        features, labels = data.take(places)
        flat = [jnp.reshape(x, (batch, -1)).astype(jnp.float32) for x in jax.tree.leaves(features)]
        kept = kept_aside(jnp.concatenate(flat, 1), keep) & (labels >= 0)

        def one(p: averaging.Numbers, sent: Any) -> Array:
            scores = replace(p.model, trained=sent[0], statistics=sent[1])(features)
            found = results_of(scores.astype(jnp.float32), jnp.where(kept, labels, 0), by)
            return jnp.where(kept, found, 0).sum()

        return kept, Count(jax.vmap(one)(params, sent), kept.sum(dtype=jnp.float32))

    kept, counts = jax.lax.map(part, jnp.arange(-(-size // batch) * batch).reshape(-1, batch))
    return kept.reshape(-1)[:size], jax.tree.map(lambda x: x.sum(0), counts)


def _server(params: Any, state: State, total: Upload, *, own: Algorithm) -> State:
    # A candidate that diverges keeps its last finite state, so that it does not end the others' run.
    states = jax.vmap(_step_if_finite(own))(params, state.states, total.uploads)
    known = total.counted.number > 0
    counted = jax.tree.map(lambda new, old: jnp.where(known, new, old), total.counted, state.counted)
    return State(states, counted)


def _step_if_finite(own: Algorithm) -> Any:
    def step(p: averaging.Numbers, state: Any, upload: Any) -> Any:
        new = own.server(p, state, upload)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new)]).all()
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)

    return step


def _result(params: Any, state: State, memory: Any, *, own: Algorithm) -> Any:
    chosen, best = (jax.tree.map(lambda x: x[_best(state)], tree) for tree in (params, state.states))
    return own.result(chosen, best, memory)


def _report(params: Any, state: State, *, by: By) -> dict[str, Any]:
    counted = state.counted
    number = jnp.where(counted.number > 0, counted.number, jnp.nan)
    return {"taken": _best(state), by: counted.scores / number, "counted": counted.number}


def _best(state: State) -> Array:
    """Return the index of the best candidate, the first of equals."""
    return state.counted.scores.argmin()


def select(candidates: Sequence[Algorithm], *, by: By = "errors", keep: float = 0.1) -> Algorithm:
    """Let clients choose a learning rate, or other numbers, by examples on which they do not train.

    All candidates are trained side by side, from the same examples in the same order. In each round, each
    client first counts the errors of all models that it was sent, on the examples that it keeps aside. The
    counts add up. The result is the model of the candidate with the fewest errors in the last round, the
    first of equals. So nobody needs a validation set, and no round is added; bytes and computation grow with
    the number of candidates. A candidate that diverges stays as it was before.

    The models that are counted are those with which the round began, without its training. Which examples
    are kept aside is decided as in `covfree.select`, by a hash of their features.

    Args:
        candidates: two or more of `fedavg`, `fedprox`, `fedadam`, `fedyogi` or `fedadagrad`, which differ in
            numbers only: ``[fedavg(model, rate) for rate in (0.001, 0.01, 0.1)]``.
        by: what clients add up: ``"errors"``, or ``"losses"`` (−log softmax of the example's class, at most
            100).
        keep: the share of examples that are kept aside, between 0 and 1.

    Returns:
        An algorithm for `covfree.rounds.run`. Its history has ``taken``, the index of the best candidate so
        far; ``errors`` or ``losses`` of all, means over the ``counted`` examples; and the clients' metrics,
        means over the candidates.

    Raises:
        TypeError: if a candidate is no algorithm.
        ValueError: if there are fewer than two candidates, if they differ in more than numbers, are of
            another kind, or predict no classes; or if an argument is out of range.

    Source: covfree; docs/selecting.md.
    """
    if isinstance(candidates, Algorithm):
        raise TypeError(f"candidates: expected several algorithms, got {candidates.name!r} alone")
    candidates = tuple(candidates)
    if len(candidates) < 2:
        raise ValueError(f"candidates: expected two algorithms or more, got {len(candidates)}")
    check_choice("by", by, ("errors", "losses"))
    check_keep(keep)
    first, *others = candidates
    for each in candidates:
        check_algorithm(each)
        plain = isinstance(each.params, averaging.Numbers) and each.client is averaging.client
        if not plain or each.num_classes is None:
            raise ValueError(
                "candidates: expected fedavg, fedprox, fedadam, fedyogi or fedadagrad of a model with "
                f"num_classes, got {each.name!r}"
            )
    form = _form(first)
    for each in others:
        if _form(each) != form:
            raise ValueError(
                f"candidates: expected one algorithm with different numbers, got {first.name!r} and "
                f"{each.name!r} that differ in more, such as the kind of optimiser, epochs or batch_size"
            )
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(each.params for each in candidates))
    own = replace(first, params=None)
    return Algorithm(
        params,
        f"{first.name}-selected",
        bound(_init, own=own),
        bound(_broadcast, own=own),
        bound(_client, own=own, by=by, keep=keep),
        bound(_server, own=own),
        bound(_result, own=own),
        rounds=first.rounds,
        num_classes=first.num_classes,
        report=bound(_report, by=by),
    )


def _form(algorithm: Algorithm) -> Any:
    """Return all of an algorithm but its numbers."""
    leaves, structure = jax.tree.flatten(algorithm)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
