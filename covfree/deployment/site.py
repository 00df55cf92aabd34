"""Read a site's examples, and the settings of its features, which all sites must share."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.backbones import Backbone, backbone
from covfree.backbones.hub import Weights, find_weights
from covfree.core.array_file import names_in, read_npz
from covfree.data.decode import pixels_of
from covfree.data.extract import extractor_key
from covfree.data.image_set import ImageSet
from covfree.deployment.description import Description
from covfree.deployment.differences import differences
from covfree.deployment.machine import check_folder
from covfree.rounds.algorithm import Algorithm

# Entries of a feature file's ``key`` that describe its examples, and so differ between sites.
_OWN = ("images", "texts")


class SiteData(NamedTuple):
    """The data with which a site takes part.

    Attributes:
        features: [n, d] float32, or uint8 images [n, side, side, 3].
        labels: [n], as in the file: indices of ``uses["class_names"]``.
        uses: d, extractor settings and class names; `Client` requires that they equal `Description.agreed`.
    """

    features: np.ndarray
    labels: np.ndarray
    uses: dict[str, Any]


def extractor_in(path: str | PathLike[str]) -> dict[str, Any]:
    """Read from a file of ``covfree extract`` the number of features, extractor settings and class names.

    Raises:
        ValueError: if the file does not contain features and labels.
        FileNotFoundError: if there is no such file.
    """
    return _uses(Path(path), read_npz(Path(path)))


def read_site(path: str | PathLike[str], description: Description) -> SiteData:
    """Read a site's training examples: all except those that the file marks as its test part.

    In a federation without an extractor, a file may lack class names; its labels then count as indices of
    ``description.class_names``.

    Raises:
        ValueError: if the file does not contain features and labels.
        FileNotFoundError: if there is no such file.
    """
    arrays = read_npz(Path(path))
    uses = _uses(Path(path), arrays)
    if not description.extractor:
        uses = {name: uses[name] for name in ("dim", "class_names") if name in uses}
        uses.setdefault("class_names", list(description.class_names))
    labels = np.asarray(arrays["labels"])
    train = ~arrays["is_test"] if "is_test" in arrays else np.ones(len(labels), bool)
    return SiteData(np.asarray(arrays["features"][train], np.float32), labels[train], uses)


def load_site(
    description: Description,
    site: str,
    folder: str | PathLike[str],
    *,
    features: str | PathLike[str] | None = None,
    images: str | PathLike[str] | None = None,
    weights: str | None = None,
) -> tuple[SiteData, Algorithm | None]:
    """Load a site's data and, if a network is trained, the algorithm (else None), both for `Client`.

    Args:
        description: the federation.
        site: the site's name in the description.
        folder: the site's own folder, where the features of images are kept.
        features: a file of ``covfree extract``, see `read_site`.
        images: instead of ``features``, a folder of images with a subfolder for each class.
        weights: the network's weights: a path, a name on the hub, or None; see
            `covfree.backbones.hub.find_weights`.

    Raises:
        ValueError: if the folder holds the state of another machine or federation, if not exactly one of
            ``features`` and ``images`` is given, if a network is trained but ``features`` is given, or if
            images or weights do not fit the description.
    """
    from covfree.data.folders import image_folder
    from covfree.studies.extraction import extract

    check_folder(Path(folder), description, site)  # before features are computed and written there
    if (images is None) == (features is None):
        got = "neither" if images is None else "both"
        raise ValueError(f"features: expected features or images, got {got}")
    if images is None:
        assert features is not None
        if description.train != "head":
            raise ValueError("features: expected images, as a network is trained; got a file of features")
        return read_site(features, description), None
    if not Path(images).is_dir():
        what = "a file" if Path(images).exists() else "which does not exist"
        raise ValueError(
            f"images: expected a folder with one folder of images a class, got {str(images)!r}, {what}"
        )
    if description.train != "head":
        network = load_network(description, weights)
        found = image_folder(images, class_names=description.class_names)
        return load_images(found, description, network), description.make_algorithm(network)
    # Check the weights before features are computed, as the computation takes long.
    chosen, known = check_weights(description, description.extractor.get("backbone"), weights)
    file = Path(folder) / "features.npz"
    found = image_folder(images, class_names=description.class_names)
    extract(found, chosen.name, file, weights=known, dtype=description.extractor["dtype"])
    return read_site(file, description), None


def extractor_of(network: str, weights: str | None = None) -> dict[str, Any]:
    """Return the settings with which a named network makes features, as `Description.extractor` has them."""
    return _settings(*_network(network, weights))


def load_network(description: Description, weights: str | None = None) -> Any:
    """Load the network that a federation trains, for `Description.make_algorithm`.

    Args:
        description: the federation.
        weights: the network's weights, as for `load_site`.

    Returns:
        A `covfree.finetune.NetworkMap`.

    Raises:
        ValueError: if the weights are not the description's.
    """
    from covfree.finetune import NetworkMap

    chosen, found = check_weights(description, description.extractor.get("backbone"), weights)
    return NetworkMap(chosen.load(found.path), chosen, found.preprocessing or chosen.spec.preprocessing)


def load_images(images: ImageSet, description: Description, network: Any) -> SiteData:
    """Return a site's images, decoded for the network, and their labels: all except those of a test part.

    Args:
        images: the images, e.g. from `covfree.data.image_folder`, with the description's classes.
        description: the federation.
        network: from `load_network`.
    """
    train = np.ones(len(images), bool) if images.is_test is None else ~np.asarray(images.is_test)
    labels = np.asarray(images.labels)
    uses = {**description.agreed, "class_names": list(images.class_names)}
    return SiteData(pixels_of(images, network.preprocessing)[train], labels[train], uses)


def check_weights(
    description: Description, network: str | None, weights: str | None
) -> tuple[Backbone, Weights]:
    """Find a network and its weights; raise ValueError unless both are as the description says."""
    own = description.extractor
    if network is None or "backbone" not in own:
        raise ValueError("backbone: expected a federation that names one, got one of features from elsewhere")
    found = _network(network, weights)
    if unlike := differences(own, {**_settings(*found), "dtype": own.get("dtype")}):
        raise ValueError(f"not as the federation says: {'; '.join(unlike)}")
    return found


def _network(name: str, weights: str | None) -> tuple[Backbone, Weights]:
    chosen = backbone(name)
    return chosen, find_weights(weights, chosen.spec)


def _settings(chosen: Backbone, found: Weights) -> dict[str, Any]:
    return extractor_key(chosen, found.sha256, found.preprocessing)


def _uses(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    if not {"features", "labels"} <= set(arrays) or arrays["features"].ndim != 2:
        raise ValueError(f"{path}: expected features [n, d] and labels [n], got arrays {sorted(arrays)}")
    rows = arrays["features"].shape[:1]
    for name in ("labels", "is_test"):
        if name in arrays and arrays[name].shape != rows:
            raise ValueError(f"{path}: expected {name} {[*rows]}, as features, got {[*arrays[name].shape]}")
    key: Any = {}
    if "key" in arrays:
        try:
            key = json.loads(arrays["key"].item())
        except ValueError as error:
            raise ValueError(f"{path}: key: expected JSON ({error})") from error
    made = {name: value for name, value in dict(key).items() if name not in _OWN}
    names = {"class_names": list(names_in(arrays["class_names"]))} if "class_names" in arrays else {}
    return {"dim": int(arrays["features"].shape[1]), **made, **names}
