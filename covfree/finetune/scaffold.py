"""SCAFFOLD: clients' gradients corrected by what all clients' are."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.checks import check_strength
from covfree.core.types import PRNGKey, Scalar, is_traced
from covfree.finetune import averaging
from covfree.finetune.fednova import path_length
from covfree.finetune.local import Training
from covfree.finetune.model import Model
from covfree.finetune.optimisers import add_correction
from covfree.rounds.algorithm import Algorithm, ClientData


class State(NamedTuple):
    """What the server holds.

    Attributes:
        inner: as FedAvg's.
        control: c.
        num_clients: N, of all clients that have examples.
    """

    inner: averaging.State
    control: Any
    num_clients: jax.Array


class Update(NamedTuple):
    """What a client uploads: sums.

    Attributes:
        inner: FedAvg's with the weight 1.
        control: c_i⁺ − c_i.
    """

    inner: averaging.Update
    control: Any


def _descent(learning_rate: Scalar, momentum: Scalar) -> Any:
    return optax.chain(add_correction(), optax.sgd(learning_rate, momentum))


def _init(numbers: averaging.Numbers, num_clients: int, key: PRNGKey) -> tuple[State, Any]:
    inner, _ = averaging.init(numbers, num_clients, key)
    zeros = jax.tree.map(jnp.zeros_like, inner.trained)
    return State(inner, zeros, jnp.asarray(num_clients, jnp.float32)), zeros


def _broadcast(numbers: averaging.Numbers, state: State) -> Any:
    return averaging.broadcast(numbers, state.inner), state.control


def _client(
    numbers: averaging.Numbers, sent: Any, data: ClientData, memory: Any, key: PRNGKey
) -> tuple[Update, Any, dict[str, Any]]:
    (trained, statistics, number), control = sent
    correction = jax.tree.map(jnp.subtract, control, memory)
    own = numbers.training(numbers.model, trained, statistics, data, key, round=number, correction=correction)
    weight = averaging.client_weight(numbers, data)
    learning_rate, momentum = numbers.training.optimiser.numbers[0].args
    # Option II: (x − y_i)/(‖a‖₁ η) − (c − c_i), the mean gradient along the way.
    reach = jnp.maximum(path_length(own.steps, learning_rate, momentum, 0.0), 1) * learning_rate
    change = jax.tree.map(jnp.subtract, trained, own.trained)
    new = jax.tree.map(
        lambda d, c: jnp.where(weight > 0, (d / reach).astype(d.dtype) - c, 0), change, correction
    )
    remembered = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), new, memory)
    change, weighed = averaging.scaled(weight, (change, own.statistics))
    moved = averaging.scaled(jnp.ones(()), jax.tree.map(jnp.subtract, remembered, memory))
    metrics = {"loss": own.loss, "steps": own.steps}
    return Update(averaging.Update(change, weighed, weight), moved), remembered, metrics


def _server(numbers: averaging.Numbers, state: State, total: Update) -> State:
    inner = averaging.server(numbers, state.inner, total.inner)
    control = jax.tree.map(
        lambda c, moved: c + (moved / state.num_clients).astype(c.dtype), state.control, total.control
    )
    return State(inner, control, state.num_clients)


def _result(numbers: averaging.Numbers, state: State, memory: Any) -> Any:
    return averaging.result(numbers, state.inner, ())


def scaffold(
    model: Model,
    client_lr: Scalar = 0.01,
    server: Any = 1.0,
    *,
    momentum: Scalar = 0.0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
) -> Algorithm:
    """SCAFFOLD: each client descends g − c_i + c, its gradient less its own mean one plus everybody's.

    Clients remember c_i from round to round, and c_i⁺ = c_i − c + (x − y_i)/(K_i η) (option II); the server
    has x ← x − server(mean of x − y_i) and c ← c + (1/N) Σ (c_i⁺ − c_i). All start at 0, and clients have
    weight 1.
    The fixed point is the optimum of the mean of the clients' losses, whatever their data.

    With momentum the change is of ‖a‖₁ η gradients, not of K η, and with the latter the controls grow without
    bound; ‖a‖₁ as in FedNova takes the place of K_i.

    Args:
        model: see `fedavg`.
        client_lr: η of the clients' gradient descent, above 0.
        server: see `fedavg`.
        momentum: ρ in [0, 1) of the clients.
        epochs: see `fedavg`.
        steps: see `fedavg`.
        batch_size: see `fedavg`.

    Source: Karimireddy et al. (2020), "SCAFFOLD", Algorithm 1, option II.
    """
    check_strength("client_lr", client_lr)
    check_strength("momentum", momentum)
    if not is_traced(momentum) and momentum >= 1:
        raise ValueError(f"momentum: expected less than 1, got {momentum}")
    if not is_traced(client_lr) and client_lr == 0:
        raise ValueError("client_lr: expected more than 0, as controls are changes divided by it")
    descent = Partial(_descent, client_lr, momentum)
    training = Training.of(descent, epochs=epochs, steps=steps, batch_size=batch_size, schedule=None)
    plain = averaging.federated(
        model, training, server, "uniform", "scaffold", client=_client, server=_server
    )
    functions = _init, _broadcast, _client, _server, _result
    return Algorithm(plain.params, "scaffold", *functions, num_classes=model.num_classes)
