"""Choose a learning rate, or other hyperparameters, by examples that clients keep aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from covfree.core.checks import check_choice
from covfree.core.doors import is_finite
from covfree.core.types import PRNGKey
from covfree.finetune import averaging
from covfree.finetune.model import Model
from covfree.methods.rounds import bound
from covfree.methods.selecting.counting import By, Count, results_of
from covfree.rounds.algorithm import Algorithm, ClientData, check_algorithm
from covfree.statistics.kept import check_keep, kept_aside

# A client evaluates this many examples at once.
_BATCH = 128


class SelectNumbers(NamedTuple):
    """The ``params`` of the algorithm that `select` makes.

    Attributes:
        model: the model, which all candidates (the algorithms to choose from) share.
        each: the candidates' other hyperparameters, stacked along a leading axis; its ``model`` is None.
    """

    model: Model
    each: averaging.FedAvgNumbers

    def map(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """Call a function for each candidate (algorithm to choose from); return its results, stacked.

        The function gets the candidate's hyperparameters, and the candidate's slice of each pytree in
        ``stacked`` along the leading axis.
        """

        def one(parts: tuple[Any, ...]) -> Any:
            return function(parts[0]._replace(model=self.model), *parts[1:])

        # Under `vmap`, weights would have a batch axis, with which convolutions are many times slower.
        return jax.lax.map(one, (self.each, *stacked))


class Selecting(NamedTuple):
    """The server's state in `select`, or a client's upload; candidates are the algorithms to choose from.

    Attributes:
        each: each candidate's server state or upload, stacked along a leading axis.
        counted: each candidate's sum of errors (or losses) over the examples that clients keep aside, that
            is, do not train on; and the number of these examples. The server's state has those of the last
            round with such examples.
    """

    each: Any
    counted: Count


def _init(
    params: SelectNumbers, num_clients: int, key: PRNGKey, *, own: Algorithm
) -> tuple[Selecting, tuple[()]]:
    states = params.map(lambda p: own.init(p, num_clients, key)[0])
    number = jax.tree.leaves(states)[0].shape[0]
    return Selecting(states, Count(jnp.zeros(number), jnp.zeros(()))), ()


def _broadcast(params: SelectNumbers, state: Selecting, *, own: Algorithm) -> Any:
    return params.map(own.broadcast, state.each)


def _client(
    params: SelectNumbers,
    sent: Any,
    data: ClientData,
    memory: tuple[()],
    key: PRNGKey,
    *,
    own: Algorithm,
    by: By,
    keep: float,
) -> tuple[Selecting, tuple[()], dict[str, Any]]:
    """Count the received models' errors on examples kept aside; train each model on the other examples."""
    kept = _kept(data, keep)
    index = jnp.asarray(data.index)
    rest = replace(data, index=_first(index, ~kept))

    def train(p: averaging.FedAvgNumbers, sent: Any) -> tuple[Any, dict[str, Any]]:
        upload, _, metrics = own.client(p, sent, rest, (), key)
        # Upload zeros for a candidate that diverges at this client.
        finite = is_finite(upload)
        return jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), upload), metrics

    counted = _count(params, sent, replace(data, index=_first(index, kept)), by)
    # All candidates get the same key, and so the same order of examples.
    uploads, metrics = params.map(train, sent)
    # Use the median, as one candidate that diverges would dominate a mean.
    return Selecting(uploads, counted), (), jax.tree.map(partial(jnp.nanmedian, axis=0), metrics)


def _first(index: Array, chosen: Array) -> Array:
    """Move the ``chosen`` entries of ``index`` to its front, and replace all others by −1 (padding).

    From [4, 7, 9] with chosen [False, True, True], it returns [7, 9, −1].
    """
    index = jnp.where(chosen, index, -1)
    return index[jnp.argsort(index < 0, stable=True)]


def _kept(data: ClientData, keep: float) -> Array:
    """Return a mask of the client's examples that are kept aside, by a hash as in `covfree.select`."""

    def part(place: Array) -> Array:
        features, label = data.take(place[None])
        flat = [jnp.reshape(x, (1, -1)) for x in jax.tree.leaves(features)]
        flat = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32) for x in flat]
        return (kept_aside(jnp.concatenate(flat, 1), keep) & (label >= 0))[0]

    places = jnp.arange(data.index.shape[0])
    return jax.lax.map(part, places, batch_size=_BATCH) if len(places) else jnp.zeros(0, bool)


