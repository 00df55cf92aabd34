"""Data sets of TensorFlow Datasets, built, prepared and read by its own library, without TensorFlow."""

import io
import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as library
from PIL import Image

from covfree.data.from_tfds import tfds
from covfree.data.images import load_images

NAMES = ("cat", "dog", "newt")
PARTS = {"train": 9, "test": 4}
FEATURES = library.features


def pixels(part: str, i: int) -> np.ndarray:
    rng = np.random.default_rng([len(part), i])
    return rng.integers(0, 256, (5 + i, 7, 3)).astype(np.uint8)


def png(array: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "png")
    stream.seek(0)
    return stream


def label(part: str, i: int) -> int:
    # Of the last test image nobody knows the class.
    return -1 if (part, i) == ("test", 3) else i % 3


class Animals(library.core.GeneratorBasedBuilder):
    """Thirteen images of noise, of three clients; some features cannot be what a user may take them for."""

    VERSION = library.core.Version("1.0.0")
    # Else TFDS looks for a list of checksums beside this file, with a package that it does not require.
    code_path = None

    def _info(self):
        columns = dict(
            image=FEATURES.Image(shape=(None, None, 3)),
            label=FEATURES.ClassLabel(names=list(NAMES)),
            client=FEATURES.Text(),
            number=np.int64,
            score=np.float32,
            depth=FEATURES.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
            # Never asked for, never decoded: it is no image.
            mask=FEATURES.Image(shape=(None, None, 1)),
        )
        return library.core.DatasetInfo(builder=self, features=FEATURES.FeaturesDict(columns))

    def _split_generators(self, dl_manager):
        return {part: self._generate_examples(part) for part in PARTS}

    def _generate_examples(self, part):
        for i in range(PARTS[part]):
            broken = io.BytesIO(b"no image")
            image = broken if (part, i) == ("train", 8) else png(pixels(part, i))
            about = dict(label=label(part, i), client=f"ü{i % 3}", number=i, score=i / 10)
            yield i, dict(image=image, depth=io.BytesIO(b"none"), mask=io.BytesIO(b"none"), **about)


class Offline(Animals):
    """A data set that is not there."""

    def _split_generators(self, dl_manager):
        raise ConnectionError("no route to host\nand much more")


def prepare(data_dir: Path) -> Path:
    """Writes the data set, and gives the folder of its files."""
    builder = Animals(data_dir=data_dir, file_format="array_record")
    config = library.download.DownloadConfig(try_download_gcs=False)
    builder.download_and_prepare(download_config=config)
    return Path(builder.data_path)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder)
    return folder


@pytest.fixture
def copy(data_dir, tmp_path):
    """A copy of the data, to be damaged: where it is, and the folder of its files."""
    shutil.copytree(data_dir, tmp_path / "copy")
    return tmp_path / "copy", tmp_path / "copy" / "animals" / "1.0.0"


def numbers(data_dir: Path, split: str) -> list[int]:
    """The order in which TFDS gives the examples of a split."""
    encoded = {name: library.decode.SkipDecoding() for name in ("image", "depth", "mask")}
    source = library.data_source("animals", split=split, data_dir=data_dir, decoders=encoded)
    return [int(example["number"]) for example in source]


def test_a_data_set(data_dir):
    images = tfds("animals", client_column="client", data_dir=data_dir)
    train, test = numbers(data_dir, "train"), numbers(data_dir, "test")
    kept = [i for i in test if i != 3]
    assert images.name == "animals"
    assert images.class_names == NAMES
    test_ids = [f"test/{place}" for place, i in enumerate(test) if i != 3]
    assert images.ids == (*(f"train/{place}" for place in range(9)), *test_ids)
    assert images.ignored == (f"test/{test.index(3)}",)
    assert images.labels.tolist() == [i % 3 for i in [*train, *kept]]
    assert images.labels.dtype == np.int32
    assert images.clients.tolist() == [f"ü{i % 3}" for i in [*train, *kept]]
    assert images.is_test.tolist() == [False] * 9 + [True] * 3
    for at, (part, i) in enumerate([*(("train", i) for i in train), *(("test", i) for i in kept)]):
        if (part, i) != ("train", 8):
            np.testing.assert_array_equal(np.asarray(images.read(at)), pixels(part, i))
    with pytest.raises(ValueError, match=rf"^train/{train.index(8)}: is no image that Pillow can read$"):
        images.read(train.index(8))
    assert "tensorflow" not in sys.modules


def test_parts_of_splits(data_dir):
    """An example keeps its name, whichever part of its split is asked for."""
    images = tfds("animals:1.0.0", train="train[:4]+train[6:]", test="train[4:6]", data_dir=data_dir)
    assert images.ids == tuple(f"train/{i}" for i in (0, 1, 2, 3, 6, 7, 8, 4, 5))
    train = numbers(data_dir, "train")
    for i, name in enumerate(images.ids):
        number = train[int(name.partition("/")[2])]
        assert images.labels[i] == number % 3
        if number != 8:
            np.testing.assert_array_equal(np.asarray(images.read(i)), pixels("train", number))
    assert images.is_test.tolist() == [False] * 7 + [True] * 2
    everything = tfds("animals", test=None, client_column="number", data_dir=data_dir)
    assert everything.is_test is None
    assert everything.clients.tolist() == train
    percent = tfds("animals", train="train[:50%]", test="train[50%:]", data_dir=data_dir)
    assert percent.ids == everything.ids


