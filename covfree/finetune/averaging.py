"""FedAvg, and its variants with another optimiser of the server (FedAdam, …) or of the clients (FedProx)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.baselines.prompts import without_padding
from covfree.finetune.local import Local, LocalTraining, as_optimiser, made
from covfree.finetune.model import Model, check_model
from covfree.finetune.optimisers import adaptive, add_proximal
from covfree.methods.rounds import bound
from covfree.rounds.algorithm import Algorithm, ClientData

Weighting: TypeAlias = Literal["examples", "uniform"]


class FedAvgNumbers(NamedTuple):
    """The ``params`` of an algorithm like `fedavg`.

    Attributes:
        model: the model to be trained.
        training: how clients train it.
        server: the server's optimiser.
        uniform: whether each client with examples has the weight 1; else its number of examples.
    """

    model: Model
    training: LocalTraining
    server: Partial
    uniform: jax.Array


class FedAvgState(NamedTuple):
    """The server's state.

    Attributes:
        trained: x, the trained parameters.
        statistics: running statistics of batch norms.
        optimiser: the state of the server's optimiser.
        round: the number of finished rounds.
    """

    trained: Any
    statistics: Any
    optimiser: Any
    round: jax.Array


class FedAvgUpload(NamedTuple):
    """A client's upload; all of its arrays are summed over clients.

    Attributes:
        change: w_i (x − y_i), the weighted difference of the server's model x and the client's y_i.
        statistics: w_i times the client's running statistics.
        weight: w_i, which is n_i or 1; 0 for a client without examples.
    """

    change: Any
    statistics: Any
    weight: jax.Array


def init(numbers: FedAvgNumbers, num_clients: int, key: PRNGKey) -> tuple[FedAvgState, tuple[()]]:
    """Return the server's first state, made from the model, and the clients' memory, which is empty."""
    model = numbers.model
    optimiser = made(numbers.server).init(model.trained)
    return FedAvgState(model.trained, model.statistics, optimiser, jnp.zeros((), jnp.int32)), ()


def broadcast(numbers: FedAvgNumbers, state: FedAvgState) -> Any:
    """Return what the server sends: the trained parameters, the running statistics and the round."""
    return state.trained, state.statistics, state.round


def client(
    numbers: FedAvgNumbers, sent: Any, data: ClientData, memory: tuple[()], key: PRNGKey
) -> tuple[FedAvgUpload, tuple[()], dict[str, Any]]:
    """Train the server's model on a client's examples; return the upload, the empty memory, the metrics."""
    own, _, update = train(numbers, sent, data, key)
    return update, (), own.metrics


def train(
    numbers: FedAvgNumbers, sent: Any, data: ClientData, key: PRNGKey, **extra: Any
) -> tuple[Local, Any, FedAvgUpload]:
    """Train the server's model x on a client's examples, which gives the client's model y_i.

    Returns:
        The result of the training, which has y_i; the change x − y_i; and the upload of `fedavg`. For
        ``extra`` see `LocalTraining`.
    """
    trained, statistics, number = sent
    training, model = numbers.training, numbers.model
    own = training(model, trained, statistics, data, key, round=number, anchor=trained, **extra)
    change = jax.tree.map(jnp.subtract, trained, own.trained)
    count = data.num_examples.astype(jnp.float32)
    weight = jnp.where(numbers.uniform, (count > 0).astype(jnp.float32), count)
    weighed, statistics = scaled(weight, (change, own.statistics))
    return own, change, FedAvgUpload(weighed, statistics, weight)


def scaled(weight: jax.Array, tree: Any) -> Any:
    """Return a pytree times a client's weight, in float32 at least, as sums in bfloat16 may be 40 % off."""

    def term(x: jax.Array) -> jax.Array:
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        return weight.astype(dtype) * x.astype(dtype)

    return jax.tree.map(term, tree)


