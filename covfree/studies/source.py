"""Sources of the data of ``covfree compare`` and ``finetune``: a file of features, or images."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from covfree import backbones
from covfree.backbones import Backbone, Extractor, Preprocessing
from covfree.backbones.hub import Weights
from covfree.core.cache import cache_folder
from covfree.core.padding import blocks
from covfree.data import FeatureSet, load, load_npz
from covfree.data.decode import pixels_of
from covfree.data.extract import extractor_key
from covfree.data.image_set import ImageSet
from covfree.data.images import FEDERATIONS, load_images
from covfree.data.partitions import PARTITIONERS
from covfree.data.partitions.partition import held_out
from covfree.engine.diagnosis import OF_SQUARES, ROUNDING
from covfree.studies.extraction import extract, opened
from covfree.studies.federation import Federation, LeftOut
from covfree.studies.names import of_options
from covfree.studies.progress import say
from covfree.studies.table import plural


class Images(NamedTuple):
    """Images, and the network that computes their features.

    Attributes:
        images: the image set.
        network: the backbone, without a classifier.
        weights: the network's weights.
    """

    images: ImageSet
    network: Backbone
    weights: Weights

    def pixels(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the training and test images as uint8 network inputs, split as the features are."""
        is_test = self.images.is_test
        if is_test is None:
            is_test = held_out(self.images.labels, seed)
        every = pixels_of(self.images, self.preprocessing)
        return every[~is_test], every[is_test]

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that the weights expect; the network's default if they name none."""
        return self.weights.preprocessing or self.network.spec.preprocessing


class Source(NamedTuple):
    """A source of a federation's data; a call returns the data for a seed.

    Attributes:
        config: the settings that describe the source, stored with results.
        outline: the data of seed 0. For images it has no features, as these are computed later.
        load: returns the data for a seed.
        images: the images that features are computed from, if any.
    """

    config: dict[str, Any]
    outline: FeatureSet
    load: Callable[[int], FeatureSet]
    images: Images | None = None

    @property
    def files(self) -> str:
        """The paths of the files or the folder that the data is read from; or the name of a data set."""
        paths = (self.config.get(option) for option in ("dataset", "test_file", "images"))
        return " and ".join(path for path in paths if path is not None)

    def __call__(self, seed: int) -> FeatureSet:
        """Load the features and labels for a seed."""
        return self.load(seed)


def _named(dataset: str, test_file: Path | None, *, seed: int) -> FeatureSet:
    """Load the data that ``--dataset`` and ``--test-file`` name; errors name these options."""
    try:
        with of_options("dataset", test="test-file"):
            return load(dataset, test=test_file, seed=seed)
    except FileNotFoundError as error:
        option = "--test-file" if str(error).startswith(f"{test_file}:") else "--dataset"
        raise FileNotFoundError(f"{option}: {error}") from error


def of_file(dataset: str, test_file: Path | None) -> Source:
    """Return a `Source` of the features in a file, ``dataset``, or of the data set ``"digits"``.

    The test examples are those in ``test_file``. If it is None, they are those that ``dataset`` marks, or
    else a third of each class, drawn at random.
    """
    if dataset in FEDERATIONS:
        instead = f"--images {dataset} --backbone efficientnet-lite0"
        raise ValueError(f"--dataset: {dataset} is a federation of images; give {instead}")
    config = {"dataset": dataset, "test_file": None if test_file is None else str(test_file)}
    by_seed = _once(partial(_named, dataset, test_file))
    return Source(config, by_seed(0), by_seed)


def of_images(source: str, backbone: str, weights: str | None) -> Source:
    """Return the `Source` whose data is the features that a backbone computes from images.

    The features are computed when first asked for, and cached in a file.

    Args:
        source: the name or path of an image set, see `covfree.data.load_images`.
        backbone: a name in `BACKBONES`, or an ONNX file, see `opened`.
        weights: the backbone's weights, see `opened`.
    """
    network, found = opened(backbone, weights)
    with of_options(**{source: f"images: {source}"}):
        images = load_images(source)
    if isinstance(network, Extractor):
        config = {"images": source, "backbone": backbone, "weights": network.weights}
        key = {"images": images.fingerprint, **network.key}
        return _computed(images, network, network.name, key, config)
    assert found is not None
    made = of_image_set(images, network, found)
    return made._replace(config={"images": source, **made.config})


