"""The data of a cell: found in a folder or by TensorFlow Datasets, as images or features of a backbone."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covfree.backbones import BACKBONES, backbone
from covfree.backbones.hub import Weights, find_weights
from covfree.data import FeatureSet, extract_features, image_folder, load_images, load_npz, tfds
from covfree.data.extract import extractor_key
from covfree.data.image_set import ImageSet
from covfree.studies.source import Images, cache_file, of_file, of_image_set
from covfree.studies.task import Network
from experiments.tables.parts import joined, leave_out, most_common
from experiments.tables.settings import OF_DATA, data_name
from experiments.tables.spec import PAPERS, Cell

# The setting ``weights`` of networks that are trained from scratch.
RANDOM = "random"


class NotAtHand(Exception):
    """Data or weights that a cell needs are not there."""


@lru_cache
def datasets() -> Mapping[str, Mapping[str, Any]]:
    """Where each data set is found, by its name in the tables."""
    return tomllib.loads((PAPERS / "names" / "datasets.toml").read_text(encoding="utf-8"))


def check_overrides(overrides: Mapping[str, Any], cells: Iterable[Cell]) -> None:
    """Raise ValueError if an override makes no difference to any of these cells."""
    read = set[str]()
    for cell in cells:
        # Features that are there are taken as they are.
        is_of_features = "features" in datasets().get(cell.settings.get("data", ""), {})
        read |= cell.read - (set(OF_DATA) - {"data"} if is_of_features else set())
    for name in overrides:
        if name not in read:
            known = ", ".join(sorted(read)) or "none, as what is counted is of the printed numbers"
            raise ValueError(f"{name}: expected a setting that the chosen cells depend on: {known}")


@dataclass(frozen=True, eq=False)
class Data:
    """The data of cells that share them.

    Attributes:
        name: what results call it.
        features: of a seed, before the settings' classes and domains are chosen.
        images: where features come from; None for data that are features.
        adapt: chooses the classes and domains.
    """

    name: str
    features: Callable[[int], FeatureSet]
    images: Images | None = None
    adapt: Callable[[FeatureSet, int], FeatureSet] = lambda data, seed: data

    def load(self, seed: int) -> FeatureSet:
        """Features of a seed."""
        return self.adapt(self.features(seed), seed)

    def pixels(self, seed: int) -> FeatureSet:
        """The examples that `load` gives, in that order, with the network's input, uint8, for features."""
        return _pixels(self, seed)

    def network(self, seed: int) -> Network:
        """The backbone with its weights, which may be random."""
        images = self.pictures
        if images.weights.source == RANDOM:
            params = images.network.init(jax.random.key(seed))
        else:
            params = images.network.load(images.weights.path)
        return Network(images.network, params, images.preprocessing)

    @property
    def pictures(self) -> Images:
        """The images; an error if there are features alone."""
        if self.images is None:
            raise ValueError(f"{self.name}: expected images, which this kind of cell trains on, got features")
        return self.images


# The last alone: they may take gigabytes.
@lru_cache(maxsize=1)
def _pixels(data: Data, seed: int) -> FeatureSet:
    train, test = data.pictures.pixels(seed)
    return data.adapt(data.features(seed)._replace(train_features=train, test_features=test), seed)


