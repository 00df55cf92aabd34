"""Parity with PyTorch on photographs, with weights that were trained."""

import jax
import numpy as np
import pytest
from PIL import Image
from precision import relative_error
from variants import slow

from covfree.backbones import BACKBONES, backbone
from covfree.backbones.preprocess import crop, normalise

# Photographs whose features are compared.
FEW = 3


@pytest.fixture(scope="module")
def golden(shared):
    path = shared / "data" / "golden_backbones" / "imagenet-crops.npz"
    if not path.is_file():
        pytest.skip(f"test data not found: {path}")
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize("name", ["squeezenet1_1", *slow("efficientnet_lite0")])
def test_features_of_photographs(shared, golden, name):
    chosen = backbone(name)
    path = None
    if chosen.spec.package is None:
        path = shared / "data" / "weights" / f"{name}.safetensors"
        if not path.is_file():
            pytest.skip(f"weights not found: {path}")
    params = chosen.load(path)
    images = normalise(golden["images"][:FEW], chosen.spec.preprocessing)
    features = jax.device_get(jax.jit(chosen.apply)(params, images))
    assert relative_error(features, golden[f"{name}_features"][:FEW]) < 1e-4


def test_crops(shared, golden):
    folder = shared / "data" / "caltech101-20"
    preprocessing = BACKBONES["efficientnet_lite0"].preprocessing
    compared = 0
    for name, expected in zip(golden["files"], golden["images"], strict=True):
        with Image.open(folder / str(name)) as opened:
            sides = [side * 256 / min(opened.size) for side in opened.size]
            # Where sides and margins are rounded, those crops and torchvision's may lie a pixel apart.
            if any(int(side) != round(side) or int(side) % 2 for side in sides):
                continue
            difference = crop(opened, preprocessing).astype(int) - expected
        assert np.abs(difference).max() <= 1, name
        compared += 1
    assert compared == 4