def of_image_set(images: ImageSet, name: str, weights: Weights) -> Source:
    """Return a source of an image set; ``name`` is the backbone in `BACKBONES` that computes features."""
    network = backbones.backbone(name)
    key = {"images": images.fingerprint} | extractor_key(network, weights.sha256, weights.preprocessing)
    config = {"backbone": name, "weights": weights.source}
    return _computed(images, name, name, key, config, Images(images, network, weights))


def _computed(
    images: ImageSet,
    network: str | Extractor,
    name: str,
    key: dict[str, Any],
    config: dict[str, Any],
    trainable: Images | None = None,
) -> Source:
    """Return a source of features that a network computes when first asked, and that a file keeps.

    ``key`` has all that determines the features. ``trainable`` are the images and a network that can be
    trained; None if an ONNX file computes the features.
    """
    file = cache_file(f"{images.name}-{name}", key)
    weights = None if trainable is None else trainable.weights
    path = cache(lambda: extract(images, network, file, weights=weights).path)
    read = _once(lambda *, seed: load_npz(path(), seed=seed)._replace(name=images.name))
    return Source(config, _outline(images), read, trainable)


def source_of(
    dataset: str | None,
    test_file: Path | None,
    images: str | None,
    backbone: str | None,
    weights: str | None,
    *,
    to_train: bool = True,
) -> Source:
    """Return the `Source` of a command's data: features from ``--dataset``, or images from ``--images``.

    ``test_file`` goes with ``dataset``; ``backbone`` and ``weights`` go with ``images``. If neither data set
    nor images are given, the data set is "digits". With ``to_train``, raise ValueError unless the training
    examples have at least two classes.
    """
    if images is None:
        for name, value in {"backbone": backbone, "weights": weights}.items():
            if value is not None:
                raise ValueError(f"--{name}: expected --images beside it")
        if test_file is not None and dataset is None:
            raise ValueError("--test-file: expected --dataset beside it, the file of the training part")
        if test_file is not None and dataset == "digits":
            raise ValueError("--test-file: expected none with --dataset digits, which has a test part")
        source = of_file(dataset or "digits", test_file)
    else:
        for name, value in {"dataset": dataset, "test-file": test_file}.items():
            if value is not None:
                raise ValueError(f"--{name}: expected none beside --images")
        if backbone is None:
            raise ValueError("--images: expected --backbone beside it, such as efficientnet-lite0")
        source = of_images(images, backbone, weights)
    if to_train:
        _check_training(source.outline)
    return source


def sources_of(
    dataset: str | None,
    test_file: Path | None,
    images: str | None,
    backbone: str | None,
    weights: str | None,
) -> dict[str, Source]:
    """Return sources (see `source_of`) by name; ``--dataset`` may name several, separated by commas."""
    names = [None] if dataset is None else [dataset] if Path(dataset).is_file() else dataset.split(",")
    if test_file is not None and len(names) > 1:
        raise ValueError("--test-file: expected one --dataset beside it, got several")
    sources: dict[str, Source] = {}
    for name in names:
        source = source_of(name if name is None else name.strip(), test_file, images, backbone, weights)
        if source.outline.name in sources:
            raise ValueError(f"--dataset: expected different data sets, got {source.outline.name} twice")
        sources[source.outline.name] = source
    return sources


def _check_training(data: FeatureSet) -> None:
    """Raise ValueError unless the training examples have at least two classes.

    Warn of test classes without training examples, and of features whose mean is far from zero.
    """
    known = np.unique(data.train_labels)
    if len(known) < 2:
        raise ValueError(
            f"{data.name}: expected examples of two classes or more to train on, got {len(known)}"
        )
    strange = ~np.isin(data.test_labels, known)
    if strange.any():
        first = class_name(data, int(data.test_labels[strange][0]))
        say(
            f"{data.name}: {strange.sum():,} of {len(strange):,} test examples are of classes with no "
            f"training examples, such as {first}; no method can get them right"
        )
    offset = _offset(data.train_features) if data.train_features.size else 0.0
    if (lost := offset * offset * np.finfo(np.float32).eps) > OF_SQUARES:
        others = ", fedncm and ridge heads" if lost > ROUNDING else ""
        say(
            f"{data.name}: the features' mean lies {offset:,.0f} times their spread from zero, where fed3r, "
            f"afl{others} may fail in float32: subtract one vector, such as the mean of public examples, "
            "from the features of all clients"
        )


