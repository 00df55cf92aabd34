"""Personal models: each client's own model, prototypes of classes, local training, accuracy by client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from covfree.core.checks import check_positive
from covfree.core.compiling import jit
from covfree.core.padding import blocks_of_groups
from covfree.core.types import AnyArray, PRNGKey, Scalar
from covfree.finetune.local import LocalTraining, check_classes
from covfree.finetune.model import Model, check_model
from covfree.rounds.algorithm import Algorithm, ClientData


class Own(NamedTuple):
    """A client's memory, which it keeps from round to round: its own model.

    Attributes:
        trained: the model's parameters.
        statistics: the model's running statistics.
        round: the number of rounds in which the client took part.
    """

    trained: Any
    statistics: Any
    round: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientModels:
    """The model of each client.

    Attributes:
        model: the model from which all clients started; the clients' models share its functions and frozen
            parameters.
        own: each client's parameters and running statistics, with a leading axis of clients.
    """

    model: Model
    own: Own

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return int(self.own.round.shape[0])

    def of(self, client: int) -> Model:
        """Return one client's model, which can be called or trained further."""
        if not 0 <= client < self.num_clients:
            raise ValueError(f"client: expected a number from 0 to {self.num_clients - 1}, got {client}")
        trained, statistics = jax.tree.map(lambda x: x[client], (self.own.trained, self.own.statistics))
        return replace(self.model, trained=trained, statistics=statistics)

    def result(self, client: int) -> Any:
        """Return the result of one client's training, such as its head; see `Model.result`."""
        model = self.of(client)
        return model.result(model.trained, model.statistics)


class Prototypes(NamedTuple):
    """One prototype for each class, a vector in the space of features.

    Attributes:
        mean: [classes, dim] the prototypes μ, class means of features. For C classes, make them by
            ``Prototypes(*covfree.class_means(features, labels, C))``.
        counts: [classes] the number of examples, or of clients, in each mean; 0 if there is no prototype.
    """

    mean: Float[AnyArray, "classes dim"]
    counts: Float[AnyArray, " classes"] | Int[AnyArray, " classes"]

    def distance(
        self, features: Float[Array, "batch dim"], labels: Int[Array, " batch"]
    ) -> Float[Array, " batch"]:
        """Return ‖f(x) − μ_y‖² for each example's features f(x) and class y; 0 without a prototype μ_y."""
        check_classes(labels)
        if self.mean.shape[1] != features.shape[1]:
            raise ValueError(
                f"prototypes: expected {features.shape[1]} numbers each, as the model's features have, got "
                f"{self.mean.shape[1]}"
            )
        dtype, held = jnp.promote_types(features.dtype, jnp.float32), jnp.asarray(self.counts) > 0
        # The mean of a class without a prototype may be anything, even NaN.
        mean = jnp.where(held[:, None], jnp.asarray(self.mean).astype(dtype), 0)
        square = jnp.square(features.astype(dtype) - mean[labels]).sum(1)
        return jnp.where(held[labels], square, 0)


class PersonalNumbers(NamedTuple):
    """The ``params`` of an algorithm in which each client trains its own model.

    Attributes:
        model: the model from which all clients start.
        training: how clients train it.
        prototypes: the server's first state: `Prototypes`, or ``()`` if nothing is sent.
        strength: the strength of a penalty on features that are far from the prototypes.
    """

    model: Model
    training: LocalTraining
    prototypes: Any
    strength: Any


def personal(
    name: str,
    model: Model,
    training: LocalTraining,
    client: Callable[..., Any],
    server: Callable[..., Any] | None = None,
    prototypes: Any = (),
    strength: Scalar = 0.0,
) -> Algorithm:
    """Make an algorithm in which each client trains its own model; its result is `ClientModels`.

    Prototypes are the server's state, all of which it sends; without ``server`` they never change.
    """
    numbers = PersonalNumbers(check_model(model), training, prototypes, strength)
    functions = _init, _same_state, client, server or _same_state, _own_models
    return Algorithm(numbers, name, *functions, num_classes=model.num_classes)


def _init(numbers: PersonalNumbers, num_clients: int, key: PRNGKey) -> tuple[Any, Own]:
    model = numbers.model
    return numbers.prototypes, Own(model.trained, model.statistics, jnp.zeros((), jnp.int32))


def _same_state(numbers: PersonalNumbers, state: Any, total: Any = None) -> Any:
    return state


def _own_models(numbers: PersonalNumbers, state: Any, memory: Own) -> ClientModels:
    return ClientModels(numbers.model, memory)


def train_own(
    numbers: PersonalNumbers,
    data: ClientData,
    own: Own,
    key: PRNGKey,
    penalty: Callable[[Any, Any], Any] | None = None,
) -> tuple[Own, dict[str, Any]]:
    """Train the model that a client keeps in its memory ``own``; return the new memory and the metrics.

    The optimiser's ``anchor`` is the model from which all clients started. For ``penalty`` see
    `LocalTraining`.
    """
    model = numbers.model
    local = numbers.training(
        model, own.trained, own.statistics, data, key, round=own.round, penalty=penalty, anchor=model.trained
    )
    took_part = (data.num_examples > 0).astype(jnp.int32)
    return Own(local.trained, local.statistics, own.round + took_part), local.metrics


