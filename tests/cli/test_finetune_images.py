"""``covfree finetune --images``: a network trained on pixels, from a head on its features."""

import json

import jax
import numpy as np
import pytest
from backbones import seeded
from PIL import Image
from safetensors.numpy import save_file
from tiny_networks import RESNET, put_in_table

import covfree
from covfree.backbones import backbone
from covfree.backbones.weights import tensor_shapes
from covfree.data.extract import features_of_pixels
from covfree.studies import task as task_module
from covfree.studies.source import of_images

pytestmark = pytest.mark.slow

NETWORK = backbone(RESNET)
COUNT = 18


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Dark cats and bright dogs; and weights of a small network."""
    put_in_table(monkeypatch)
    # As large as batches of the features are, so that both share a compiled function.
    monkeypatch.setattr(task_module, "_BATCH", COUNT)
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    save_file(seeded.tensors(tensor_shapes(NETWORK.shapes), NETWORK.name), tmp_path / "tiny.safetensors")
    for i in range(COUNT):
        path = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(seeded.picture((40 + i % 3, 44)) // 2 + 127 * (i % 2)).save(path)
    return tmp_path / "photos"


def test_a_network_is_trained_on_pixels(cli, photos, tmp_path):
    weights = tmp_path / "tiny.safetensors"
    outcome = cli(
        *("finetune", "--images", photos, "--backbone", "resnet-tiny", "--weights", weights),
        *("--train", "all", "--augment", "--init", "fedncm", "--algorithm", "fedavg"),
        *("--rounds", 2, "--every", 2),
        *("--clients", 3, "--alpha", 5, "--participation", 2, "--batch-size", 4, "--format", "json"),
        *("--out", tmp_path / "out"),
    )
    assert outcome.code == 0, outcome.err
    # Evaluated where it was asked for.
    said = [line.split(",")[1] for line in outcome.err.splitlines() if line.startswith("fedncm")]
    assert said == [" seed 0: round 0/2", " seed 0: round 2/2"]
    # The parameters of network and head go up and down.
    (run,) = json.loads(outcome.out)["results"][0]["runs"]
    size = sum(leaf.size for leaf in jax.tree.leaves(NETWORK.shapes["params"])) + 64 * 2 + 2
    assert run["bytes_down"] == 2 * 2 * 4 * (size + 1)
    assert run["client_lr"] == 0.001

    # The folders' names are kept with the head, which is trained and finite.
    saved = covfree.load_head(tmp_path / "out" / "fedncm-fedavg-seed0" / "head.npz")
    assert saved.class_names == ("cat", "dog")
    assert (saved.dim, saved.num_classes) == (64, 2)

    # Pixels and features are of the same images, split the same.
    source = of_images(str(photos), "resnet-tiny", str(weights))
    data, (train, test) = source.load(0), source.images.pixels(0)
    assert train.dtype == np.uint8
    pixels = np.concatenate([train, test])
    features = np.concatenate([data.train_features, data.test_features])
    assert (len(train), len(pixels)) == (len(data.train_features), COUNT)
    given = features_of_pixels(NETWORK.load(weights), pixels, NETWORK, RESNET.preprocessing)
    np.testing.assert_allclose(given, features, rtol=1e-3, atol=1e-4)
