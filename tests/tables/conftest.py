"""Miniatures of what the tables need: a data set of TFDS, folders, networks and their weights."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow_datasets as library
from backbones import seeded
from PIL import Image
from safetensors.numpy import save_file
from tiny_networks import RESNET, VIT, put_in_table

from covfree.backbones import backbone
from covfree.backbones.weights import tensor_shapes
from covfree.studies import console
from experiments.__main__ import app

NAME = "squeezenet1_1"
# Pixels of a side: as few as features of squeezenet can do with.
PIXELS = 40
CLASSES = 4
TRAIN, TEST = 48, 16


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Features in a cache of the tests' own, which they share."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("COVFREE_CACHE", str(folder))
    return folder


@pytest.fixture
def experiments(capfd):
    """Runs ``python -m experiments`` in process."""

    def call(*arguments) -> Result:
        capfd.readouterr()
        code = console.run(app, [str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return call


def picture(label: int, i: int) -> Image.Image:
    """Noise, as bright and as tilted as its class."""
    rng = np.random.default_rng([label, i])
    noise = rng.integers(0, 80, (32, 32, 3))
    noise[:, :, label % 3] += 40 * label + np.arange(32) * (label % 2) * 2
    return Image.fromarray(noise.astype(np.uint8))


def fake_cifar100() -> type:
    """A builder that writes what TFDS's own of CIFAR-100 reads: few images, of four of the classes."""

    class Fake(library.core.GeneratorBasedBuilder, skip_registration=True):
        name = "cifar100"
        VERSION = library.builder_cls("cifar100").VERSION
        code_path = None

        def _info(self):
            kinds = library.features
            columns = dict(
                id=kinds.Text(),
                image=kinds.Image(shape=(32, 32, 3)),
                label=kinds.ClassLabel(num_classes=100),
                coarse_label=kinds.ClassLabel(num_classes=20),
            )
            return library.core.DatasetInfo(builder=self, features=kinds.FeaturesDict(columns))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, TRAIN), "test": self._generate_examples(TRAIN, TEST)}

        def _generate_examples(self, first, count):
            for i in range(first, first + count):
                stream = io.BytesIO()
                picture(i % CLASSES, i).save(stream, "png")
                stream.seek(0)
                label = i % CLASSES
                yield i, dict(id=str(i), image=stream, label=label, coarse_label=label)

    return Fake


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """CIFAR-100 as TFDS keeps it, PACS as a folder of pictures, Landmarks as one with a table of clients."""
    folder = tmp_path_factory.mktemp("data")
    builder = fake_cifar100()(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=library.download.DownloadConfig(try_download_gcs=False))
    for part, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for i in range(15):
            path = folder / "pacs" / domain / f"class{i % 3}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(i % 3, 100 * part + i).save(path)
    lines = ["file,client"]
    for part, count in (("train", TRAIN), ("test", TEST)):
        for i in range(count):
            name = f"{part}/class{i % CLASSES}/{i}.png"
            path = folder / "landmarks-users-160k" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(i % CLASSES, i + (part == "test") * TRAIN).save(path)
            lines += [f"{name},user{i // 8}"] * (part == "train")
    table = folder / "landmarks-users-160k" / "clients.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def random_weights(network, folder: Path) -> Path:
    """Random weights of a network in a file."""
    path = folder / f"{network.name}.safetensors"
    save_file(seeded.tensors(tensor_shapes(network.shapes), network.name), path)
    return path


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    """Random weights of SqueezeNet in a file."""
    return random_weights(backbone(NAME), tmp_path_factory.mktemp("weights"))


@pytest.fixture
def small_networks(tmp_path_factory, monkeypatch) -> list[str]:
    """Options of the command with the weights of small networks, which stand in the table of backbones."""
    put_in_table(monkeypatch)
    folder = tmp_path_factory.mktemp("weights")
    options = []
    for spec in (RESNET, VIT):
        file = random_weights(backbone(spec), folder)
        options += ["--weights", f"{spec.name}={file}"]
    return options
