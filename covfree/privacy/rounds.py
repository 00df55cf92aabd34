"""Make training in rounds private: noise on the sums of uploads (DP-FedAvg), or of gradients (DP-SGD)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_above_zero, check_positive
from covfree.core.doors import is_finite
from covfree.core.keys import derive
from covfree.core.products import shortened, toward_zero
from covfree.core.types import PRNGKey, Scalar
from covfree.methods.rounds import bound
from covfree.privacy.accounting import Promise, Release, rho_for, spent
from covfree.rounds.adding import is_table
from covfree.rounds.algorithm import Algorithm, ClientData, check_algorithm


class _Numbers(NamedTuple):
    """The private algorithm's ``params``.

    Attributes:
        own: the original algorithm's ``params``.
        clip: the largest norm of an upload.
        deviation: σ, the standard deviation of the noise.
    """

    own: Any
    clip: Scalar
    deviation: Scalar


class _State(NamedTuple):
    """The private algorithm's state.

    Attributes:
        own: the original algorithm's state.
        key: PRNG key of the noise, as key data.
        round: the number of the round, from 0.
    """

    own: Any
    key: PRNGKey
    round: jax.Array


def private_rounds(
    algorithm: Algorithm, *, epsilon: float, delta: float, clip: float, rounds: int
) -> tuple[Algorithm, Promise]:
    """Make an algorithm whose state hides, after ``rounds`` rounds, whether any one client takes part.

    Each upload, as a vector of all its arrays, is scaled down to norm ``clip``, and the server adds Gaussian
    noise of standard deviation σ = clip/√(2ρ/rounds) to every number of the sum. Here ρ, the cost in
    zero-concentrated differential privacy, is the largest with this ε and δ. The upload contains the client's
    weight, so a client that is scaled down counts for less. For FedAvg use ``weighting="uniform"``, where the
    weight is 1, and a ``clip`` above 1. ε is the same if only some clients are drawn in a round. The promise
    does not cover what clients keep between rounds, or a run's losses.

    The noise is in floating point and from JAX's generator, whose key is in the server's state. That is
    enough for simulations, which show the accuracy, but is no real protection (docs/privacy.md).

    Args:
        algorithm: an algorithm whose uploads are sums of floats, such as `covfree.finetune.fedavg`.
        epsilon: ε of all rounds together.
        delta: δ.
        clip: bound on an upload's norm.
        rounds: the number of rounds that the promise covers; no more may be run.

    Returns:
        The algorithm, for `covfree.rounds.run`, and the promise.

    Source: McMahan, Ramage, Talwar and Zhang (2018), with noise on the sum instead of the mean.
    """
    check_algorithm(algorithm)
    check_above_zero("clip", clip)
    most = check_positive("rounds", rounds)
    if algorithm.rounds is not None and algorithm.rounds > most:
        raise ValueError(f"rounds: expected at least the algorithm's {algorithm.rounds}, got {rounds}")
    part = rho_for(epsilon, delta, real=True) / most
    releases = tuple(Release(f"round {number}", part, real=True) for number in range(most))
    promise = Promise(spent(releases, delta), delta, "client", "add_remove", "central", None, releases)
    made = replace(
        algorithm,
        params=_Numbers(algorithm.params, clip, clip / (2 * part) ** 0.5),
        name=f"private-{algorithm.name}",
        init=bound(_init, init=algorithm.init),
        broadcast=bound(_own, call=algorithm.broadcast),
        client=bound(_client, client=algorithm.client),
        server=bound(_server, server=algorithm.server),
        result=bound(_own, call=algorithm.result),
        rounds=most if algorithm.rounds is None else algorithm.rounds,
        report=None if algorithm.report is None else bound(_own, call=algorithm.report),
    )
    return made, promise


def _init(
    numbers: _Numbers, num_clients: int, key: PRNGKey, *, init: Callable[..., Any]
) -> tuple[_State, Any]:
    state, memory = init(numbers.own, num_clients, key)
    noise = jax.random.key_data(derive(key, "privacy"))
    return _State(state, noise, jnp.zeros((), jnp.int32)), memory


def _own(numbers: _Numbers, state: _State, *memory: Any, call: Callable[..., Any]) -> Any:
    """Call a function of the original algorithm, such as broadcast, with the original params and state."""
    return call(numbers.own, state.own, *memory)


def _client(
    numbers: _Numbers, sent: Any, data: ClientData, memory: Any, key: PRNGKey, *, client: Callable[..., Any]
) -> tuple[Any, Any, dict[str, Any]]:
    upload, now, metrics = client(numbers.own, sent, data, memory, key)
    leaves = jax.tree.leaves(upload, is_leaf=is_table)
    if any(is_table(each) or not jnp.issubdtype(each.dtype, jnp.floating) for each in leaves):
        raise ValueError(
            "algorithm: expected one whose uploads are sums of floats alone, got tables or integers"
        )
    kept = is_finite(upload) & is_finite(now)
    short = shortened(upload, numbers.clip)
    upload = jax.tree.map(lambda x, made: toward_zero(made, x.dtype), upload, short)
    memory = jax.tree.map(lambda new, old: jnp.where(kept, new, old), now, memory)
    return upload, memory, _finite(metrics)


def _finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics with NaN and ∞ set to 0.

    A metric that is not finite would stop the run, and so reveal something about examples.
    """
    return {name: jnp.nan_to_num(x, nan=0, posinf=0, neginf=0) for name, x in metrics.items()}


