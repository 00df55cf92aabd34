"""FedProto: clients train models of their own and share the class means of their features."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_positive, check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.local import Training, class_counts
from covfree.finetune.model import Model
from covfree.finetune.personal import Own, Prototypes, check_features_train, own_models, train_own
from covfree.rounds.algorithm import Algorithm, ClientData


class _Numbers(NamedTuple):
    model: Model
    training: Training
    start: Prototypes
    strength: Any


class Update(NamedTuple):
    """What a client uploads: sums.

    Attributes:
        mean: class means of its features; 0 of a class that it lacks.
        holders: 1 for each class that it has.
    """

    mean: Float[Array, "classes dim"]
    holders: Float[Array, " classes"]


def _init(numbers: _Numbers, num_clients: int, key: PRNGKey) -> tuple[Prototypes, Own]:
    return numbers.start, Own.start(numbers.model)


def _broadcast(numbers: _Numbers, state: Prototypes) -> Prototypes:
    return state


def _client(
    numbers: _Numbers, prototypes: Prototypes, data: ClientData, own: Own, key: PRNGKey
) -> tuple[Update, Own, dict[str, Any]]:
    def penalty(features: jax.Array, labels: jax.Array) -> jax.Array:
        return numbers.strength * prototypes.distance(features, labels)

    own, metrics = train_own(numbers.training, numbers.model, data, own, key, penalty)
    return _class_means(numbers, own, data), own, metrics


def _class_means(numbers: _Numbers, own: Own, data: ClientData) -> Update:
    """Means of the client's features by its own model, as in evaluation."""
    model, size = numbers.model, numbers.training.batch_size
    counts = class_counts(data, numbers.start.mean.shape[0])

    def add(batch: Any, sums: jax.Array) -> jax.Array:
        inputs, labels = data.take(batch * size + jnp.arange(size))
        features, _ = model.features(own.trained, model.frozen, own.statistics, inputs, False, None)
        return sums.at[jnp.where(labels >= 0, labels, len(sums))].add(
            features.astype(sums.dtype), mode="drop"
        )

    batches = -(-data.num_examples // size)
    sums = jax.lax.fori_loop(0, batches, add, jnp.zeros_like(numbers.start.mean))
    mean = sums / jnp.maximum(counts, 1)[:, None].astype(sums.dtype)
    return Update(mean, (counts > 0).astype(sums.dtype))


def _server(numbers: _Numbers, state: Prototypes, total: Update) -> Prototypes:
    held = total.holders > 0
    mean = total.mean / jnp.where(held, total.holders, 1)[:, None]
    # Of a class that nobody of the round has, the prototype stays.
    return Prototypes(
        jnp.where(held[:, None], mean, state.mean), jnp.where(held, total.holders, state.counts)
    )


def fedproto(
    model: Model,
    num_classes: int,
    dim: int,
    strength: Scalar = 0.01,
    client: Any = 0.01,
    **options: Any,
) -> Algorithm:
    """FedProto: each client minimises its loss plus λ times the mean of ‖f(x) − μ_y‖² over its examples.

    After training a client sends the class means of its features, and the server averages them over the
    clients that have the class: μ_c ← Σ_k μ_kc / K_c. Models stay with the clients. In the first round there
    are no prototypes, and the term is 0.

    The paper writes the term with local class means, λ Σ_c ‖μ_kc − μ_c‖, and weights n_kc/N_c in the average
    beside a division by K_c, which would make prototypes K_c times too small. The authors' code has single
    examples and the plain average, as here, but a mean over dimensions: its λ is d times this one.

    Args:
        model: what all start from; see `fedcgs_personal`.
        num_classes: C.
        dim: d, of the model's features.
        strength: λ, at least 0.
        client: see `fedavg`.
        options: see `local_only`.

    Returns:
        An algorithm whose result is `ClientModels`, and whose state is the `Prototypes`.

    Source: Tan et al. (2022), "FedProto: Federated Prototype Learning across Heterogeneous Clients",
    Algorithm 1, equations 5 and 6.
    """
    check_positive("num_classes", num_classes)
    check_positive("dim", dim)
    start = Prototypes(jnp.zeros((num_classes, dim)), jnp.zeros(num_classes))
    check_features_train(model)
    start.check(model)
    training = Training.of(client, **options)
    numbers = _Numbers(model, training, start, check_strength("strength", strength))
    functions = _init, _broadcast, _client, _server, own_models
    return Algorithm(numbers, "fedproto", *functions, num_classes=model.num_classes)
