"""Where the data of ``covfree compare`` comes from: a file of features, or images."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree import backbones
from covfree.backbones import BACKBONES
from covfree.backbones.hub import find_weights
from covfree.cli.extract import backbone_of, extract
from covfree.data import FeatureSet, load, load_npz
from covfree.data.extract import feature_key
from covfree.data.image_set import ImageSet
from covfree.data.images import load_images


class Source(NamedTuple):
    """Data of a federation.

    Attributes:
        config: what it is, for the results.
        outline: the data of seed 0 as far as it is known at once: of images, without features.
        load: the data for a seed.
    """

    config: dict[str, Any]
    outline: FeatureSet
    load: Callable[[int], FeatureSet]


def of_file(dataset: str, test_file: Path | None) -> Source:
    """Features in a file, or the digits."""
    config = {"dataset": dataset, "test_file": None if test_file is None else str(test_file)}
    by_seed = _once(partial(load, dataset, test=test_file))
    return Source(config, by_seed(0), by_seed)


def of_images(source: str, backbone: str, weights: str | None) -> Source:
    """Images, whose features are computed the first time and then lie in the cache."""
    name = backbone_of(backbone)
    found = find_weights(weights, BACKBONES[name])
    images = load_images(source)
    network = backbones.backbone(name, num_classes=None)
    key = feature_key(images, network, weights=found.sha256, preprocessing=found.preprocessing)

    @cache
    def features() -> Path:
        return extract(images, name, found, cache_file(f"{images.name}-{name}", key)).path

    def read(*, seed: int) -> FeatureSet:
        return load_npz(features(), seed=seed)._replace(name=images.name)

    config = {"images": source, "backbone": name, "weights": found.source}
    return Source(config, _outline(images), _once(read))


def cache_file(stem: str, key: dict[str, Any]) -> Path:
    """Where features with this key are kept."""
    own, common = os.environ.get("COVFREE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    folder = Path(own) if own else (Path(common) if common else Path.home() / ".cache") / "covfree"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', stem)[:80]}-{digest}.npz"


def _once(read: Callable[..., FeatureSet]) -> Callable[[int], FeatureSet]:
    """The data for a seed; what is split the same for every seed is read once."""

    @cache
    def first() -> FeatureSet:
        return read(seed=0)

    def for_seed(seed: int) -> FeatureSet:
        return first() if seed == 0 or first().fixed_split else read(seed=seed)

    return for_seed


def _outline(images: ImageSet) -> FeatureSet:
    """What is known without features: whose the training examples are, and of which class."""
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
    )
