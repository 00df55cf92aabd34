"""The experiment on inversion: from a feature that is a linear map of the picture, the feature comes back."""

import importlib
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("inversion")
        for name in ("inversion", "inversion_plot"):
            sys.modules.pop(name, None)


def test_the_feature_of_a_linear_backbone_comes_back(script):
    rng = np.random.default_rng(0)
    image = rng.uniform(0.2, 0.8, (8, 8, 3)).astype(np.float32)
    # One linear feature for each 2 × 2 pixels and colour: far fewer than pixels, and met by many pictures.
    features = lambda images: images.reshape(-1, 4, 2, 4, 2, 3).mean((2, 4)).reshape(len(images), -1)  # noqa: E731
    prior = script.Hourglass(widths=(8, 8), skip=2)
    target = features(jnp.asarray(image)[None])[0]
    found = script.inverter(features, 8, steps=200, rate=0.02, prior=prior)(target, 0)
    assert found.image.shape == (8, 8, 3)
    assert found.error < 0.02
    np.testing.assert_allclose(features(found.image[None])[0], target, atol=0.05)
    # It is not the image: the feature does not tell that much.
    assert script.psnr(found.image, image) < 30


def test_distances_between_pictures(script):
    black, grey = np.zeros((2, 2, 3)), np.full((2, 2, 3), 0.1)
    assert script.psnr(black, grey) == pytest.approx(20)
    assert script.nearest(black, np.stack([grey, np.ones_like(grey)])) == pytest.approx(20)


def test_control_images_are_others_and_too_few_are_an_error(script):
    labels = np.repeat(np.arange(12), [40] * 11 + [4])
    for number in (1, 10, 100):
        for seed in range(5):
            rng = np.random.default_rng(seed)
            own = script.targets(labels, number, rng)
            other = script.others(labels, own, rng)
            assert len(set(other)) == len(own) == number
            assert not set(own) & set(other)
    with pytest.raises(
        ValueError, match="expected 10 categories of at least 10 images for 100 images, got 9"
    ):
        script.targets(labels[80:], 100, rng)
    with pytest.raises(ValueError, match="expected 1 categories of at least 10 images for 10 images, got 0"):
        script.targets(labels[-4:], 10, rng)


def test_a_client_has_ten_of_each_of_ten_categories(script):
    labels = np.repeat(np.arange(30), 20)
    for number, categories in ((1, 1), (10, 1), (100, 10)):
        places = script.targets(labels, number, np.random.default_rng(0))
        assert len(set(places)) == number
        assert len(set(labels[places])) == categories
