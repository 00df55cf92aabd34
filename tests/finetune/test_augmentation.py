"""Crops and flips: what they may change, and that training alone sees them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covfree import finetune, rounds
from covfree.finetune import Model, augmented, crop_and_flip, crop_images, flip_images

KEYS = jax.random.split(jax.random.key(0), 2)


def test_half_of_the_images_are_flipped():
    images = jnp.broadcast_to(jnp.arange(3, dtype=jnp.uint8).reshape(1, 1, 3, 1), (400, 2, 3, 1))
    got = jax.jit(flip_images)(images, KEYS[0])
    first = np.asarray(got[:, 0, 0, 0])
    assert got.dtype == np.uint8
    assert set(first.tolist()) == {0, 2}
    assert 0.4 < (first == 2).mean() < 0.6
    np.testing.assert_array_equal(got[first == 2][0], images[0, :, ::-1])


@pytest.mark.slow
def test_a_crop_is_a_rectangle_of_the_area_and_the_ratio():
    """Of a picture of its own coordinates; a bilinear crop of it is linear too, away from the border."""
    side = 40
    rows, columns = jnp.meshgrid(jnp.arange(side) + 0.5, jnp.arange(side) + 0.5, indexing="ij")
    image = jnp.stack([rows, columns], -1)
    crop = jax.jit(lambda x, key: crop_images(x, key, area=(0.2, 0.6)))
    got = crop(jnp.broadcast_to(image, (200, *image.shape)), KEYS[0])
    inner = np.asarray(got[:, 5:-5, 5:-5])
    height, width = (side * np.diff(inner[..., axis], axis=1 + axis).mean((1, 2)) for axis in (0, 1))
    share = height * width / side**2
    # Coordinates are cut where a window reaches over the border; so the last are a little less.
    assert share.min() > 0.18
    assert share.max() < 0.61
    assert 0.35 < share.mean() < 0.45
    ratio = width / height
    assert ratio.min() > 0.73
    assert ratio.max() < 1.37
    assert inner.min() > 0
    assert inner.max() < side
    centres = inner.mean((1, 2))
    assert (centres.std(0) > 2).all()
    whole = crop_images(image[None], KEYS[1], area=(1.0, 1.0), ratio=(1.0, 1.0))
    np.testing.assert_allclose(whole[0], image, atol=1e-4)
    levels = crop_images(jnp.full((2, 8, 8, 3), 255, jnp.uint8), KEYS[1])
    assert levels.dtype == np.uint8
    assert (np.asarray(levels) == 255).all()


@pytest.mark.slow
def test_draws_depend_on_the_key_alone():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 3)), jnp.float32)
    np.testing.assert_array_equal(crop_and_flip(images, KEYS[0]), crop_and_flip(images, KEYS[0]))
    assert not np.array_equal(crop_and_flip(images, KEYS[0]), crop_and_flip(images, KEYS[1]))


def test_training_alone_sees_them():
    def features(trained, frozen, statistics, inputs, train, key):
        return inputs.reshape(len(inputs), -1) @ trained["w"], statistics

    def scores(trained, frozen, features):
        return features

    model = Model({"w": jnp.zeros((16, 2))}, (), (), features, scores, lambda trained, *_: trained)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(8, 4, 4, 1)).astype(np.float32)

    def trained(model):
        algorithm = finetune.fedavg(model, 0.1, batch_size=8)
        given = images, np.arange(8) % 2, np.zeros(8, int)
        return rounds.run(algorithm, *given, key=jax.random.key(0), rounds=1).result["w"]

    other = augmented(model, flip_images)
    np.testing.assert_array_equal(other(images), model(images))
    plain, flipped = trained(model), trained(other)
    assert not np.allclose(plain, flipped)
    # A function that changes nothing changes nothing.
    np.testing.assert_array_equal(trained(augmented(model, lambda inputs, key: inputs)), plain)
    with pytest.raises(TypeError, match="augment"):
        augmented(model, "crop")
    with pytest.raises(TypeError, match="model"):
        augmented(images)
