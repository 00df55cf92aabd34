"""FedAvg, and what differs from it by the server's optimiser: FedAvgM, FedAdam, FedYogi, FedAdagrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.local import Optimiser, Training, as_optimiser
from covfree.finetune.model import Model, check_model
from covfree.finetune.optimisers import adaptive
from covfree.finetune.prompts import without_padding
from covfree.rounds.algorithm import Algorithm, ClientData

Weighting: TypeAlias = Literal["examples", "uniform"]


class Numbers(NamedTuple):
    """What an algorithm of federated optimisation is made of; see `fedavg`."""

    model: Model
    training: Training
    server: Optimiser
    uniform: jax.Array


class State(NamedTuple):
    """What the server holds.

    Attributes:
        trained: x.
        statistics: running statistics of batch norms.
        optimiser: the state of the server's optimiser.
        round: how many rounds there were.
    """

    trained: Any
    statistics: Any
    optimiser: Any
    round: jax.Array


class Update(NamedTuple):
    """What a client uploads: sums.

    Attributes:
        change: w_i (x − y_i), by how much the server's model exceeds the client's.
        statistics: w_i times the client's running statistics.
        weight: w_i, n_i or 1; 0 of a client without examples.
    """

    change: Any
    statistics: Any
    weight: jax.Array


def init(numbers: Numbers, num_clients: int, key: PRNGKey) -> tuple[State, tuple[()]]:
    """The server starts from the model; clients remember nothing."""
    model = numbers.model
    optimiser = numbers.server().init(model.trained)
    return State(model.trained, model.statistics, optimiser, jnp.zeros((), jnp.int32)), ()


def broadcast(numbers: Numbers, state: State) -> Any:
    """The model and the round."""
    return state.trained, state.statistics, state.round


def client_weight(numbers: Numbers, data: ClientData) -> jax.Array:
    """w_i of a client."""
    count = data.num_examples.astype(jnp.float32)
    return jnp.where(numbers.uniform, (count > 0).astype(jnp.float32), count)


def client(
    numbers: Numbers, sent: Any, data: ClientData, memory: tuple[()], key: PRNGKey
) -> tuple[Update, tuple[()], dict[str, Any]]:
    """Train, and say how far the model went."""
    trained, statistics, number = sent
    own = numbers.training(numbers.model, trained, statistics, data, key, round=number, anchor=trained)
    weight = client_weight(numbers, data)
    change = scaled(weight, jax.tree.map(jnp.subtract, trained, own.trained))
    update = Update(change, scaled(weight, own.statistics), weight)
    return update, (), {"loss": own.loss, "steps": own.steps}


def scaled(weight: jax.Array, tree: Any) -> Any:
    """A term of a sum over clients, in float32 at least: in bfloat16 a sum of 1,000 may be 40 % off."""

    def term(x: jax.Array) -> jax.Array:
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        return weight.astype(dtype) * x.astype(dtype)

    return jax.tree.map(term, tree)


def mean(sums: Any, weight: jax.Array) -> Any:
    """Σ w a / Σ w; 0 where nobody came."""
    return jax.tree.map(lambda x: x / jnp.where(weight > 0, weight, 1).astype(x.dtype), sums)


def step(numbers: Numbers, state: State, direction: Any, statistics: Any, weight: jax.Array) -> State:
    """The server's step; it stays where it is if nobody came."""
    direction, statistics = (
        jax.tree.map(lambda new, old: new.astype(old.dtype), *pair)
        for pair in ((direction, state.trained), (statistics, state.statistics))
    )
    updates, optimiser = numbers.server().update(direction, state.optimiser, state.trained)
    new = State(optax.apply_updates(state.trained, updates), statistics, optimiser, state.round)
    kept = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), new, state)
    return kept._replace(round=state.round + 1)


def server(numbers: Numbers, state: State, total: Update) -> State:
    """Take the server's step along the mean change."""
    weight = total.weight
    return step(numbers, state, mean(total.change, weight), mean(total.statistics, weight), weight)


def result(numbers: Numbers, state: State, memory: Any) -> Any:
    """The model, as its own function gives it."""
    model = numbers.model
    return model.finish(state.trained, model.frozen, state.statistics)


