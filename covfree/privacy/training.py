"""Train clients on clipped and noisy gradients of single examples (DP-SGD)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from covfree.core.checks import check_above_zero, check_positive
from covfree.methods.rounds import bound
from covfree.privacy.accounting import Promise, Release, rho_for, spent
from covfree.privacy.rounds import finite_metrics
from covfree.rounds.algorithm import Algorithm, check_algorithm


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
    client = bound(_client, client=algorithm.client)
    name = f"dp-sgd-{algorithm.name}"
    return replace(algorithm, params=params, name=name, client=client, rounds=most), promise


def _client(*given: Any, client: Callable[..., Any]) -> tuple[Any, Any, dict[str, Any]]:
    upload, memory, metrics = client(*given)
    return upload, memory, finite_metrics(metrics)