def _count(params: SelectNumbers, sent: Any, kept: ClientData, by: By) -> Count:
    """Return a client's `Count`: the number of examples ``kept`` aside, and each model's errors on them.

    If ``by`` is "losses", losses are summed in place of errors. ``sent`` has the models that the server
    sent, stacked.
    """
    number = kept.num_examples

    def add(place: Array, scores: Array) -> Array:
        features, labels = kept.take(place * _BATCH + jnp.arange(_BATCH))
        own = labels >= 0

        def one(p: averaging.FedAvgNumbers, sent: Any) -> Array:
            scores = replace(p.model, trained=sent[0], statistics=sent[1])(features)
            found = results_of(scores.astype(jnp.float32), jnp.where(own, labels, 0), by)
            return jnp.where(own, found, 0).sum(dtype=jnp.float32)

        return scores + params.map(one, sent)

    none = jnp.zeros(jax.tree.leaves(sent)[0].shape[0])
    # Loop only over batches that have examples, so that padding costs nothing.
    scores = jax.lax.fori_loop(0, -(-number // _BATCH), add, none) if len(kept.index) else none
    return Count(scores, number.astype(jnp.float32))


def _server(params: SelectNumbers, state: Selecting, total: Selecting, *, own: Algorithm) -> Selecting:
    def step(p: averaging.FedAvgNumbers, state: Any, upload: Any) -> Any:
        # A candidate that diverges keeps its last finite state, so that it does not end the others' run.
        new = own.server(p, state, upload)
        finite = is_finite(new)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)
        return kept._replace(round=new.round)

    states = params.map(step, state.each, total.each)
    known = total.counted.number > 0
    counted = jax.tree.map(lambda new, old: jnp.where(known, new, old), total.counted, state.counted)
    return Selecting(states, counted)


def _result(params: SelectNumbers, state: Selecting, memory: Any, *, own: Algorithm) -> Any:
    each, best = (jax.tree.map(lambda x: x[_best(state)], tree) for tree in (params.each, state.each))
    return own.result(each._replace(model=params.model), best, memory)


def _report(params: SelectNumbers, state: Selecting, *, by: By) -> dict[str, Any]:
    counted = state.counted
    number = jnp.where(counted.number > 0, counted.number, jnp.nan)
    return {"taken": _best(state), by: counted.scores / number, "counted": counted.number}


def _best(state: Selecting) -> Array:
    """Return the index of the best candidate, the first one of several that are equally good."""
    return state.counted.scores.argmin()


def select(candidates: Sequence[Algorithm], *, by: By = "errors", keep: float = 0.1) -> Algorithm:
    """Let clients choose a learning rate, or other hyperparameters, by examples on which they do not train.

    All candidates are trained side by side, from the same examples in the same order. In each round, each
    client first counts the errors of all models that it receives, on examples that it keeps aside. The server
    adds the counts. The result is the model of the candidate with the fewest errors in the last round (with
    equal counts, of the first candidate). This needs no validation set and no more rounds; bytes and
    computation grow with the number of candidates. A candidate that diverges keeps its last finite state.

    A round counts the errors of the models before its training. So run at least two rounds: in the first, all
    candidates are the same model. If clients are sampled, sample many: only the clients of the last round
    count errors. Which examples are kept aside is decided as in `covfree.select`, by a hash of their
    features. The count is unbiased only if the initial model was fitted without these examples:
    `covfree.kept_aside` finds them, and a label of −1 leaves them out.

    Args:
        candidates: two or more of `fedavg`, `fedprox`, `fedadam`, `fedyogi` or `fedadagrad` of one model,
            which differ in ``params`` only: ``[fedavg(model, rate) for rate in (0.001, 0.01, 0.1)]``, or
            ``fedavg(model, jax.tree_util.Partial(optax.adam, rate))``.
        by: what clients add up: ``"errors"``, or ``"losses"`` (−log softmax of the example's class, at most
            100).
        keep: the share of examples that are kept aside, between 0 and 1.

    Returns:
        An algorithm for `covfree.rounds.run`. Its history has ``taken``, the index of the best candidate in
        the round; each candidate's mean ``errors`` or ``losses``; ``counted``, the number of examples kept
        aside; and the clients' metrics, medians over the candidates.

    Raises:
        TypeError: if a candidate is no algorithm.
        ValueError: if there are fewer than two candidates, if they differ in more than numerical
            hyperparameters, if one is not of the algorithms above or predicts no classes, or if an argument
            is out of range.

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
        plain = isinstance(each.params, averaging.FedAvgNumbers) and each.client is averaging.client
        if not plain or each.num_classes is None:
            raise ValueError(
                "candidates: expected fedavg, fedprox, fedadam, fedyogi or fedadagrad of a model with "
                f"num_classes, got {each.name!r}"
            )
    for each in others:
        if each.params.model is not first.params.model:
            raise ValueError("candidates: expected one model for all, got several")
        if _form(each) != _form(first):
            raise ValueError(
                f"candidates: expected one algorithm with different numbers, got {first.name!r} and "
                f"{each.name!r} that differ in more, such as epochs or batch_size; give numbers of an "
                "optimiser as jax.tree_util.Partial(optax.adam, rate), and share all else"
            )
    numbers = [each.params._replace(model=None) for each in candidates]
    each = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *numbers)
    params = SelectNumbers(first.params.model, each)
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
    """Return what all candidates must have in common: functions, static settings and shapes of numbers."""
    own = replace(algorithm, params=algorithm.params._replace(model=None), name="")
    leaves, structure = jax.tree.flatten(own)
    return structure, list(map(jnp.shape, leaves))