def _server(numbers: _Numbers, state: _State, total: Any, *, server: Callable[..., Any]) -> _State:
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.round)
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, max(1, len(leaves)))
    noisy = [
        leaf + jnp.asarray(numbers.deviation, leaf.dtype) * jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return _State(server(numbers.own, state.own, structure.unflatten(noisy)), state.key, state.round + 1)


def private_training(
    algorithm: Algorithm, *, epsilon: float, delta: float, clip: float, rounds: int
) -> tuple[Algorithm, Promise]:
    """Return an algorithm whose clients train by DP-SGD: their uploads hide each example from everyone.

    A step clips the gradient of each example to norm ``clip``, sums the gradients, adds Gaussian noise of
    standard deviation σ = clip·√(2E/ρ) to each number, and divides by the batch size. Here E is
    epochs × rounds, and ρ, the cost in zero-concentrated differential privacy, is the largest with this ε and
    δ. Clients compute everything else from these sums, so a client's uploads of all rounds together keep the
    promise.

    An epoch goes through the client's examples once, so an example is in one step of each epoch, and
    replacing it changes that step's sum by at most 2·clip. ε does not rely on a secret order of the examples.
    The number of a client's examples is not hidden, and the promise does not cover the losses in a run's
    history.

    The noise is in floating point and from JAX's generator, with the run's key. That is enough for
    simulations, which show the accuracy, but is no real protection (docs/privacy.md).

    Args:
        algorithm: `covfree.finetune.fedavg`, or one that differs from it only in its optimisers (`fedadam`,
            `fedprox`, …), with ``epochs``, and a model without running statistics.
        epsilon: ε of all epochs of all rounds together.
        delta: δ.
        clip: bound on the norm of an example's gradient.
        rounds: the number of rounds that the promise covers; no more may be run.

    Returns:
        The algorithm, for `covfree.rounds.run`, and the promise.

    Raises:
        ValueError: if the algorithm does not train as `fedavg` does, or has ``steps`` instead of ``epochs``,
            a loss over each client's own classes, or running statistics; or if a number is out of range.

    Source: Abadi et al. (2016), Deep learning with differential privacy, without sampling.
    """
    from covfree.finetune import averaging  # Needs optax.
    from covfree.finetune.per_example import PerExample

    check_algorithm(algorithm)
    check_above_zero("clip", clip)
    most = check_positive("rounds", rounds)
    if algorithm.client is not averaging.client:
        raise ValueError(
            "algorithm: expected fedavg, or one that differs from it only in its optimisers, got "
            f"{algorithm.name!r}, whose clients train in another way"
        )
    training, model = algorithm.params.training, algorithm.params.model
    if training.epochs is None:
        raise ValueError("algorithm: expected epochs, in each of which an example is used once, got steps")
    if training.own_classes:
        raise ValueError(
            "algorithm: expected a loss over all classes, as a loss over a client's own classes would tell "
            "which it holds; got own_classes=True"
        )
    if jax.tree.leaves(model.statistics):
        raise ValueError(
            "algorithm: expected a model without running statistics, as these depend on all examples of a "
            "batch; got a model with some"
        )
    part = rho_for(epsilon, delta, real=True) / (most * training.epochs)
    releases = tuple(
        Release(f"round {number}, epoch {epoch}", part, real=True)
        for number in range(most)
        for epoch in range(training.epochs)
    )
    promise = Promise(spent(releases, delta), delta, "example", "replace_one", "local", None, releases)
    # The noise σ follows from ρ = Δ²/(2σ²); replacing an example moves a sum by at most Δ = 2·clip.
    private = PerExample(clip, clip * (2 / part) ** 0.5)
    params = algorithm.params._replace(training=replace(training, private=private))
    client = bound(_quiet_client, client=algorithm.client)
    name = f"dp-sgd-{algorithm.name}"
    return replace(algorithm, params=params, name=name, client=client, rounds=most), promise


def _quiet_client(*given: Any, client: Callable[..., Any]) -> tuple[Any, Any, dict[str, Any]]:
    upload, memory, metrics = client(*given)
    return upload, memory, _finite(metrics)