def mean(sums: Any, weight: jax.Array) -> Any:
    """Divide sums Σ w_i a_i by ``weight`` = Σ w_i; return 0 if no upload arrived."""
    return jax.tree.map(lambda x: x / jnp.where(weight > 0, weight, 1).astype(x.dtype), sums)


def step(
    numbers: FedAvgNumbers, state: FedAvgState, direction: Any, statistics: Any, weight: jax.Array
) -> FedAvgState:
    """Return the state after a step of the server's optimiser with ``direction`` as the gradient.

    ``statistics`` replace the running statistics. If no upload arrived (``weight``, the sum of the clients'
    weights, is 0), only the round number changes.
    """
    direction, statistics = (
        jax.tree.map(lambda new, old: new.astype(old.dtype), *pair)
        for pair in ((direction, state.trained), (statistics, state.statistics))
    )
    updates, optimiser = made(numbers.server).update(direction, state.optimiser, state.trained)
    new = FedAvgState(optax.apply_updates(state.trained, updates), statistics, optimiser, state.round)
    kept = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), new, state)
    return kept._replace(round=state.round + 1)


def server(numbers: FedAvgNumbers, state: FedAvgState, total: FedAvgUpload) -> FedAvgState:
    """Return the server's next state: its model takes a step along the mean of the clients' changes."""
    weight = total.weight
    return step(numbers, state, mean(total.change, weight), mean(total.statistics, weight), weight)


def result(numbers: FedAvgNumbers, state: FedAvgState, memory: Any) -> Any:
    """Return the result of a run: `Model.result` of the final parameters and running statistics."""
    return numbers.model.result(state.trained, state.statistics)


