"""One-shot baselines of trained networks: FedAvg, the ensemble, DENSE and Co-Boosting, on a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from baselines import co_boosting, dense
from baselines.cnn import Pretrained, applied, cnn_model
from baselines.distillation import Networks, distil
from baselines.generator import Generator
from baselines.idx import Images
from baselines.local_training import average, train_clients

from covfree.core.keys import derive
from covfree.data import FeatureSet
from covfree.studies import Federation
from experiments.tables.data import Data
from experiments.tables.settings import federation_of

_DISTILLED = {"dense": dense, "co-boosting": co_boosting}
ALGORITHMS = ("fedavg", "ensemble", *_DISTILLED)


class _Trained(NamedTuple):
    """What all algorithms of a federation start from.

    Attributes:
        network: of the clients and the student.
        start: its variables before any training.
        members: variables of the clients' networks, with an axis of clients in front.
        sizes: how many examples each client has.
        images: of the federation, and to test on.
    """

    network: Pretrained
    start: Any
    members: Any
    sizes: np.ndarray
    images: FeatureSet

    def logits(self, variables: Any) -> np.ndarray:
        """Of the test images."""
        return applied(self.network, variables, np.asarray(self.images.test_features))

    def mean_logits(self) -> np.ndarray:
        """The mean of the clients' logits."""
        each = (jax.tree.map(lambda x, i=i: x[i], self.members) for i in range(len(self.sizes)))
        return np.mean([self.logits(variables) for variables in each], 0)


# Training the clients' networks takes longest, and all algorithms share them.
@lru_cache(maxsize=1)
def _trained(data: Data, federation: Federation, seed: int, epochs: int, batch: int, rate: float) -> _Trained:
    images, known = data.pixels(seed), data.network(seed)
    owners = federation.assign(images, seed)
    held = owners >= 0
    # Clients without examples, whose networks would know nothing, are none.
    numbers, clients = np.unique(owners[held], return_inverse=True)
    key = jax.random.key(seed)
    network = Pretrained(known.backbone, known.preprocessing, images.num_classes)
    start = network.variables_of(known.params, derive(key, "start"))
    members = train_clients(
        cnn_model(network, start),
        Images(images.train_features[held], images.train_labels[held]),
        clients.astype(np.int32),
        epochs=epochs,
        key=derive(key, "local"),
        learning_rate=rate,
        batch_size=batch,
    )
    return _Trained(network, start, members, np.bincount(clients, minlength=len(numbers)), images)


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Accuracy of an algorithm after one round; it begins anew if it was stopped.

    With logits that are not finite it has ``diverged``.

    Raises:
        ValueError: if the algorithm is unknown.
    """
    name = own["algorithm"]
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {name!r}")
    place = federation_of(own)
    trained = _trained(data, place, seed, own["epochs"], own["batch_size"], own["client_lr"])
    if name == "fedavg":
        logits = trained.logits(average(trained.members, trained.sizes / trained.sizes.sum()))
    elif name == "ensemble":
        logits = trained.mean_logits()
    else:
        logits = trained.logits(_distilled(own, trained, seed))
    accuracy = 100 * float((logits.argmax(1) == trained.images.test_labels).mean())
    return {"value": accuracy, "diverged": None if np.isfinite(logits).all() else 1}


def _distilled(own: Mapping[str, Any], trained: _Trained, seed: int) -> Any:
    """Variables of the student, which starts from what the clients started from."""
    method = _DISTILLED[own["algorithm"]]
    settings = replace(method.PUBLISHED, epochs=own["distillation_epochs"], steps=own["generator_steps"])
    size, _, channels = trained.images.train_features.shape[1:]
    networks = Networks(trained.network, Generator(size, channels, own["generator_width"]))
    key = derive(jax.random.key(seed), "distillation")
    return distil(method.epoch, networks, settings, trained.members, key=key, student=trained.start).student