def _offset(features: np.ndarray) -> float:
    """Return ‖mean‖ / ‖standard deviation‖ of up to 1,000 examples' features; 0 if all are equal."""
    some = features[:: 1 + len(features) // 1000].astype(np.float64)
    with np.errstate(all="ignore"):  # numbers that are not finite are refused when a method gets them
        spread = np.linalg.norm((some - some[0]).std(0))
        return float(np.linalg.norm(some.mean(0)) / spread) if spread > 0 else 0.0


def class_name(data: FeatureSet, label: int) -> str:
    """Return the class's name if the data has names, else its number."""
    return str(label) if data.class_names is None else data.class_names[label]


def on_no_client(lost: Sequence[LeftOut]) -> list[str]:
    """Return ["3–5 examples and 1 class on no client"]; or [], if all examples and classes are on a client.

    ``lost`` has the two numbers for each seed; if seeds differ, the text gives the range.
    """
    words = []
    for values, word in zip(zip(*lost, strict=True), ("example", "class"), strict=True):
        low, high = min(values), max(values)
        if high:
            span = f"{low:,}" if low == high else f"{low:,}–{high:,}"
            words.append(f"{span} {plural(word, high)}")
    return [f"{' and '.join(words)} on no client"] if words else []


def law_of(data: FeatureSet, federation: Federation) -> str:
    """Return a text that says who holds the data: its own clients, or a partition: ``dirichlet, α = 0.1``."""
    if data.clients is not None:
        return "clients of its own"
    # A partitioner's arguments are labels, number of clients, and then its own parameter, if it has one.
    third = list(inspect.signature(PARTITIONERS[federation.law]).parameters)[2]
    if third == "seed":
        return federation.partition
    name = {"alpha": "α", "sigma": "σ"}.get(third, third.removeprefix("num_").replace("partition", "client"))
    name = name.replace("_", " ")
    return f"{federation.partition}, {name} = {federation.alpha:g}"


def contents_of(data: FeatureSet) -> str:
    """Return a digest of all features, labels and clients of the training and the test part."""
    digest = hashlib.sha256()
    parts = (data.train_features, data.train_labels, data.test_features, data.test_labels)
    for array in (*parts, *(each for each in (data.clients, data.test_clients) if each is not None)):
        digest.update(f"{array.dtype}{array.shape}".encode())
        for part in blocks(array):
            digest.update(np.ascontiguousarray(array[part]).data)
    return digest.hexdigest()[:16]


def cache_file(stem: str, key: dict[str, Any]) -> Path:
    """Return the path of a cached feature file: the cache's folder, then ``stem`` and a hash of ``key``.

    ``key`` has all that determines the features. The folder is made if it is missing. Raise OSError if the
    file does not exist yet and the folder cannot be written.
    """
    folder = cache_folder()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', stem)[:80]}-{digest}.npz"
    try:
        if not file.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise OSError(
            f"{folder}: features cannot be kept in this folder ({error.strerror}); set COVFREE_CACHE to a "
            "folder that can be written"
        ) from error
    return file


def _once(read: Callable[..., FeatureSet]) -> Callable[[int], FeatureSet]:
    """Return a function of the seed that reads data, once if the data has a fixed split."""

    @cache
    def first() -> FeatureSet:
        return read(seed=0)

    def for_seed(seed: int) -> FeatureSet:
        return first() if seed == 0 or first().fixed_split else read(seed=seed)

    return for_seed


def _outline(images: ImageSet) -> FeatureSet:
    """Return a `FeatureSet` of an image set's labels, classes and split, before any feature is computed.

    Its features are empty arrays. Its ``clients`` are all 0 if the images have clients, else None.
    """
    train = np.ones(len(images), bool) if images.is_test is None else ~images.is_test
    labels = np.asarray(images.labels)
    none = np.zeros((0, 0), np.float32)
    return FeatureSet(
        name=images.name,
        train_features=none,
        train_labels=labels[train],
        test_features=none,
        test_labels=labels[~train],
        num_classes=len(images.class_names),
        clients=None if images.clients is None else np.zeros(int(train.sum()), np.int32),
        fixed_split=images.is_test is not None,
        class_names=images.class_names,
    )
