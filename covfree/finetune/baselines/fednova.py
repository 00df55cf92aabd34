"""FedNova: FedAvg with an average of the clients' changes that does not favour clients with more steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.types import PRNGKey
from covfree.finetune import averaging
from covfree.finetune.local import LocalTraining
from covfree.finetune.model import Model
from covfree.finetune.optimisers import reach
from covfree.rounds.algorithm import Algorithm, ClientData


class FedNovaUpload(NamedTuple):
    """A client's upload, in the symbols of `fednova`; all of its arrays are summed over clients.

    Attributes:
        change: w_i (x − y_i)/ℓ_i, the client's weighted change per unit of path length.
        statistics: w_i times the client's running statistics.
        weight: w_i, the client's weight.
        length: w_i ℓ_i, the client's weighted path length.
    """

    change: Any
    statistics: Any
    weight: jax.Array
    length: jax.Array


def _client(
    numbers: averaging.FedAvgNumbers, sent: Any, data: ClientData, memory: tuple[()], key: PRNGKey
) -> tuple[FedNovaUpload, tuple[()], dict[str, Any]]:
    own, change, update = averaging.train(numbers, sent, data, key)
    length = reach(numbers.training.optimiser, own.steps, own.factor)
    change = averaging.scaled(update.weight / jnp.where(length > 0, length, 1), change)
    return FedNovaUpload(change, update.statistics, update.weight, update.weight * length), (), own.metrics


def _server(
    numbers: averaging.FedAvgNumbers, state: averaging.FedAvgState, total: FedNovaUpload
) -> averaging.FedAvgState:
    weight = total.weight
    length = averaging.mean(total.length, weight)
    direction = jax.tree.map(lambda x: length.astype(x.dtype) * x, averaging.mean(total.change, weight))
    return averaging.step(numbers, state, direction, averaging.mean(total.statistics, weight), weight)


def fednova(
    model: Model,
    client: Any = 0.01,
    server: Any = 1.0,
    *,
    weighting: averaging.Weighting = "examples",
    **options: Any,
) -> Algorithm:
    """FedNova: average the clients' changes per unit of path length, and multiply by the mean path length.

    x ← x − server(ℓ Σ w_i (x − y_i)/ℓ_i / Σ w_i) with ℓ = Σ w_i ℓ_i / Σ w_i; x, y_i and w_i are as in
    `fedavg`. A client's path length ℓ_i (the paper's η‖a_i‖₁) is how far its optimiser moves if the gradient
    is always 1: K_i η for K_i steps of gradient descent with rate η, longer with momentum, shorter with
    weight decay or a proximal term (`add_proximal`). Unlike in FedAvg, clients with more steps have no larger
    weight. If all clients take equally many steps, FedNova is FedAvg.

    Args:
        model: see `fedavg`.
        client: see `fedavg`; for adaptive optimisers, such as Adam, ℓ_i is about K_i η.
        server: see `fedavg`.
        weighting: see `fedavg`.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`.

    Source: Wang et al. (2020), "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", equation 7 and section 4.
    """
    training = LocalTraining.of(client, **options)
    return averaging.federated(model, training, server, weighting, "fednova", client=_client, server=_server)
