"""DENSE: a generator makes what the ensemble knows and the student does not; the student learns from it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from baselines import ensemble
from baselines.distillation import Networks, Settings, State, added, divergence, learnt
from baselines.generator import synthesise
from jaxtyping import Array, Float, Int

from covfree.core.types import PRNGKey, Scalar

PUBLISHED = Settings(batch_size=256, learning_rate=0.005, temperature=20.0)
# Images are moved by at most this part of their height before the ensemble sees them: by 4 of 28 pixels.
_SHIFT = 7


def generator_loss(
    teacher: Float[Array, "batch classes"],
    student: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    distance: Scalar,
) -> Float[Array, ""]:
    """CE(t, y) + distance − mean of 1(argmax s ≠ argmax t) KL(softmax t ‖ softmax s).

    The three terms, all of weight 1: the ensemble sees the class that an image was made to be; batch norms
    meet the statistics that they met in training; the student does not know the image yet.

    Args: teacher: t, the ensemble's logits. student: s, the student's. labels: y. distance: of the images'
        statistics from those of the batch norms. It is the mean over the clients, as in the
            paper; the authors' code has the sum, and that of Co-Boosting's authors leaves the term out.

    Source: Zhang et al. (2022), "DENSE: Data-Free One-Shot Federated Learning", equations 3 to 6.
    """
    likely = optax.softmax_cross_entropy_with_integer_labels(teacher, labels).mean()
    differ = teacher.argmax(1) != student.argmax(1)
    return likely + distance - (differ * divergence(teacher, student, 1.0)).mean()


def flipped(images: Float[Array, "batch height width channels"], key: PRNGKey) -> jax.Array:
    """Each image from left to right with probability ½."""
    turn = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(turn, images[:, :, ::-1], images)


def shifted(images: Float[Array, "batch height width channels"], key: PRNGKey) -> jax.Array:
    """Each image moved by up to a seventh of its height along both sides; zeros come in."""
    most = images.shape[1] // _SHIFT
    places = jax.random.randint(key, (len(images), 2), 0, 2 * most + 1)
    padded = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))

    def crop(image: jax.Array, place: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(
            image, (place[0], place[1], jnp.zeros((), place.dtype)), images.shape[1:]
        )

    return jax.vmap(crop)(padded, places)


@partial(jax.jit, static_argnums=(0, 1))
def epoch(networks: Networks, settings: Settings, members: Any, state: State, key: PRNGKey) -> State:
    """Make a batch, then let the student learn from all: T² KL(ensemble ‖ student), images flipped at random.

    The generator's images are moved and flipped before the networks see them; the pool has them as they were
    made. The ensemble's weights are all the same, and stay.
    """
    of_labels, of_images, of_student = jax.random.split(key, 3)
    labels = jax.random.randint(of_labels, (settings.batch_size,), 0, networks.cnn.num_classes)

    def loss(images: jax.Array, key: PRNGKey) -> jax.Array:
        moving, turning = jax.random.split(key)
        seen = flipped(shifted(images, moving), turning)
        logits, distance = ensemble.outputs(networks.cnn, members, seen)
        student: Any = networks.cnn.apply(state.student, seen)
        teacher = ensemble.combine(logits, state.weights)
        return generator_loss(teacher, student, labels, distance.mean())

    images = synthesise(networks.generator, loss, key=of_images, **settings.making)

    def teach(images: jax.Array, key: PRNGKey) -> tuple[jax.Array, jax.Array]:
        shown = flipped(images, key)
        return shown, ensemble.combine(ensemble.outputs(networks.cnn, members, shown)[0], state.weights)

    return learnt(networks, settings, added(state, images, labels), teach, of_student)
