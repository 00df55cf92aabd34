"""FedCGS's personalisation: local training that is held near the global class means."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.local import Training, class_counts
from covfree.finetune.model import Model
from covfree.finetune.personal import Own, Prototypes, check_features_train, own_models, train_own
from covfree.rounds.algorithm import Algorithm, ClientData


class _Numbers(NamedTuple):
    model: Model
    training: Training
    prototypes: Prototypes
    strength: Any


def _init(numbers: _Numbers, num_clients: int, key: PRNGKey) -> tuple[tuple[()], Own]:
    return (), Own.start(numbers.model)


def _broadcast(numbers: _Numbers, state: tuple[()]) -> Prototypes:
    return numbers.prototypes


def _client(
    numbers: _Numbers, prototypes: Prototypes, data: ClientData, own: Own, key: PRNGKey
) -> tuple[tuple[()], Own, dict[str, Any]]:
    counts = class_counts(data, prototypes.mean.shape[0])

    def penalty(features: jax.Array, labels: jax.Array) -> jax.Array:
        share = jnp.maximum(counts[labels], 1) / jnp.maximum(data.num_examples, 1)
        return numbers.strength * prototypes.distance(features, labels) / share

    return (), *train_own(numbers.training, numbers.model, data, own, key, penalty)


def _server(numbers: _Numbers, state: tuple[()], total: tuple[()]) -> tuple[()]:
    return ()


def fedcgs_personal(
    model: Model, prototypes: Prototypes, strength: Scalar = 0.01, client: Any = 0.01, **options: Any
) -> Algorithm:
    """FedCGS's personalisation: each client minimises its loss plus λ Σ_j (1/N_ij) Σ_{y = j} ‖f(x) − μ_j‖².

    The class means μ_j of all clients come from the closed-form stage and stay fixed; one round is one more
    download. Clients send nothing.

    In print 1/N_ij stands before the sum over classes j, on which it depends; it belongs inside. Each class
    then counts alike. Of a client with n_i examples, the sum is the mean over its examples of
    (n_i/N_i,y) ‖f(x) − μ_y‖², and that is what minibatches estimate. (The authors' code has a plain mean.)

    Args:
        model: what all start from, with features of the prototypes' dimension: `network_model`, or
            `adapter_model` for frozen features.
        prototypes: of the closed-form stage.
        strength: λ, at least 0.
        client: see `fedavg`.
        options: see `local_only`.

    Returns:
        An algorithm whose result is `ClientModels`.

    Raises:
        ValueError: if a number is out of its range, or there are not as many prototypes as classes.

    Source: Guan et al. (2025), "Capture Global Feature Statistics for One-Shot Federated Learning",
    equation 12.
    """
    check_features_train(model)
    if not isinstance(prototypes, Prototypes):
        raise TypeError(
            "prototypes: expected covfree.finetune.Prototypes(*covfree.class_means(features, labels, C)), "
            f"got {type(prototypes).__name__}"
        )
    prototypes.check(model)
    training = Training.of(client, **options)
    numbers = _Numbers(model, training, prototypes, check_strength("strength", strength))
    functions = _init, _broadcast, _client, _server, own_models
    return Algorithm(numbers, "fedcgs-personal", *functions, num_classes=model.num_classes)
