"""A `Task`: examples, their clients, and the inputs that a method or a training takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.backbones import Backbone, Preprocessing
from covfree.core.compiling import jit
from covfree.data import FeatureSet
from covfree.data.extract import features_of_pixels
from covfree.studies.federation import Federation
from covfree.studies.predictions import Predictions, count_predictions, scores_of
from covfree.studies.source import Images

# Batch size of images.
_BATCH = 64


class Network(NamedTuple):
    """A backbone with parameters, to be trained or kept fixed.

    Attributes:
        backbone: the network, without a classifier.
        params: the network's parameters.
        preprocessing: the preprocessing of images that the parameters expect.
    """

    backbone: Backbone
    params: Any
    preprocessing: Preprocessing

    def features(self, pixels: np.ndarray) -> jax.Array:
        """Compute features of images in batches of one size, which share a compiled function."""
        return _in_batches(
            lambda batch: features_of_pixels(self.params, batch, self.backbone, self.preprocessing), pixels
        )


def network_of(images: Images) -> Network:
    """Return the network that computes features of images, with its weights loaded."""
    return Network(images.network, images.network.load(images.weights.path), images.preprocessing)


def _in_batches(function: Callable[[np.ndarray], jax.Array], pixels: np.ndarray) -> jax.Array:
    parts = []
    for first in range(0, len(pixels), _BATCH):
        batch = pixels[first : first + _BATCH]
        filled = np.pad(batch, [(0, _BATCH - len(batch)), *[(0, 0)] * 3])
        parts.append(function(filled)[: len(batch)])
    return jnp.concatenate(parts)


@jit
def _prompted(model: Any, images: jax.Array) -> jax.Array:
    """Compute features of images by a prompted model: a frozen network that also reads trained prompts."""
    return model.features(model.trained, model.frozen, model.statistics, images, False, None)[0]


@dataclass(eq=False)
class Task:
    """A federation for a seed, in which a method is run or a head is trained.

    Attributes:
        data: features and labels. Heads that training starts from are fitted to these features.
        clients: the client of each training example; below 0 if it is on no client.
        seed: seed of all random draws.
        inputs: training inputs, features or pixels. They may be on the device.
        test_inputs: inputs of the test examples.
        network: computes features of pixels; None if inputs are features.
        starts: cache of the heads that training starts from, by their settings.
        aside: cache of a second task, for tuning learning rates, whose test examples are those of clients
            that do not train.
    """

    data: FeatureSet
    clients: np.ndarray
    seed: int
    inputs: Any
    test_inputs: Any
    network: Network | None = None
    starts: dict[str, Any] = field(default_factory=dict)
    aside: Task | None = None

    @cached_property
    def labels(self) -> jax.Array:
        """Labels of the training examples, on the device."""
        return jax.device_put(self.data.train_labels)

    def accuracy(self, result: Any) -> float:
        """Return the test accuracy of a head, a network with a head (`MappedHead`), or a prompted model."""
        head, features = self._tested(result)
        return float(covfree.evaluate(head, features, self.data.test_labels))

    def predictions(self, result: Any) -> Predictions:
        """Count the test predictions of any result that `accuracy` accepts."""
        scores = scores_of(*self._tested(result))
        return count_predictions(scores, self.data.test_labels, self.data.test_clients)

    def _tested(self, result: Any) -> tuple[Any, Any]:
        """Return the head in a training's ``result``, and the features of the test examples, its input.

        If a network or prompts were trained, the features are computed with them from the test images.
        """
        if self.network is None:
            return result, self.test_inputs
        if hasattr(result, "trained"):
            head = replace(result.trained["head"], present=result.frozen["present"])
            return head, _in_batches(partial(_prompted, result), self.test_inputs)
        params, head = result.feature_map.params, result.head
        return head, self.network._replace(params=params).features(self.test_inputs)


def clients_of(data: FeatureSet, federation: Federation, seed: int) -> np.ndarray:
    """Return the client of each training example, and check the training examples."""
    clients = federation.assign(data, seed, warn=False).astype(np.int32)
    covfree.check(data.train_features, data.train_labels, clients, num_classes=data.num_classes)
    return clients


def task_of(
    data: FeatureSet, clients: np.ndarray, seed: int, features: Any, images: Images | None = None
) -> Task:
    """Make a task with features as inputs or, if ``images`` are given, with their pixels and network."""
    if images is None:
        return Task(data, clients, seed, features, data.test_features)
    return Task(data, clients, seed, *images.pixels(seed), network_of(images))