def fedavg(
    model: Model,
    client: Any = 0.01,
    server: Any = 1.0,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    weighting: Weighting = "examples",
    schedule: Callable[[Any], Any] | None = None,
    name: str = "fedavg",
) -> Algorithm:
    """FedAvg: clients train on their own examples, the server averages what they arrive at.

    x ← x − server(Σ w_i (x − y_i) / Σ w_i): the mean change is a gradient to the server's optimiser. With
    server = 1.0 the new model is the mean of the clients'. In one round of many epochs it is one-shot FedAvg.

    Args:
        model: from `linear_model` or `network_model`, or your own.
        client: the clients' optimiser: a learning rate of gradient descent, an optax transformation, or
            ``jax.tree_util.Partial(optax.adam, 1e-3)``, whose numbers may be swept without compiling anew. It
            starts afresh in each round.
        server: the server's optimiser, likewise. FedAvgM is ``optax.sgd(1.0, momentum=0.9)``.
        epochs: passes of a client over its examples in a round; 1 if neither this nor ``steps`` is given.
        steps: steps of a client in a round, in the place of epochs.
        batch_size: examples of a step.
        weighting: w_i = n_i, the client's ``"examples"``, or 1 (``"uniform"``).
        schedule: from the round, from 0, to a factor of the clients' learning rate, as optax schedules are.
        name: of the algorithm.

    Returns:
        An algorithm for `covfree.rounds.run`; its clients' metrics are ``loss`` and ``steps``.

    Raises:
        TypeError: if an optimiser is none.
        ValueError: if a number is out of its range.

    Source: McMahan et al. (2017), Algorithm 1; with a server's optimiser Reddi et al. (2021), Algorithm 1.
    """
    training = Training.of(client, epochs=epochs, steps=steps, batch_size=batch_size, schedule=schedule)
    return federated(model, training, server, weighting, name)


def federated(
    model: Model,
    training: Training,
    server_optimiser: Any,
    weighting: Weighting,
    name: str,
    *,
    client: Callable[..., Any] = client,
    server: Callable[..., Any] = server,
) -> Algorithm:
    """An algorithm with FedAvg's state, and other functions in the place of some of FedAvg's."""
    model = without_padding(check_model(model))
    check_choice("weighting", weighting, ("examples", "uniform"))
    numbers = Numbers(
        model, training, as_optimiser("server", server_optimiser), jnp.asarray(weighting == "uniform")
    )
    functions = init, broadcast, client, server, result
    return Algorithm(numbers, name, *functions, num_classes=model.num_classes)


def _adam(*numbers: Any, **named: Any) -> optax.GradientTransformation:
    return adaptive("adam", *numbers, **named)


def _yogi(*numbers: Any, **named: Any) -> optax.GradientTransformation:
    return adaptive("yogi", *numbers, **named)


def _adagrad(*numbers: Any, **named: Any) -> optax.GradientTransformation:
    return adaptive("adagrad", *numbers, **named)


def _adaptive(make: Any, model: Model, client: Any, server_lr: Scalar, options: dict[str, Any]) -> Algorithm:
    check_strength("server_lr", server_lr)
    numbers = {name: options.pop(name) for name in ("b1", "b2", "tau") if name in options}
    server = jax.tree_util.Partial(make, server_lr, **numbers)
    return fedavg(model, client, server, name=f"fed{make.__name__[1:]}", **options)


def fedadam(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedAdam: `fedavg` whose server takes Adam's steps.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        server_lr: η of the server.
        options: others of `fedavg`, and ``b1``, ``b2``, ``tau`` of `adaptive`.

    Source: Reddi et al. (2021), Algorithm 2.
    """
    return _adaptive(_adam, model, client, server_lr, options)


def fedyogi(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedYogi: `fedavg` whose server takes Yogi's steps; see `fedadam`."""
    return _adaptive(_yogi, model, client, server_lr, options)


def fedadagrad(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedAdagrad: `fedavg` whose server takes Adagrad's steps, β₁ = 0 unless given; see `fedadam`."""
    return _adaptive(_adagrad, model, client, server_lr, {"b1": 0.0, **options})
