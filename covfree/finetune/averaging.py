"""FedAvg, and what differs from it by the server's optimiser or the client's: FedAdam, …, FedProx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.baselines.prompts import without_padding
from covfree.finetune.local import Optimiser, Training, as_optimiser
from covfree.finetune.model import Model, check_model
from covfree.finetune.optimisers import adaptive, add_proximal
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
    return Update(change, scaled(weight, own.statistics), weight), (), own.metrics


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
    return numbers.model.result(state.trained, state.statistics)


def federated(
    model: Model,
    training: Training,
    server_optimiser: Any,
    weighting: Weighting,
    name: str,
    **others: Callable[..., Any],
) -> Algorithm:
    """An algorithm with FedAvg's numbers; ``others`` are functions in the place of some of FedAvg's."""
    model = without_padding(check_model(model))
    check_choice("weighting", weighting, ("examples", "uniform"))
    numbers = Numbers(
        model, training, as_optimiser("server", server_optimiser), jnp.asarray(weighting == "uniform")
    )
    plain = {"init": init, "broadcast": broadcast, "client": client, "server": server, "result": result}
    return Algorithm(numbers, name, **{**plain, **others}, num_classes=model.num_classes)


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


def _proximal(mu: Scalar, client: Any) -> Any:
    return optax.chain(add_proximal(mu), client())


def fedprox(model: Model, client: Any = 0.01, mu: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedProx: each client minimises its loss plus μ/2 ‖y − x‖², with x the server's model.

    The term's gradient comes before the client's optimiser, momentum included. With μ = 0 it is FedAvg.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        mu: μ, at least 0.
        options: others of `fedavg`.

    Source: Li et al. (2020), Algorithm 2.
    """
    near = Partial(_proximal, check_strength("mu", mu), as_optimiser("client", client))
    return fedavg(model, near, name="fedprox", **options)


@dataclass(frozen=True)
class _Rule:
    rule: Any

    def __call__(self, *numbers: Any, **named: Any) -> optax.GradientTransformation:
        return adaptive(self.rule, *numbers, **named)


_SERVERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "fedadam": (_Rule("adam"), ("b1", "b2", "tau")),
    "fedadam-torch": (optax.adam, ("b1", "b2", "eps")),
    "fedadam-flower": (_Rule("adam-flower"), ("b1", "b2", "tau")),
    "fedyogi": (_Rule("yogi"), ("b1", "b2", "tau")),
    "fedadagrad": (_Rule("adagrad"), ("b1", "tau")),
}


def _adaptive(name: str, model: Model, client: Any, server_lr: Scalar, options: dict[str, Any]) -> Algorithm:
    make, accepted = _SERVERS[name]
    numbers = {each: options.pop(each) for each in accepted if each in options}
    for each, number in {"server_lr": server_lr, **numbers}.items():
        check_strength(each, number)
    return fedavg(model, client, Partial(make, server_lr, **numbers), name=name, **options)


def fedadam(
    model: Model,
    client: Any = 0.01,
    server_lr: Scalar = 0.01,
    *,
    form: Literal["reddi", "torch", "flower"] = "reddi",
    **options: Any,
) -> Algorithm:
    """FedAdam: `fedavg` whose server takes Adam's steps.

    Three forms are in use, and rates of one do not fit another. ``"reddi"`` is the paper's, see `adaptive`:
    v starts at τ² and nothing is corrected, so that with small changes (√v < τ = 1e-3) it is momentum with a
    rate of η/τ. ``"torch"`` is PyTorch's Adam, which FLSim has and the tables of Fed3R and FedCOF are made
    with: corrected, β₂ = 0.999, ε = 1e-8. ``"flower"`` is that of Flower's strategy: v starts at 0, and the
    correction is that of the step after. From the same rates their trajectories differ widely.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        server_lr: η of the server.
        form: which Adam.
        options: others of `fedavg`; ``b1``, ``b2`` and ``tau`` of `adaptive`, or if the form is ``"torch"``
            ``b1``, ``b2`` and ``eps`` of ``optax.adam``.

    Source: Reddi et al. (2021), Algorithm 2.
    """
    check_choice("form", form, ("reddi", "torch", "flower"))
    name = "fedadam" if form == "reddi" else f"fedadam-{form}"
    return _adaptive(name, model, client, server_lr, options)


def fedyogi(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedYogi: `fedavg` whose server takes Yogi's steps; see `fedadam`."""
    return _adaptive("fedyogi", model, client, server_lr, options)


def fedadagrad(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedAdagrad: `fedavg` whose server takes Adagrad's steps, β₁ = 0 unless given; see `fedadam`."""
    return _adaptive("fedadagrad", model, client, server_lr, {"b1": 0.0, **options})