def _client(
    numbers: PersonalNumbers, sent: tuple[()], data: ClientData, own: Own, key: PRNGKey
) -> tuple[tuple[()], Own, dict[str, Any]]:
    return (), *train_own(numbers, data, own, key)


def local_only(model: Model, client: Any = 0.01, **options: Any) -> Algorithm:
    """Local training: each client trains a model of its own, and nothing is sent.

    After a run of `fedavg` on features, ``local_only(linear_model(run.result))`` is FedAvg-FT.

    Args:
        model: the model from which all clients start.
        client: see `fedavg`.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`. The schedule counts the
            rounds in which the client took part. The optimiser is initialised again in each round; to avoid
            that, run one round of many epochs.

    Returns:
        An algorithm whose result is `ClientModels`.
    """
    return personal("local", model, LocalTraining.of(client, **options), _client)


def client_accuracy(
    models: Any,
    features: Any,
    labels: Any,
    clients: Any,
    *,
    own_classes: Bool[np.ndarray, "clients classes"] | None = None,
    batch_size: int = 256,
) -> Float[np.ndarray, " clients"]:
    """Return each client's accuracy on its own examples.

    Args:
        models: `ClientModels`, in which each client has its own model; or one head or `Model` for all
            clients.
        features: [examples, …], or a pytree of such arrays, as in training; e.g. test examples of the
            clients.
        labels: [examples] classes; below 0 is padding.
        clients: [examples] the client of each example; below 0 is padding.
        own_classes: mask of the classes that each client may predict; a client that may predict no class is
            always wrong. None for all classes.
        batch_size: the number of examples that are predicted at once.

    Returns:
        The share of correct predictions of each client, in [0, 1]; NaN for a client without examples.

    Raises:
        ValueError: if labels or clients are no vectors of integers, or a client has no model or no row of
            ``own_classes``.
    """
    check_positive("batch_size", batch_size)
    rows, labels, clients = len(jax.tree.leaves(features)[0]), np.asarray(labels), np.asarray(clients)
    for name, array in (("labels", labels), ("clients", clients)):
        if array.shape != (rows,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"{name}: expected {(rows,)} integers, one for each row of features, got "
                f"shape {array.shape}, {array.dtype}"
            )
    clients = np.where(labels >= 0, clients, -1)
    number = int(clients.max(initial=-1)) + 1
    for name, known in (
        ("models", models.num_clients if isinstance(models, ClientModels) else None),
        ("own_classes", None if own_classes is None else len(own_classes)),
    ):
        if known is not None and number > known:
            raise ValueError(f"clients: expected numbers below {known}, as {name} has them; got {number - 1}")
        number = max(number, known or 0)
    own = isinstance(models, ClientModels)
    places, who = blocks_of_groups(clients if own else np.minimum(clients, 0), batch_size)
    known = None if own_classes is None else jnp.asarray(np.asarray(own_classes, np.float32))
    batches = jnp.asarray(places), jnp.asarray(clients[places]), jnp.asarray(who)
    found = _predicted(models, jax.tree.map(jnp.asarray, features), known, *batches)
    right = np.zeros(len(labels), bool)
    right[places[places >= 0]] = np.asarray(found)[places >= 0] == labels[places[places >= 0]]
    kept = clients >= 0
    total = np.bincount(clients[kept], minlength=number)
    hits = np.bincount(clients[kept], right[kept], minlength=number)
    return np.where(total > 0, hits / np.maximum(total, 1), np.nan)


@jit
def _predicted(
    models: Any, features: Any, known: jax.Array | None, places: jax.Array, clients: jax.Array, who: jax.Array
) -> jax.Array:
    """Return the predicted classes of examples, [blocks, batch].

    ``places`` [blocks, batch] has the examples' indices in ``features``, −1 for padding; ``clients`` [blocks,
    batch] has the examples' clients. If ``models`` is `ClientModels`, block b uses the model of client
    ``who[b]``. ``known`` [clients, classes] is above 0 for classes that a client may predict; None for all.
    """

    def one_batch(batch: tuple[jax.Array, ...]) -> jax.Array:
        places, clients, number = batch
        model = models
        if isinstance(models, ClientModels):
            trained, statistics, _ = jax.tree.map(lambda x: x[number], models.own)
            model = replace(models.model, trained=trained, statistics=statistics)
        scores = model(jax.tree.map(lambda x: x[jnp.maximum(places, 0)], features))
        if known is None:
            return scores.argmax(1)
        mine = known[clients] > 0
        # A client that may predict no class gets −1, which is always wrong.
        return jnp.where(mine.any(1), jnp.where(mine, scores, -jnp.inf).argmax(1), -1)

    return jax.lax.map(one_batch, (places, clients, who))


def client_classes(labels: Any, clients: Any, *, num_classes: int) -> Bool[np.ndarray, "clients classes"]:
    """Return a mask [clients, classes]: whether a client has examples of a class.

    Args:
        labels: [examples] classes of the training examples; below 0 is padding.
        clients: [examples] the client of each example; below 0 is padding.
        num_classes: the number of classes.

    >>> client_classes(np.array([0, 2, 1]), np.array([0, 0, 1]), num_classes=3).astype(int)
    array([[1, 0, 1],
           [0, 1, 0]])
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    kept = (labels >= 0) & (clients >= 0)
    has = np.zeros((int(clients[kept].max(initial=-1)) + 1, num_classes), bool)
    has[clients[kept], labels[kept]] = True
    return has
