"""Every backbone gives what PyTorch's gives, under the names of each reference."""

from pathlib import Path

import jax
import numpy as np
import pytest
from backbones import seeded
from precision import relative_error
from tiny_networks import KIN

from covfree.backbones import BACKBONES, backbone, preprocess
from covfree.backbones.preprocess import crop
from covfree.backbones.weights import tensor_shapes

EXPECTED = Path(__file__).resolve().parent / "expected"
# Of features' distance from their mean over the images, which is smaller than they are: 6e-5 was measured.
TOLERANCE = 1e-3
# Whose names the first expected outputs are for, as an index of the backbone's schemes of names.
FIRST = {"mobilenet_v2": 1, "efficientnet_b0": 1, "vit_b_16": 1, "vit_b_32": 1}


def named_shapes(chosen, scheme):
    rename = chosen._renamings[scheme]
    return {rename(name): shape for name, shape in tensor_shapes(chosen.shapes).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_features_and_size(name):
    with np.load(EXPECTED / f"{name}.npz") as file:
        expected = dict(file)
    chosen, first = backbone(name), FIRST.get(name, 0)
    count = sum(leaf.size for leaf in jax.tree.leaves(chosen.shapes["params"]))
    classifier = 1000 * (chosen.num_features + 1)
    assert count + classifier == chosen.spec.parameters == expected["parameters"]
    if name in KIN:  # all tensors' shapes show the difference
        return

    params = chosen.from_tensors(seeded.tensors(named_shapes(chosen, first), name))
    images = seeded.images(72 if chosen.spec.any_size else chosen.spec.input_size)
    run = jax.jit(chosen.apply)
    features = jax.device_get(run(params, images))
    assert features.dtype == np.float32
    assert features.shape == (seeded.IMAGES, chosen.num_features)
    wanted = expected["features"]
    spread = np.linalg.norm(wanted - wanted.mean(0, keepdims=True))
    assert spread > 0.03 * np.linalg.norm(wanted)
    assert np.linalg.norm(features - wanted) < TOLERANCE * spread

    if "second_features" in expected:
        second = chosen.from_tensors(seeded.tensors(named_shapes(chosen, 1 - first), name))
        features = jax.device_get(run(second, images)[:1])
        assert np.linalg.norm(features - expected["second_features"]) < TOLERANCE * spread


def test_older_names_of_vision_transformers():
    chosen = backbone("vit_b_32")
    newer, older = (named_shapes(chosen, scheme) for scheme in (1, 2))
    assert len(older) == len(newer) == 150
    assert older["encoder.layers.encoder_layer_3.mlp.linear_2.weight"] == (768, 3072)
    assert "encoder.layers.encoder_layer_3.mlp.3.weight" in newer


def test_training_mode():
    with np.load(EXPECTED / "resnet18.npz") as file:
        expected = dict(file)
    chosen = backbone("resnet18")
    tensors = seeded.tensors(named_shapes(backbone("resnet18"), 0), "resnet18")
    params = chosen.from_tensors(tensors)
    features, updated = jax.jit(chosen.apply_and_update)(params, seeded.images(72))
    assert relative_error(features, expected["train_features"]) < 1e-4
    statistics = updated["batch_stats"]["bn1"]
    assert relative_error(statistics["mean"], expected["train_mean"]) < 1e-5
    # PyTorch divides by n − 1 for the running variance, Flax by n: here 2,592 positions, a tenth of the sum.
    assert relative_error(statistics["var"], expected["train_var"]) < 2e-4
    assert jax.tree.all(jax.tree.map(np.array_equal, updated["params"], params["params"]))


@pytest.mark.parametrize("shape", seeded.SHAPES, ids=str)
@pytest.mark.parametrize("name", seeded.CROPS)
def test_preprocessing_is_torchvisions(name, shape):
    spec = BACKBONES[name]
    with np.load(EXPECTED / "crops.npz") as file:
        expected = file[f"{name} {shape[0]} {shape[1]}"].astype(int)
    size = spec.preprocessing.crop
    pixels = crop(seeded.picture(shape), spec.preprocessing)
    assert pixels.shape == (size, size, 3)
    assert np.abs(pixels[:: seeded.STEP, :: seeded.STEP] - expected).max() <= 1
    levels = preprocess(seeded.picture(shape), spec) * spec.preprocessing.std + spec.preprocessing.mean
    np.testing.assert_allclose(levels, pixels, atol=1e-3)


def test_preprocessing_takes_grey_images_and_refuses_others():
    spec = BACKBONES["efficientnet_lite0"]
    grey = np.full((250, 240), 127, np.uint8)
    np.testing.assert_array_equal(preprocess(grey, spec), np.zeros((224, 224, 3), np.float32))
    with pytest.raises(TypeError, match="image: expected uint8 pixels, got float32"):
        preprocess(np.zeros((5, 5, 3), np.float32), spec)
    with pytest.raises(ValueError, match=r"image: expected \[height, width, 3\] or .*, got \[5, 5, 4\]"):
        preprocess(np.zeros((5, 5, 4), np.uint8), spec)