def federated(
    model: Model,
    training: LocalTraining,
    server_optimiser: Any,
    weighting: Weighting,
    name: str,
    **others: Callable[..., Any],
) -> Algorithm:
    """Make an algorithm like FedAvg; ``others`` replace FedAvg's functions, such as ``server``, by name."""
    model = without_padding(check_model(model))
    check_choice("weighting", weighting, ("examples", "uniform"))
    numbers = FedAvgNumbers(
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
    """FedAvg: clients train on their own examples, and the server averages their models.

    x ← x − server(Σ w_i (x − y_i) / Σ w_i), with x the server's model, y_i client i's model after training,
    and w_i client i's weight. The server's optimiser takes the mean change as a gradient. With server = 1.0
    the new model is the mean of the clients' models. One round of many epochs is one-shot FedAvg.

    Args:
        model: from `linear_model` or `network_model`, or your own.
        client: the clients' optimiser: a learning rate for gradient descent, an optax transformation, or
            ``jax.tree_util.Partial(optax.adam, 1e-3)``, whose numbers may change without recompiling. In each
            round, the optimiser is initialised again.
        server: the server's optimiser, in the same forms. FedAvgM is ``optax.sgd(1.0, momentum=0.9)``.
        epochs: passes of a client over its examples in a round; 1 if neither this nor ``steps`` is given.
        steps: steps of a client in a round, instead of ``epochs``.
        batch_size: the number of examples in a step.
        weighting: w_i = n_i, the client's number of examples (``"examples"``), or 1 (``"uniform"``).
        schedule: function from the round (from 0) to a factor by which each update of a client's optimiser is
            multiplied, such as an optax schedule.
        name: the algorithm's name.

    Returns:
        An algorithm for `covfree.rounds.run`; its clients' metrics are ``loss`` and ``steps``.

    Raises:
        TypeError: if ``client`` or ``server`` is not an optimiser.
        ValueError: if a number is out of its range.

    Source: McMahan et al. (2017), Algorithm 1; with a server's optimiser Reddi et al. (2021), Algorithm 1.
    """
    training = LocalTraining.of(client, epochs=epochs, steps=steps, batch_size=batch_size, schedule=schedule)
    return federated(model, training, server, weighting, name)


def _proximal(mu: Scalar, client: Any) -> Any:
    return optax.chain(add_proximal(mu), client())


def fedprox(model: Model, client: Any = 0.01, mu: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedProx: each client minimises its loss plus μ/2 ‖y − x‖², with x the server's model.

    The client's optimiser gets the gradient of this sum, so momentum includes the penalty. μ = 0 is FedAvg.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        mu: μ, at least 0.
        options: other arguments of `fedavg`.

    Source: Li et al. (2020), Algorithm 2.
    """
    near = Partial(_proximal, check_strength("mu", mu), as_optimiser("client", client))
    return fedavg(model, near, name="fedprox", **options)


def _torch_adam(weight_decay: Any = 0.0, **numbers: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(**numbers))


# For each algorithm with an adaptive server: the function that makes the server's optimiser, and the names of
# that function's arguments besides ``learning_rate``.
SERVERS: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {
    "fedadam": (bound(adaptive, rule="adam"), frozenset({"b1", "b2", "tau"})),
    "fedadam-torch": (_torch_adam, frozenset({"b1", "b2", "eps", "weight_decay"})),
    "fedadam-flower": (bound(adaptive, rule="adam-flower"), frozenset({"b1", "b2", "tau"})),
    "fedyogi": (bound(adaptive, rule="yogi"), frozenset({"b1", "b2", "tau"})),
    "fedadagrad": (bound(adaptive, rule="adagrad"), frozenset({"b1", "tau"})),
}


def _adaptive(name: str, model: Model, client: Any, server_lr: Scalar, options: dict[str, Any]) -> Algorithm:
    make, accepted = SERVERS[name]
    numbers = {each: options.pop(each) for each in sorted(accepted & options.keys())}
    for each, number in {"server_lr": server_lr, **numbers}.items():
        check_strength(each, number)
    return fedavg(model, client, Partial(make, learning_rate=server_lr, **numbers), name=name, **options)


def fedadam(
    model: Model,
    client: Any = 0.01,
    server_lr: Scalar = 0.01,
    *,
    form: Literal["reddi", "torch", "flower"] = "reddi",
    **options: Any,
) -> Algorithm:
    """FedAdam: `fedavg` whose server takes Adam's steps.

    Three forms of Adam are in use, and need different learning rates. ``"reddi"`` is the paper's
    (`adaptive`): the second moment v starts at τ², and there is no bias correction. If √v is far below
    τ = 1e-3, this Adam is nearly gradient descent with momentum at rate η/τ. ``"torch"`` is PyTorch's Adam,
    which FLSim and hence FedCOF's tables use: with bias correction, β₂ = 0.999, ε = 1e-8, and a weight decay
    that is added to the gradient, 1e-5 in FedCOF's code. ``"flower"`` is the Adam of Flower's strategy: v
    starts at 0, τ is 1e-9 by default, and step t has the bias correction of step t + 1.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        server_lr: η, the server's learning rate.
        form: which form of Adam.
        options: other arguments of `fedavg`; and ``b1``, ``b2`` and ``tau`` of `adaptive`, or for ``"torch"``
            ``b1``, ``b2`` and ``eps`` of ``optax.adam`` and ``weight_decay`` (0 by default).

    Source: Reddi et al. (2021), Algorithm 2.
    """
    check_choice("form", form, ("reddi", "torch", "flower"))
    name = "fedadam" if form == "reddi" else f"fedadam-{form}"
    if form == "flower":
        options = {"tau": 1e-9, **options}
    return _adaptive(name, model, client, server_lr, options)


def fedyogi(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedYogi: `fedavg` whose server takes Yogi's steps (`adaptive`); for the arguments see `fedadam`."""
    return _adaptive("fedyogi", model, client, server_lr, options)


def fedadagrad(model: Model, client: Any = 0.01, server_lr: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedAdagrad: `fedavg` whose server takes Adagrad's steps (`adaptive`), with β₁ = 0 by default.

    For the arguments see `fedadam`; there is no ``b2``.
    """
    return _adaptive("fedadagrad", model, client, server_lr, {"b1": 0.0, **options})