@dataclass(frozen=True)
class Found:
    """Where data and weights are.

    Attributes:
        data_dir: the folder of data sets; None for TFDS's own.
        weights: by backbone, a file or ``owner/name@commit``.
    """

    data_dir: Path | None
    weights: Mapping[str, str]

    def data(self, settings: Mapping[str, Any]) -> Data:
        """The data of a cell; features are computed when they are first asked for.

        Raises:
            NotAtHand: if the images or the weights are not there.
            ValueError: if they are there and damaged, or the settings do not fit.
        """
        name = settings["data"]
        if name not in datasets():
            raise ValueError(f"data: expected one of {', '.join(datasets())}, got {name!r}")
        entry = datasets()[name]
        if "features" in entry:
            return Data(data_name(settings), of_file(entry["features"], None).load)
        weights, images = self._weights(settings, entry), self._opened(name, entry)
        network, pixels = settings["backbone"], settings.get("pixels")
        if pixels is not None:
            own = weights.preprocessing or BACKBONES[network].preprocessing
            weights = weights._replace(preprocessing=replace(own, resize=pixels, crop=pixels))
        adapt = _adapted(settings, entry.get("domains", []))
        if weights.source == RANDOM:
            found = Images(images, backbone(network), weights)
            return Data(data_name(settings), partial(_random_features, found), found, adapt)
        source = of_image_set(images, network, weights)
        return Data(data_name(settings), source.load, source.images, adapt)

    def _weights(self, settings: Mapping[str, Any], entry: Mapping[str, Any]) -> Weights:
        name = settings.get("backbone", "none")
        if name not in BACKBONES:
            raise ValueError(f"backbone: expected one of {', '.join(BACKBONES)}, got {name!r}")
        if settings.get("weights") == RANDOM:
            return Weights(Path(), RANDOM, RANDOM)
        if name not in self.weights and BACKBONES[name].package is None:
            hub = BACKBONES[name].hub
            other = "" if hub is None else f" or {name}={hub}@COMMIT of the Hugging Face hub"
            raise NotAtHand(
                f"no weights of {name} (expected --weights {name}=FILE{other}); "
                f"images of {settings['data']} are looked for as {self._wanted(entry)}"
            )
        return find_weights(self.weights.get(name), BACKBONES[name])

    def _opened(self, name: str, entry: Mapping[str, Any]) -> ImageSet:
        """The images, which several networks share; what could not be opened once is not tried again."""
        if name not in self._known:
            try:
                self._known[name] = self._images(name, entry)
            except NotAtHand as error:
                self._known[name] = error
        known = self._known[name]
        if isinstance(known, NotAtHand):
            raise known
        return known

    @cached_property
    def _known(self) -> dict[str, ImageSet | NotAtHand]:
        return {}

    def _images(self, name: str, entry: Mapping[str, Any]) -> ImageSet:
        for path in self._places(entry):
            if path.suffix == ".npz" and path.is_file():
                return load_images(path)
            if path.is_dir():
                images = image_folder(path, pattern=entry.get("pattern"))
                return _with_clients(images, path / entry["clients"]) if "clients" in entry else images
        if "tfds" not in entry:
            raise NotAtHand(f"no images of {name} (expected {self._wanted(entry)})")
        train, test = entry.get("splits", ["train", "auto"])
        given = {"train": train, "test": None if test == "none" else test, "data_dir": self.data_dir}
        try:
            if "domains" not in entry:
                return tfds(entry["tfds"], **given)
            parts = {each: tfds(f"{entry['tfds']}/{each}", **given) for each in entry["domains"]}
        except ValueError as error:
            if "is not prepared" not in str(error):
                raise
            # What TFDS says may be long; what can be done about it stands last.
            advice = str(error).rpartition("Where there is internet")[2]
            raise NotAtHand(f"no images of {name}; where there is internet{advice}") from error
        return joined(name, parts)

    def _wanted(self, entry: Mapping[str, Any]) -> str:
        """Where images are looked for, in words."""
        folder = entry["folder"]
        places = [*map(str, self._places(entry))] or [f"{folder}.npz or the folder {folder} below --data-dir"]
        if "tfds" in entry:
            places.append(f"{entry['tfds']} of TensorFlow Datasets")
        return ", or ".join(places)

    def _places(self, entry: Mapping[str, Any]) -> list[Path]:
        """Where images lie that are no set of TFDS: a folder, or an ``.npz`` file."""
        if self.data_dir is None:
            return []
        folder = self.data_dir / entry["folder"]
        # TFDS keeps versions, in folders that begin with a digit, where its name is the folder's.
        versions = folder.is_dir() and any((each / "dataset_info.json").exists() for each in folder.iterdir())
        return [folder.with_suffix(".npz"), *([] if versions else [folder])]


def _random_features(images: Images, seed: int) -> FeatureSet:
    """Features of a network with the random weights of a seed."""
    network, text = images.network, f"random, seed {seed}"
    key = {"images": images.images.fingerprint, **extractor_key(network, text, images.preprocessing)}
    file = cache_file(f"{images.images.name}-{network.name}-random", key)
    file.parent.mkdir(parents=True, exist_ok=True)
    extract_features(
        images.images,
        network,
        partial(network.init, jax.random.key(seed)),
        out=file,
        weights=text,
        preprocessing=images.preprocessing,
    )
    return load_npz(file, seed=seed)._replace(name=images.images.name)


def _adapted(settings: Mapping[str, Any], domains: list[str]) -> Callable[[FeatureSet, int], FeatureSet]:
    """A function that chooses the classes and domains that the settings ask for."""
    target, count = settings.get("target"), settings.get("top_classes")
    if target is not None and target not in domains:
        raise ValueError(f"target: expected one of {', '.join(domains) or 'none'}, got {target!r}")

    def adapt(data: FeatureSet, seed: int) -> FeatureSet:
        if count is not None:
            data = most_common(data, count)
        if target is not None:
            if sorted(data.client_names or ()) != sorted(domains):
                raise ValueError(
                    f"{data.name}: expected the domains {', '.join(domains)}, got "
                    f"{', '.join(data.client_names or ()) or 'none'}"
                )
            data = leave_out(data, target, settings["clients_per_domain"], seed)
        return data

    return adapt


def _with_clients(images: ImageSet, table: Path) -> ImageSet:
    """Give images the clients that a CSV file names (columns file and client); test images may have none."""
    with table.open(encoding="utf-8", newline="") as stream:
        owners = {row["file"]: row["client"] for row in csv.DictReader(stream)}
    return replace(images, clients=np.array([owners.get(name, "") for name in images.ids]))
