"""FedNova: clients that take different numbers of steps, averaged without favour."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.checks import check_strength
from covfree.core.types import PRNGKey, Scalar, is_traced
from covfree.finetune import averaging
from covfree.finetune.local import Training
from covfree.finetune.model import Model
from covfree.finetune.optimisers import add_proximal
from covfree.rounds.algorithm import Algorithm, ClientData


class Update(NamedTuple):
    """What a client uploads: sums.

    Attributes:
        change: w_i (x − y_i)/‖a_i‖₁, its change for each step's worth.
        statistics: w_i times its running statistics.
        weight: w_i.
        length: w_i ‖a_i‖₁.
    """

    change: Any
    statistics: Any
    weight: jax.Array
    length: jax.Array


def _descent(learning_rate: Scalar, momentum: Scalar, mu: Scalar) -> Any:
    return optax.chain(add_proximal(mu), optax.sgd(learning_rate, momentum))


def path_length(steps: Any, learning_rate: Scalar, momentum: Scalar, mu: Scalar) -> jax.Array:
    """‖a_i‖₁: by how many gradients the client's model differs from the server's, weights added up.

    With a constant gradient g the change is η ‖a‖₁ g. Plain descent has K; momentum ρ has
    (K − ρ(1 − ρᴷ)/(1 − ρ))/(1 − ρ); a proximal term has (1 − (1 − ημ)ᴷ)/(ημ). Both together are followed step
    by step: b ← ρb + 1 − ημ a and a ← a + b.
    """

    def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        length, speed = carry
        speed = momentum * speed + 1 - learning_rate * mu * length
        return length + speed, speed

    zero = jnp.zeros(())
    return jax.lax.fori_loop(0, steps, step, (zero, zero))[0]


def _client(
    numbers: averaging.Numbers, sent: Any, data: ClientData, memory: tuple[()], key: PRNGKey
) -> tuple[Update, tuple[()], dict[str, Any]]:
    trained, statistics, number = sent
    own = numbers.training(numbers.model, trained, statistics, data, key, round=number, anchor=trained)
    weight = averaging.client_weight(numbers, data)
    length = path_length(own.steps, *numbers.training.optimiser.numbers[0].args)
    scale = weight / jnp.maximum(length, 1)
    change = averaging.scaled(scale, jax.tree.map(jnp.subtract, trained, own.trained))
    weighed = averaging.scaled(weight, own.statistics)
    return Update(change, weighed, weight, weight * length), (), {"loss": own.loss, "steps": own.steps}


def _server(numbers: averaging.Numbers, state: averaging.State, total: Update) -> averaging.State:
    weight = total.weight
    length = averaging.mean(total.length, weight)
    direction = jax.tree.map(lambda x: length.astype(x.dtype) * x, averaging.mean(total.change, weight))
    return averaging.step(numbers, state, direction, averaging.mean(total.statistics, weight), weight)


def fednova(
    model: Model,
    client_lr: Scalar = 0.01,
    server: Any = 1.0,
    *,
    momentum: Scalar = 0.0,
    mu: Scalar = 0.0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    weighting: averaging.Weighting = "examples",
) -> Algorithm:
    """FedNova: the mean of the clients' changes for each step's worth, times the mean number of steps.

    x ← x − server(τ Σ w_i (x − y_i)/‖a_i‖₁ / Σ w_i), τ = Σ w_i ‖a_i‖₁ / Σ w_i. Clients with more
    steps do not pull the model towards their own optimum, as they do in FedAvg. Where all take the same
    number it is FedAvg.

    Args:
        model: see `fedavg`.
        client_lr: η of the clients' gradient descent.
        server: see `fedavg`.
        momentum: ρ in [0, 1) of the clients, which starts afresh in each round.
        mu: of a proximal term, see `fedprox`; η μ below 1.
        epochs: see `fedavg`.
        steps: see `fedavg`.
        batch_size: see `fedavg`.
        weighting: see `fedavg`.

    Source: Wang et al. (2020), "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", equation 7 and section 4.
    """
    for name, number in (("client_lr", client_lr), ("momentum", momentum), ("mu", mu)):
        check_strength(name, number)
    if not is_traced(client_lr, mu) and client_lr * mu >= 1:
        raise ValueError(f"mu: expected client_lr · mu below 1, got {client_lr} · {mu}")
    descent = Partial(_descent, client_lr, momentum, mu)
    training = Training.of(descent, epochs=epochs, steps=steps, batch_size=batch_size, schedule=None)
    return averaging.federated(model, training, server, weighting, "fednova", client=_client, server=_server)
