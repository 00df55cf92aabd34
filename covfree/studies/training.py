"""Fine-tuning from closed-form heads: the experiment behind ``covfree finetune``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covfree
import covfree.rounds
from covfree.backbones import Backbone, Preprocessing
from covfree.core.types import LinearHead
from covfree.data import FeatureSet
from covfree.data.extract import features_of_pixels
from covfree.finetune import Model, linear_model, network_model, random_head, registry
from covfree.finetune.model import Norms, Trained
from covfree.finetune.registry import Rates
from covfree.heads import MappedHead
from covfree.studies import Federation, variants
from covfree.studies.history import History, Record, Tell
from covfree.studies.predictions import Predictions, count_predictions, scores_of
from covfree.studies.run_folder import save_result
from covfree.studies.source import Source
from covfree.studies.timing import timed

RANDOM = "random"
# Methods with a linear head, perhaps of random features: no other can be trained.
_UNTRAINABLE = {"naive-bayes", "qda", "qda-means", "deepafl", "safle"}
TRAINABLE = tuple(name for name in covfree.methods.registry() if name not in _UNTRAINABLE)
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


class Task(NamedTuple):
    """A federation to train in.

    Attributes:
        data: features, from which closed-form heads are made, and labels.
        clients: the client of each training example; below 0 is padding.
        inputs: what is trained on, features or pixels.
        test_inputs: of the test examples.
        network: what turns pixels into features; None if features are trained on.
    """

    data: FeatureSet
    clients: np.ndarray
    inputs: np.ndarray
    test_inputs: np.ndarray
    network: Network | None

    def accuracy(self, result: Any) -> float:
        """Share of the test examples that what a run gives gets right."""
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
        params, head = result
        backbone, _, preprocessing = self.network
        parts = []
        for first in range(0, len(self.test_inputs), _BATCH):
            pixels = self.test_inputs[first : first + _BATCH]
            # Filled up, so that all batches share a compiled function.
            filled = np.pad(pixels, [(0, _BATCH - len(pixels)), *[(0, 0)] * 3])
            parts.append(features_of_pixels(params, filled, backbone, preprocessing)[: len(pixels)])
        return head, jnp.concatenate(parts)


def make_task(source: Source, federation: Federation, seed: int, train: Trained) -> Task:
    """The federation of a seed. A head alone is trained on features, which do not change then."""
    data = source.load(seed)
    # Rounds go over the examples again and again: large ones are read into memory.
    parts = {name: np.asarray(getattr(data, name)) for name in ("train_features", "test_features")}
    data = data._replace(**parts)
    clients = federation.assign(data, seed).astype(np.int32)
    covfree.check(data.train_features, data.train_labels, clients, num_classes=data.num_classes)
    if train == "head" or source.images is None:
        return Task(data, clients, data.train_features, data.test_features, None)
    images = source.images
    network = Network(images.network, images.network.load(images.weights.path), images.preprocessing)
    return Task(data, clients, *images.pixels(seed), network)


class Start(NamedTuple):
    """What is trained from.

    Attributes:
        head: a linear head, calibrated if it is in closed form.
        record: the line of history of round 0, the closed-form stage; without the accuracy.
    """

    head: LinearHead | MappedHead
    record: Record


def make_start(init: str, task: Task, seed: int) -> Start:
    """A random head, or that of a method, with the temperature that fits the training examples best."""
    features, classes = task.data.train_features, task.data.num_classes
    clients, uploaded, received, seconds = 0, 0, 0, 0.0
    if init == RANDOM:
        head = random_head(features.shape[1], classes, key=jax.random.key(seed))
        # As closed-form heads have it, so that all starts share compiled functions.
        head = replace(head, present=jnp.ones(classes))
    else:
        method, labels = variants([init])[init].method, task.data.train_labels
        used = np.where(task.clients >= 0, labels, -1)

        def calibrated() -> Any:
            key = jax.random.key(seed)
            head: Any = covfree.fit(method, features, labels, task.clients, num_classes=classes, key=key)
            return covfree.with_temperature(head, covfree.calibrate_temperature(head, features, used))

        head, seconds = timed(calibrated)
        clients = len(np.unique(task.clients[task.clients >= 0]))
        uploaded = covfree.sent_bytes(method, labels, task.clients, dim=features.shape[1]).statistics
        received = covfree.received_bytes(method, labels, task.clients, dim=features.shape[1])
    sizes = {"clients": clients, "bytes_up": uploaded, "bytes_down": received}
    return Start(head, {"round": 0, **sizes, "seconds": seconds})


@dataclass(frozen=True)
class Settings:
    """How runs are trained.

    Attributes:
        rounds: how many.
        participation: clients of a round, a number or a share.
        train: what is trained.
        norms: how batch norms train.
        options: of the algorithms, beside their rates.
        every: rounds from one evaluation to the next.
        save_every: rounds from one checkpoint to the next.
        width: clients that are simulated at once.
        predictions: whether the test examples are counted by class and prediction at the end.
    """

    rounds: int
    participation: int | float
    train: Trained = "head"
    norms: Norms = "frozen"
    options: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    save_every: int = 10
    width: int = 1
    predictions: bool = False


@dataclass(frozen=True)
class Run:
    """A run from one start.

    Attributes:
        init: of the start.
        algorithm: name in the registry.
        seed: of the split, the partition and whatever is drawn.
        rates: that it trained with.
        history: a record for each round, from 0, the start.
        diverged: the round that gave no finite state and was undone; None if none did.
        tried: the rates that were tried on clients set aside; None if none were.
        predictions: of the test examples at the end; None if they were not counted.
    """

    init: str
    algorithm: str
    seed: int
    rates: Rates
    history: list[Record]
    diverged: int | None = None
    tried: list[dict[str, Any]] | None = None
    predictions: Predictions | None = None

    @property
    def evaluated(self) -> list[Record]:
        """The rounds after which the accuracy was measured."""
        return [record for record in self.history if "accuracy" in record]

    @property
    def best(self) -> Record:
        """The first of those with the highest accuracy."""
        return max(self.evaluated, key=lambda record: record["accuracy"])

    def total(self, name: str) -> int | float:
        """Sum of a number over the rounds."""
        return sum(record[name] for record in self.history)


def train(
    task: Task,
    start: Start,
    init: str,
    algorithm: str,
    rates: Rates,
    settings: Settings,
    seed: int,
    *,
    folder: Path | None = None,
    tell: Tell = lambda records: None,
) -> Run:
    """Train from a start.

    Args:
        task: the federation.
        start: where from.
        init: its name.
        algorithm: name in the registry.
        rates: learning rates.
        settings: how.
        seed: of whatever is drawn.
        folder: for the history and checkpoints, from which the run goes on if there are any.
        tell: is told the history after each round.
    """
    model = _model(task, start.head, settings)
    entry = registry()[algorithm]
    options = {k: v for k, v in settings.options.items() if k != "mu" or k in entry.accepts}
    head = start.head if task.network is None else (task.network.params, start.head)
    first = {**start.record, "accuracy": task.accuracy(head)}
    history = History(first, folder and folder / "history.jsonl", tell)
    checkpoint = folder and folder / "checkpoint"
    if checkpoint is None or not checkpoint.exists():
        history([])
    with warnings.catch_warnings():
        # It is said by `Run.diverged`.
        warnings.filterwarnings("ignore", ".*the state is not finite", RuntimeWarning)
        ended = covfree.rounds.run(
            entry.make(model, rates.client, rates.server, **options),
            task.inputs,
            task.data.train_labels,
            task.clients,
            key=jax.random.key(seed),
            rounds=settings.rounds,
            participation=settings.participation,
            evaluate=lambda result: {"accuracy": task.accuracy(result)},
            every=settings.every,
            stop=history,
            checkpoint=checkpoint,
            checkpoint_every=settings.save_every,
            width=settings.width,
        )
    history(ended.history)
    if folder is not None:
        save_result(folder, ended.result, task.data)
    diverged = None if ended.stopped is None else len(history.records)
    predictions = task.predictions(ended.result) if settings.predictions else None
    return Run(init, algorithm, seed, rates, history.records, diverged, predictions=predictions)


def _model(task: Task, head: Any, settings: Settings) -> Model:
    if task.network is None:
        return linear_model(head)
    backbone, params, preprocessing = task.network
    return network_model(
        backbone, params, head, train=settings.train, norms=settings.norms, preprocessing=preprocessing
    )
