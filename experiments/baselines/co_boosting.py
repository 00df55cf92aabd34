"""Co-Boosting: harder images and a better weighted ensemble, each made with the help of the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from baselines import ensemble
from baselines.distillation import Networks, Settings, State, added, batch_of, divergence, learnt, shuffled
from baselines.generator import synthesise
from jaxtyping import Array, Float, Int

from covfree.core.types import PRNGKey

PUBLISHED = Settings(
    batch_size=128, learning_rate=0.01, temperature=4.0, cosine=True, weight_decay=1e-4, max_norm=10.0
)
# How far a weight moves in a step, and what that is multiplied by from epoch to epoch.
WEIGHT_STEP, DECAY = 0.01, 0.99
# By how much the student's images differ from those of the pool, at each pixel of [0, 1].
PERTURBATION = 8 / 255
# Of the divergence that the generator makes large, and of the probabilities that images are perturbed by.
_GENERATOR_TEMPERATURE, _PERTURBATION_TEMPERATURE = 3.0, 4.0


def generator_loss(
    teacher: Float[Array, "batch classes"],
    student: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
) -> Float[Array, ""]:
    """Mean of (1 − p_y) CE(t, y) − 3² KL(softmax t/3 ‖ softmax s/3).

    p_y is the ensemble's probability of y. Images that the ensemble is sure of count little: 1 − p_y is a
    weight, of which no derivative is taken.

    Args:
        teacher: t, the ensemble's logits.
        student: s, the student's.
        labels: y.

    Source: Dai et al. (2024), "Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting";
    the temperature is that of the authors' code.
    """
    loss = optax.softmax_cross_entropy_with_integer_labels(teacher, labels)
    hardness = 1 - jax.lax.stop_gradient(jnp.exp(-loss))
    return (hardness * loss - divergence(teacher, student, _GENERATOR_TEMPERATURE)).mean()


def perturbed(
    logits: Any, images: Float[Array, "batch height width channels"], direction: Float[Array, "batch classes"]
) -> jax.Array:
    """X + (8/255) sign ∇_x ⟨u, softmax(t(x)/4)⟩: images on which the ensemble answers something else.

    Args:
        logits: the function t, images to [batch, classes].
        images: x.
        direction: u, of each image.
    """

    def along(images: jax.Array) -> jax.Array:
        return (direction * jax.nn.softmax(logits(images) / _PERTURBATION_TEMPERATURE)).sum()

    return images + PERTURBATION * jnp.sign(jax.grad(along)(images))


def _reweighted(
    networks: Networks, settings: Settings, members: Any, state: State, key: PRNGKey
) -> jax.Array:
    """The ensemble's weights after a step for each batch of the pool, in random order."""
    order, batches = shuffled(state, settings.batch_size, key)
    step = WEIGHT_STEP * DECAY**state.epoch

    def one(number: Any, weights: jax.Array) -> jax.Array:
        images, labels = batch_of(state, order, number, settings.batch_size)
        logits, _ = ensemble.outputs(networks.cnn, members, images)
        return ensemble.reweighted(weights, logits, labels, step)

    return jax.lax.fori_loop(0, batches, one, state.weights)


@partial(jax.jit, static_argnums=(0, 1))
def epoch(networks: Networks, settings: Settings, members: Any, state: State, key: PRNGKey) -> State:
    """Make a batch, weight the ensemble by the pool without it, then let the student learn from all.

    The student is shown perturbed images: its loss is T² KL(ensemble ‖ student) of these. The authors' code
    also scales the generator's gradient down to norm 10, which is not done here; the student's is.
    """
    of_labels, of_images, of_weights, of_student = jax.random.split(key, 4)
    labels = jax.random.randint(of_labels, (settings.batch_size,), 0, networks.cnn.num_classes)

    def logits(weights: jax.Array, images: jax.Array) -> jax.Array:
        return ensemble.combine(ensemble.outputs(networks.cnn, members, images)[0], weights)

    def loss(images: jax.Array, key: PRNGKey) -> jax.Array:
        student: Any = networks.cnn.apply(state.student, images)
        return generator_loss(logits(state.weights, images), student, labels)

    images = synthesise(networks.generator, loss, key=of_images, **settings.making)
    weights = _reweighted(networks, settings, members, state, of_weights)
    teacher = partial(logits, weights)

    def teach(images: jax.Array, key: PRNGKey) -> tuple[jax.Array, jax.Array]:
        shape = len(images), networks.cnn.num_classes
        shown = perturbed(teacher, images, jax.random.uniform(key, shape, minval=-1.0))
        return shown, teacher(shown)

    return learnt(
        networks, settings, added(state._replace(weights=weights), images, labels), teach, of_student
    )
