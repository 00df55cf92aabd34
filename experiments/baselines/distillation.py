"""What DENSE and Co-Boosting share: a growing pool of made images, from which a student learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from baselines.cnn import Network, new_variables
from baselines.generator import Generator
from jaxtyping import Array, Float

from covfree.core.types import PRNGKey, Scalar


@dataclass(frozen=True)
class Settings:
    """Of a distillation; both papers' code has 200 epochs and 30 steps.

    Attributes:
        batch_size: images that an epoch makes, and of a step of the student.
        learning_rate: of the student.
        temperature: T of the student's loss.
        epochs: how many batches are made; after each the student goes through all that there are.
        steps: of the generator for each batch.
        latent: length of the generator's latent vectors.
        cosine: whether the student's learning rate falls to 0 over the epochs, as half a cosine.
        weight_decay: of the student.
        max_norm: of the student's gradient, which is scaled down to it.
    """

    batch_size: int
    learning_rate: float
    temperature: float
    epochs: int = 200
    steps: int = 30
    latent: int = 256
    cosine: bool = False
    weight_decay: float = 0.0
    max_norm: float = math.inf

    @property
    def making(self) -> dict[str, int]:
        """Arguments of `baselines.generator.synthesise`."""
        return {"batch_size": self.batch_size, "latent": self.latent, "steps": self.steps}

    def optimiser(self, epoch: Any) -> optax.GradientTransformation:
        """Of the student: gradient descent with momentum 0.9 at an epoch's rate."""
        share = (1 + jnp.cos(jnp.pi * epoch / self.epochs)) / 2 if self.cosine else 1.0
        return optax.chain(
            optax.clip_by_global_norm(self.max_norm),
            optax.add_decayed_weights(self.weight_decay),
            optax.sgd(self.learning_rate * share, momentum=0.9),
        )


@dataclass(frozen=True)
class Networks:
    """What is static: the clients' and the student's network, and the generator."""

    cnn: Network
    generator: Generator


class State(NamedTuple):
    """What an epoch goes on from.

    Attributes:
        student: its variables.
        optimiser: state of its optimiser.
        weights: of the ensemble's members.
        images: [epochs · batch, height, width, channels] the pool; zeros where nothing is yet.
        labels: [epochs · batch] what each image was made to be.
        epoch: how many batches the pool has.
    """

    student: Any
    optimiser: Any
    weights: jax.Array
    images: jax.Array
    labels: jax.Array
    epoch: jax.Array


# (networks, settings, members, state, key) -> state, compiled with the first two static.
Epoch = Callable[[Networks, Settings, Any, State, PRNGKey], State]


def divergence(
    teacher: Float[Array, "batch classes"], student: Float[Array, "batch classes"], temperature: Scalar
) -> Float[Array, " batch"]:
    """T² KL(softmax(t/T) ‖ softmax(s/T)) of each example."""
    t, s = jax.nn.log_softmax(teacher / temperature), jax.nn.log_softmax(student / temperature)
    return temperature**2 * (jnp.exp(t) * (t - s)).sum(1)


def start(
    networks: Networks, settings: Settings, num_members: int, key: PRNGKey, student: Any = None
) -> State:
    """A student that knows nothing unless it is given, an empty pool, equal weights."""
    generator = networks.generator
    shape = generator.size, generator.size, generator.channels
    student = new_variables(networks.cnn, shape, key) if student is None else student
    places = settings.epochs * settings.batch_size
    return State(
        student,
        settings.optimiser(0).init(student["params"]),
        jnp.full(num_members, 1 / num_members),
        jnp.zeros((places, *shape)),
        jnp.zeros(places, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def batch_of(state: State, order: jax.Array, number: Any, size: int) -> tuple[jax.Array, jax.Array]:
    """The images and labels of a batch of the pool, in an order of its places."""
    places = jax.lax.dynamic_slice_in_dim(order, number * size, size)
    return state.images[places], state.labels[places]


def shuffled(state: State, size: int, key: PRNGKey) -> tuple[jax.Array, jax.Array]:
    """The places of the pool's images in random order, then the empty ones; and how many batches they are."""
    places = jnp.arange(len(state.labels))
    chance = jnp.where(places < state.epoch * size, jax.random.uniform(key, places.shape), 2)
    return jnp.argsort(chance), state.epoch


def added(state: State, images: jax.Array, labels: jax.Array) -> State:
    """The pool with one more batch."""
    place = state.epoch * len(labels)
    return state._replace(
        images=jax.lax.dynamic_update_slice_in_dim(state.images, images, place, 0),
        labels=jax.lax.dynamic_update_slice_in_dim(state.labels, labels, place, 0),
        epoch=state.epoch + 1,
    )


def learnt(
    networks: Networks,
    settings: Settings,
    state: State,
    teach: Callable[[jax.Array, PRNGKey], tuple[jax.Array, jax.Array]],
    key: PRNGKey,
) -> State:
    """Take the student through the pool once, in random order.

    Args:
        networks: the student's network.
        settings: batch size and temperature.
        state: with the pool.
        teach: ``(images, key) -> (what the student is shown, the ensemble's logits of it)``.
        key: of the order, and of ``teach``.
    """
    of_order, of_lessons = jax.random.split(key)
    order, batches = shuffled(state, settings.batch_size, of_order)
    # The first batch was added in epoch 0.
    descent = settings.optimiser(state.epoch - 1)

    def step(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        student, optimiser = carry
        images, _ = batch_of(state, order, number, settings.batch_size)
        shown, teacher = teach(images, jax.random.fold_in(of_lessons, number))

        def loss(params: Any) -> tuple[jax.Array, Any]:
            variables = {**student, "params": params}
            logits, new = networks.cnn.apply(variables, shown, True, mutable=["batch_stats"])
            statistics = new.get("batch_stats", student["batch_stats"])
            return divergence(teacher, logits, settings.temperature).mean(), statistics

        slope, statistics = jax.grad(loss, has_aux=True)(student["params"])
        updates, optimiser = descent.update(slope, optimiser, student["params"])
        params = optax.apply_updates(student["params"], updates)
        return {"params": params, "batch_stats": statistics}, optimiser

    student, optimiser = jax.lax.fori_loop(0, batches, step, (state.student, state.optimiser))
    return state._replace(student=student, optimiser=optimiser)


def distil(
    epoch: Epoch,
    networks: Networks,
    settings: Settings,
    members: Any,
    *,
    key: PRNGKey,
    student: Any = None,
    report: Callable[[State], None] = lambda state: None,
) -> State:
    """Distil an ensemble into one network, without data.

    Args:
        epoch: `baselines.dense.epoch` or `baselines.co_boosting.epoch`.
        networks: the clients' network, which the student has too, and the generator.
        settings: of the distillation.
        members: variables of the clients' networks, with an axis of clients in front.
        key: of all draws.
        student: variables that it starts from; None draws them.
        report: is given the state after each epoch.

    Returns:
        The last state; its ``student`` are the variables of the result.

    Raises:
        FloatingPointError: if images could not be made, as the generator's loss was never finite.
    """
    of_start, of_epochs = jax.random.split(key)
    count = jax.tree.leaves(members)[0].shape[0]
    state = start(networks, settings, count, of_start, student)
    for number in range(settings.epochs):
        state = epoch(networks, settings, members, state, jax.random.fold_in(of_epochs, number))
        size = settings.batch_size
        if not jnp.isfinite(jax.lax.dynamic_slice_in_dim(state.images, number * size, size)).all():
            raise FloatingPointError(f"epoch {number}: no step of the generator had a finite loss")
        report(state)
    return state
