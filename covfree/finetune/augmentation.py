"""Augmentation of images in local training: pure functions of the images and a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from covfree.core.keys import derive
from covfree.core.types import AnyArray, PRNGKey
from covfree.finetune.model import Model, check_model
from covfree.methods.rounds import bound

Images = Shaped[AnyArray, "batch height width channels"]


def flip_images(images: Images, key: PRNGKey) -> Shaped[Array, "batch height width channels"]:
    """Mirror each image, left to right, with probability 1/2.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.arange(8.0).reshape(4, 1, 2, 1)
    >>> flip_images(images, jax.random.key(0))[:, 0, 0, 0].tolist()
    [0.0, 2.0, 5.0, 7.0]
    """
    images = jnp.asarray(images)
    flipped = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(flipped, images[:, :, ::-1], images)


def crop_images(
    images: Images,
    key: PRNGKey,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Shaped[Array, "batch height width channels"]:
    """Cut a random rectangle out of each image and resize it to the image's size.

    The rectangle's area is uniform in ``area``, its ratio of width to height log-uniform in ``ratio``; sides
    longer than the image's are cut off. Resizing is bilinear, with antialiasing. With the defaults this is
    the crop used for training on ImageNet, torchvision's ``RandomResizedCrop``, except that torchvision draws
    again if a rectangle does not fit.

    Args:
        images: floats; or integers, to which the result is rounded.
        key: PRNG key; each image has its own random draws.
        area: smallest and largest share of the image.
        ratio: smallest and largest width over height.

    Source: Szegedy et al. (2015), Going deeper with convolutions, section 6.
    """
    images = jnp.asarray(images)
    size = jnp.array(images.shape[1:3], jnp.float32)
    of_area, of_ratio, of_place = (derive(key, name) for name in ("area", "ratio", "place"))
    number = images.shape[:1]
    share = jax.random.uniform(of_area, number, minval=area[0], maxval=area[1]) * size.prod()
    low, high = jnp.log(jnp.array(ratio, jnp.float32))
    shape = jnp.exp(jax.random.uniform(of_ratio, number, minval=low, maxval=high))
    sides = jnp.minimum(jnp.sqrt(share[:, None] * jnp.stack([1 / shape, shape], 1)), size[None, :])
    first = jax.random.uniform(of_place, (*number, 2)) * (size[None, :] - sides)
    scale = size[None, :] / sides

    def resized(image: jax.Array, scale: jax.Array, first: jax.Array) -> jax.Array:
        return jax.image.scale_and_translate(
            image.astype(jnp.promote_types(image.dtype, jnp.float32)),
            image.shape,
            (0, 1),
            scale,
            -first * scale,
            "linear",
        )

    found = jax.vmap(resized)(images, scale, first)
    if jnp.issubdtype(images.dtype, jnp.integer):
        limits = jnp.iinfo(images.dtype)
        found = jnp.clip(jnp.round(found), limits.min, limits.max)
    return found.astype(images.dtype)


def crop_and_flip(images: Images, key: PRNGKey) -> Shaped[Array, "batch height width channels"]:
    """Crop and flip at random: `crop_images`, then `flip_images`."""
    return flip_images(crop_images(images, derive(key, "crop")), derive(key, "flip"))


def augmented(model: Model, augment: Callable[[Any, PRNGKey], Any] = crop_and_flip) -> Model:
    """Return the model with its inputs augmented at random in every step of training.

    Evaluation and the result of a run use the inputs as they are.

    Args:
        model: a model of images, such as from `network_model`.
        augment: ``(inputs, key) -> inputs``, for a batch of the model's inputs.

    Raises:
        TypeError: if ``model`` is not a `Model`, or ``augment`` is not a function.
    """
    if not callable(augment):
        raise TypeError(f"augment: expected a function of inputs and a key, got {augment!r}")
    return replace(check_model(model), features=bound(_augmented, features=model.features, augment=augment))


def _augmented(*given: Any, features: Callable[..., Any], augment: Callable[..., Any]) -> tuple[Any, Any]:
    *parameters, inputs, train, key = given
    if train:
        inputs = augment(inputs, derive(key, "augment"))
    return features(*parameters, inputs, train, key)
