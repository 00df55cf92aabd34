"""SCAFFOLD: FedAvg in which each client's gradients are corrected towards all clients' mean gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.types import PRNGKey
from covfree.finetune import averaging
from covfree.finetune.local import LocalTraining, as_optimiser
from covfree.finetune.model import Model
from covfree.rounds.algorithm import Algorithm, ClientData


class ScaffoldState(NamedTuple):
    """The server's state.

    Attributes:
        inner: FedAvg's state.
        control: c, the server's control variate, an estimate of all clients' mean gradient.
        num_clients: N, the number of clients that have examples.
    """

    inner: averaging.FedAvgState
    control: Any
    num_clients: jax.Array


class ScaffoldUpload(NamedTuple):
    """A client's upload; all of its arrays are summed over clients.

    Attributes:
        inner: FedAvg's upload with weight 1, which has the change of the client's model.
        control: c_i⁺ − c_i, the round's change of c_i, the client's estimate of its mean gradient; see
            `scaffold`.
    """

    inner: averaging.FedAvgUpload
    control: Any


def _corrected(client: Any) -> Any:
    """Return SCAFFOLD's optimiser: it adds a correction to each gradient, then applies ``client()``.

    ``update`` takes the correction as the keyword ``correction``. The first entry of the optimiser's state is
    the sum of all gradients, without the corrections.
    """

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        total = jax.tree.map(lambda s, g: s + g.astype(s.dtype), state, updates)
        return jax.tree.map(jnp.add, updates, extra["correction"]), total

    return optax.chain(optax.GradientTransformationExtraArgs(init, update), client())


def _init(numbers: averaging.FedAvgNumbers, num_clients: int, key: PRNGKey) -> tuple[ScaffoldState, Any]:
    inner, _ = averaging.init(numbers, num_clients, key)
    zeros = jax.tree.map(jnp.zeros_like, inner.trained)
    return ScaffoldState(inner, zeros, jnp.asarray(num_clients, jnp.float32)), zeros


def _broadcast(numbers: averaging.FedAvgNumbers, state: ScaffoldState) -> Any:
    return averaging.broadcast(numbers, state.inner), state.control


def _client(
    numbers: averaging.FedAvgNumbers, sent: Any, data: ClientData, memory: Any, key: PRNGKey
) -> tuple[ScaffoldUpload, Any, dict[str, Any]]:
    inner, control = sent
    correction = jax.tree.map(jnp.subtract, control, memory)
    own, _, update = averaging.train(numbers, inner, data, key, correction=correction)
    gradients, _ = own.optimiser

    def mean(total: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(update.weight > 0, (total / jnp.maximum(own.steps, 1)).astype(old.dtype), old)

    remembered = jax.tree.map(mean, gradients, memory)
    moved = averaging.scaled(jnp.ones(()), jax.tree.map(jnp.subtract, remembered, memory))
    return ScaffoldUpload(update, moved), remembered, own.metrics


def _server(numbers: averaging.FedAvgNumbers, state: ScaffoldState, total: ScaffoldUpload) -> ScaffoldState:
    inner = averaging.server(numbers, state.inner, total.inner)
    control = jax.tree.map(
        lambda c, moved: c + (moved / state.num_clients).astype(c.dtype), state.control, total.control
    )
    return ScaffoldState(inner, control, state.num_clients)


def _result(numbers: averaging.FedAvgNumbers, state: ScaffoldState, memory: Any) -> Any:
    return averaging.result(numbers, state.inner, ())


def scaffold(model: Model, client: Any = 0.01, server: Any = 1.0, **options: Any) -> Algorithm:
    """SCAFFOLD: client i descends along g − c_i + c, with mean gradients c_i (its own) and c (all clients').

    Here g is the gradient of a step. Clients keep c_i from round to round; its new value c_i⁺ is the mean of
    the gradients g of the client's steps in the round. The server updates its model x ← x − server(mean of
    x − y_i), with y_i the client's model, and c ← c + (1/N) Σ (c_i⁺ − c_i) for N clients. All c_i and c start
    at 0, and all clients have weight 1. The fixed point is the optimum of the mean of the clients' losses,
    however much the clients' data differ.

    For K_i steps of gradient descent with rate η, c_i⁺ is the paper's option II, c_i − c + (x − y_i)/(K_i η),
    as x − y_i is η times the sum of g − c_i + c. With momentum or a schedule, x − y_i is another sum, and a
    c_i made from this sum would grow without bound. The mean of the gradients works for any optimiser.

    Args:
        model: see `fedavg`.
        client: see `fedavg`; any optimiser.
        server: see `fedavg`.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`.

    Source: Karimireddy et al. (2020), "SCAFFOLD", Algorithm 1, option II.
    """
    descent = Partial(_corrected, as_optimiser("client", client))
    functions = {"init": _init, "broadcast": _broadcast, "client": _client, "server": _server}
    training = LocalTraining.of(descent, **options)
    return averaging.federated(model, training, server, "uniform", "scaffold", **functions, result=_result)