def test_threads(data_dir):
    """Images come whole, whoever asks for which at the same time."""
    images = tfds("animals", data_dir=data_dir)
    train, test = numbers(data_dir, "train"), [i for i in numbers(data_dir, "test") if i != 3]
    expected = [*(pixels("train", i) for i in train), *(pixels("test", i) for i in test)]
    order = np.random.default_rng(0).integers(0, len(images), 200).tolist()
    order = [i for i in order if i != train.index(8)]
    with ThreadPoolExecutor(8) as pool:
        for i, image in zip(order, pool.map(images.read, order), strict=True):
            np.testing.assert_array_equal(np.asarray(image), expected[i])


def test_by_name(data_dir, monkeypatch):
    builder = library.builder
    monkeypatch.setattr(library, "builder", lambda name, data_dir: builder(name, data_dir=folder))
    folder = data_dir
    images = load_images("tfds:animals")
    assert len(images) == 12
    assert images.is_test.sum() == 3


def test_without_the_code_that_made_it(data_dir, monkeypatch):
    """What is prepared can be read where nobody knows how it was made."""
    monkeypatch.setattr(library.core.registered, "_DATASET_REGISTRY", {})
    images = tfds("animals", data_dir=data_dir)
    assert images.ids == tfds("animals", data_dir=data_dir).ids
    assert len(images) == 12


def test_fingerprint(copy):
    where, files = copy
    before = tfds("animals", data_dir=where).fingerprint
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert tfds("animals", client_column="client", data_dir=where).fingerprint == before
    prints = {before, tfds("animals", train="train[:5]", data_dir=where).fingerprint}
    prints.add(tfds("animals", test=None, data_dir=where).fingerprint)
    prints.add(tfds("animals", image_column="mask", data_dir=where).fingerprint)
    os.utime(next(files.glob("*train.array_record*")), ns=(0, 1))
    prints.add(tfds("animals", data_dir=where).fingerprint)
    assert len(prints) == 5


def test_other_formats_are_named(copy):
    where, files = copy
    info = files / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    with pytest.raises(
        ValueError, match=r"tfds:animals: was prepared as tfrecord; prepare it again, in another data_dir"
    ):
        tfds("animals", data_dir=where)


# Errors

WRONG = {
    "a split": (
        dict(train="training"),
        r"animals: expected a split such as \['test', 'train'\], got 'training'",
    ),
    "a test": (dict(test="validation"), r"expected a split such as .* got 'validation'"),
    "a range": (dict(train="train[:x]"), r"expected a split such as .* got 'train\[:x\]'"),
    "splits that overlap": (dict(test="train[:1]"), "splits without common examples, got 'train' and 'train"),
    "a split twice": (dict(train="test", test="test"), "splits without common examples"),
    "no example": (dict(train="train[:0]"), r"split 'train\[:0\]' has no labelled example"),
    "an absent image": (
        dict(image_column="photo"),
        "image_column: animals has no feature 'photo', only .*'image'",
    ),
    "an image that is none": (
        dict(image_column="label"),
        "image_column: expected an Image of uint8, got 'label'",
    ),
    "a deep image": (
        dict(image_column="depth"),
        "image_column: expected an Image of uint8, got 'depth': Image",
    ),
    "an absent label": (dict(label_column="y"), "label_column: animals has no feature 'y'"),
    "a label without names": (
        dict(label_column="number"),
        "label_column: expected a ClassLabel, got 'number'",
    ),
    "a client that is an image": (dict(client_column="image"), "client_column: expected text or an integer"),
    "a client that is a float": (dict(client_column="score"), "client_column: expected text .* got 'score'"),
}


@pytest.mark.parametrize(("options", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(data_dir, options, text):
    with pytest.raises(ValueError, match=text):
        tfds("animals", data_dir=data_dir, **options)


def test_unlabelled_tests_are_named(data_dir):
    last = numbers(data_dir, "test").index(3)
    with pytest.raises(ValueError, match=r"has no labelled example; it has the splits \['test', 'train'\]"):
        tfds("animals", test=f"test[{last}:{last + 1}]", data_dir=data_dir)


def test_a_missing_test_is_none_or_the_validation(copy):
    where, files = copy
    info = json.loads((files / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["name"] = split["name"].replace("test", "validation")
    (files / "dataset_info.json").write_text(json.dumps(info))
    for file in files.glob("animals-test*"):
        file.rename(files / file.name.replace("-test", "-validation"))
    images = tfds("animals", data_dir=where)
    assert images.is_test.sum() == 3
    assert images.ids[-1].startswith("validation/")
    info["splits"] = [split for split in info["splits"] if split["name"] == "train"]
    (files / "dataset_info.json").write_text(json.dumps(info))
    assert tfds("animals", data_dir=where).is_test is None


def test_what_is_not_prepared_is_named(tmp_path):
    with pytest.raises(ValueError, match="offline") as error:
        tfds("offline", data_dir=tmp_path)
    assert str(error.value) == (
        "tfds:offline: is not prepared, and cannot be here (ConnectionError: no route to host). Where there "
        f"is internet, run tensorflow_datasets.builder('offline', data_dir='{tmp_path}')"
        '.download_and_prepare(file_format="array_record"), and copy the folder that it writes'
    )
    with pytest.raises(
        ValueError, match=r"tfds:no_such: .*DatasetNotFoundError: Dataset no_such not found\.\)"
    ):
        tfds("no_such", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"tfds:a b: .*Parsing builder name string a b failed"):
        tfds("a b", data_dir=tmp_path)


def test_damaged_files_are_named(copy):
    where, files = copy
    path = next(files.glob("*train.array_record*"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ValueError, match=r"^train/\d: the example is damaged \(ValueError: it holds no 'label'\)"
    ):
        tfds("animals", data_dir=where)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="animals-train"):
        tfds("animals", data_dir=where)
