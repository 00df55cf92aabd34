"""The federation of a cell: its examples, whose they are, and what a method is given of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.backbones import Backbone, Preprocessing
from covfree.data import FeatureSet
from covfree.data.extract import features_of_pixels
from covfree.studies.federation import Federation
from covfree.studies.predictions import Predictions, count_predictions, scores_of
from covfree.studies.source import Images

# Images whose features are computed together.
_BATCH = 64


class Network(NamedTuple):
    """A backbone to train, or to hold fixed under a head.

    Attributes:
        backbone: without a classifier.
        params: its parameters.
        preprocessing: what they want of images.
    """

    backbone: Backbone
    params: Any
    preprocessing: Preprocessing

    def features(self, pixels: np.ndarray) -> jax.Array:
        """Features of images, computed in batches of one size, which share a compiled function."""
        parts = []
        for first in range(0, len(pixels), _BATCH):
            batch = pixels[first : first + _BATCH]
            filled = np.pad(batch, [(0, _BATCH - len(batch)), *[(0, 0)] * 3])
            made = features_of_pixels(self.params, filled, self.backbone, self.preprocessing)
            parts.append(made[: len(batch)])
        return jnp.concatenate(parts)


@dataclass(eq=False)
class Task:
    """A federation of a seed, in which a method is run or a head is trained.

    Attributes:
        data: features, from which closed-form heads are made, and labels.
        clients: the client of each training example; below 0 is on no client.
        seed: of whatever is drawn.
        inputs: what heads are made from, or trained on: features or pixels. They may be on the device.
        test_inputs: of the test examples.
        network: what turns pixels into features; None if inputs are features.
        starts: heads to train from that were made already, by name.
        aside: the same without the clients on which learning rates are tuned, once it was made.
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
        """Of the training examples, on the device."""
        return jax.device_put(self.data.train_labels)

    def accuracy(self, result: Any) -> float:
        """Share of the test examples that a head, or a network's parameters and its head, gets right."""
        head, features = self._tested(result)
        return float(covfree.evaluate(head, features, self.data.test_labels))

    def predictions(self, result: Any) -> Predictions:
        """What that predicts of the test examples, counted."""
        scores = scores_of(*self._tested(result))
        return count_predictions(scores, self.data.test_labels, self.data.test_clients)

    def _tested(self, result: Any) -> tuple[Any, Any]:
        """A result's head, and its features of the test examples."""
        if self.network is None:
            return result, self.test_inputs
        params, head = result.feature_map.params, result.head
        return head, self.network._replace(params=params).features(self.test_inputs)


def clients_of(data: FeatureSet, federation: Federation, seed: int) -> np.ndarray:
    """The client of each training example, checked with the examples.

    Raises:
        ValueError: if the partition cannot be made, or the examples are no examples.
    """
    clients = federation.assign(data, seed).astype(np.int32)
    covfree.check(data.train_features, data.train_labels, clients, num_classes=data.num_classes)
    return clients


def task_of(
    data: FeatureSet, clients: np.ndarray, seed: int, features: Any, images: Images | None = None
) -> Task:
    """The task of clients' features, or of the images for a network.

    Args:
        data: features and labels.
        clients: [examples]; below 0 is on no client.
        seed: of the split and of whatever is drawn.
        features: of training, which may be on the device.
        images: where they come from, if a network is trained.
    """
    if images is None:
        return Task(data, clients, seed, features, data.test_features)
    params = images.network.load(images.weights.path)
    return Task(
        data, clients, seed, *images.pixels(seed), Network(images.network, params, images.preprocessing)
    )
