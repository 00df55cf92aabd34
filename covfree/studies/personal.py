"""Train and test a model for each client, as in FedCGS's Table 3, by local training, FedAvg and others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import covfree
import covfree.rounds
from covfree import finetune
from covfree.core.keys import derive
from covfree.core.types import PRNGKey
from covfree.data import FeatureSet
from covfree.finetune.model import Norms
from covfree.studies.federation import Federation
from covfree.studies.starts import From, Temperature, start_of
from covfree.studies.task import Network, Task
from covfree.studies.training import descent

TITLES = {
    "local": "Local training",
    "fedavg": "FedAvg, one model",
    "fedavg-ft": "FedAvg-FT",
    "fedproto": "FedProto",
    "fedcgs": "FedCGS",
    "oll": "OLL",
    "afl": "AFL, ridge at home",
}
# Rounds between checkpoints.
_EVERY = 10


class Part(NamedTuple):
    """Features, labels and clients of some examples."""

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray

    def split(self, share: float, rng: np.random.Generator) -> tuple[Part, Part]:
        """Split off a random share of each client's examples; return the rest, then the share."""
        order = rng.permutation(len(self.labels))
        order = order[np.argsort(self.clients[order], kind="stable")]
        sizes = np.bincount(self.clients)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        out = place < np.rint(share * sizes)[self.clients[order]]
        return Part(*(x[order[~out]] for x in self)), Part(*(x[order[out]] for x in self))


class PersonalStart(NamedTuple):
    """The model and the class means that all methods start from.

    Attributes:
        model: the model before training.
        again: function from the result of a FedAvg run to a model for further training.
        prototypes: class means of all clients' features.
    """

    model: finetune.Model
    again: Callable[[Any], finetune.Model]
    prototypes: finetune.Prototypes


class Personalised(NamedTuple):
    """The result of personalised training.

    Attributes:
        accuracy: [clients] the share of correct predictions on a client's own test examples; NaN if it has
            none.
        diverged: the first round after which the model was not finite, or None. This round is undone and
            ends the training, so the accuracies are those before it.
        bytes_up: bytes that all clients sent.
        bytes_down: bytes that all clients received.
        seconds: the time of training; for AFL, of training and testing.
    """

    accuracy: np.ndarray
    diverged: int | None
    bytes_up: int
    bytes_down: int
    seconds: float


def _closed_form(train: Part, test: Part, num_classes: int) -> Personalised:
    """Fit AFL's head to all clients' examples; then fit and test a head at each client by `ridge_at_home`."""
    if train.features.ndim != 2:
        raise ValueError("methods: afl: expected features, got images")
    begun, method = time.perf_counter(), covfree.afl()
    head = covfree.fit(method, *train, num_classes=num_classes)
    models = finetune.ridge_at_home(head, *train)
    accuracy = finetune.client_accuracy(models, *test)
    sent = covfree.sent_bytes(method, train.labels, train.clients, dim=train.features.shape[1])
    down = models.num_clients * sum(leaf.nbytes for leaf in (head.weight, head.bias))
    return Personalised(accuracy, None, sent.total, down, time.perf_counter() - begun)


@dataclass(frozen=True)
class Personalisation:
    """How models are personalised. The defaults are taken from FedCGS's Table 3, where the paper states them.

    Attributes:
        init: `covfree.studies.starts.RANDOM`, or the method whose head is the start of all clients.
        rounds: the number of rounds of methods that send something. In a round, every client passes once
            over its examples.
        epochs: the number of passes over a client's examples in local training and FedCGS, which take a
            single round.
        home: the number of passes over a client's examples in FedAvg-FT, after the rounds; not stated by the
            paper.
        strength: λ of FedProto and FedCGS, the weight of the features' distance from class means in the loss;
            not stated by the paper.
        rate: learning rate of the clients.
        momentum: momentum of the clients' descent.
        weight_decay: weight decay of the clients' descent, as in PyTorch.
        batch_size: examples per gradient step.
        temperature: temperature of a head in closed form, see `covfree.studies.training.Training`.
        rank: rank of the adapter that is trained between features and head. With images there is no adapter:
            the whole network is trained.
        norms: how a network's batch norms train; see `covfree.finetune.network_model`.
    """

    init: str = "random"
    rounds: int = 100
    epochs: int = 200
    home: int = 20
    strength: float = 0.01
    rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 5e-4
    batch_size: int = 128
    temperature: Temperature = "auto"
    rank: int = 32
    norms: Norms = "frozen"

    def start(self, task: Task) -> PersonalStart:
        """Return what all methods start from: a model before training, and the class means of the features.

        The model is a linear head on an adapter or, if the task has a network, on this network.
        """
        data, network = task.data, task.network
        begun = start_of(From(self.init, self.temperature, "once", 1.0, 1, 0), task)
        fixed = begun.temperature
        labels = np.where(task.clients >= 0, data.train_labels, -1)
        means = finetune.Prototypes(*covfree.class_means(data.train_features, labels, data.num_classes))

        def model(network: Network, params: Any, head: Any) -> finetune.Model:
            about = {"norms": self.norms, "preprocessing": network.preprocessing}
            return finetune.network_model(network.backbone, params, head, **about)

        if network is None:
            # Use another random key than the head's.
            own = derive(jax.random.key(task.seed), "adapter")
            first = finetune.adapter_model(begun.head, rank=self.rank, key=own)
        else:
            first = model(network, network.params, begun.head)

        def again(result: Any) -> finetune.Model:
            if fixed is not None:
                # Undo the division of the scores by the temperature, as the next model divides them again.
                result = covfree.with_temperature(result, 1 / fixed)
            if network is None:
                return begun.at_temperature(finetune.adapter_model(result))
            return begun.at_temperature(model(network, result.feature_map.params, result.head))

        return PersonalStart(begun.at_temperature(first), again, means)

    def __call__(self, method: str, task: Task, checkpoint: Path | None = None) -> Personalised:
        """Train by a method, and measure each client's accuracy on its own test examples (see `dealt`)."""
        data = task.data
        assert data.test_clients is not None
        # Clients numbered above all training clients have no model.
        tested = np.where(data.test_clients <= task.clients.max(), data.test_clients, -1)
        train = Part(task.inputs, data.train_labels, task.clients)
        test = Part(task.test_inputs, data.test_labels, tested.astype(np.int32))
        return self.trained(method, self.start(task), train, test, jax.random.key(task.seed), checkpoint)

    def trained(
        self,
        method: str,
        start: PersonalStart,
        train: Part,
        test: Part,
        key: PRNGKey,
        checkpoint: Path | None = None,
    ) -> Personalised:
        """Train a model for each client, or one for all by FedAvg; test on the clients' test examples.

        Args:
            method: one of `TITLES`.
            start: the initial model and the class means.
            train: the clients' training examples.
            test: the clients' test examples.
            key: the key of all random draws.
            checkpoint: a folder in which rounds are saved, and from which they are resumed.
        """
        if method not in TITLES:
            raise ValueError(f"methods: expected some of {', '.join(TITLES)}, got {method!r}")
        model, (num_classes, dim) = start.model, start.prototypes.mean.shape
        history: list[dict[str, Any]] = []
        diverged: list[int] = []

        def run(algorithm: covfree.rounds.Algorithm, number: int = 1) -> Any:
            # FedAvg-FT consists of two runs; their names differ, so each has a checkpoint of its own.
            saved = checkpoint and covfree.rounds.Checkpoint(checkpoint / algorithm.name, every=_EVERY)
            with warnings.catch_warnings():
                # Silence this warning, as `Personalised.diverged` reports the divergence.
                warnings.filterwarnings("ignore", ".*is not finite", RuntimeWarning)
                done = covfree.rounds.run(algorithm, *train, key=key, rounds=number, checkpoint=saved)
            history.extend(done.history)
            if done.stopped is not None:
                diverged.append(len(done.history) + 1)
            return done.result

        known, size = None, dict[str, Any](batch_size=self.batch_size)
        client = descent(self.rate, self.momentum, self.weight_decay)
        if method == "local":
            result = run(finetune.local_only(model, client, epochs=self.epochs, **size))
        elif method == "afl":
            return _closed_form(train, test, num_classes)
        elif method == "fedcgs":
            fixed, size["epochs"] = start.prototypes, self.epochs
            result = run(finetune.fedcgs_personal(model, fixed, self.strength, client, **size))
        elif method == "fedproto":
            own = finetune.fedproto(model, num_classes, dim, self.strength, client, **size)
            result = run(own, self.rounds)
        elif method == "oll":
            result = run(finetune.oll(model, client, **size), self.rounds)
            known = finetune.client_classes(train.labels, train.clients, num_classes=num_classes)
        else:
            result = start.again(run(finetune.fedavg(model, client, **size), self.rounds))
            if method == "fedavg-ft" and self.home:
                result = run(finetune.local_only(result, client, epochs=self.home, **size))
        accuracy = finetune.client_accuracy(result, *test, own_classes=known)
        up, down, seconds = (sum(r[name] for r in history) for name in ("bytes_up", "bytes_down", "seconds"))
        return Personalised(accuracy, (diverged or [None])[0], up, down, seconds)


def dealt(
    data: FeatureSet,
    federation: Federation,
    test_share: float,
    seed: int,
    pixels: tuple[np.ndarray, np.ndarray] | None = None,
    network: Network | None = None,
) -> Task:
    """Make a task in which each client has both training and test examples.

    If the data has no clients, all of its examples (the test part too) are divided among clients by
    ``federation``. If only the training examples have clients, the test part is left out. In both cases, a
    random share ``test_share`` of each client's examples become its test examples. If training and test
    examples have clients, the data stays as it is. The task's inputs are ``pixels`` (training and test
    images) or, without them, the features.
    """
    features = data.train_features, data.test_features
    inputs = features if pixels is None else pixels
    if data.clients is not None and data.test_clients is not None:
        return Task(data, data.clients.astype(np.int32), seed, *inputs, network)
    if data.clients is not None:
        # Leave the test examples out, as they belong to no client.
        labels, owners, number = data.train_labels, data.clients, 1
    else:
        labels, number = np.concatenate([data.train_labels, data.test_labels]), 2
        owners = federation.assign(data._replace(train_labels=labels), seed, warn=False)
    every, own = (np.concatenate(pair[:number]) for pair in (features, inputs))
    kept = np.flatnonzero(owners >= 0)
    # Use another seed than the partition's. With the same one, the test part could be the very examples that
    # `dominant_classes` deals out uniformly, as both are drawn by a random permutation.
    places = Part(kept, labels[kept], owners[kept])
    train, test = places.split(test_share, np.random.default_rng([1, seed]))
    owners = train.clients.astype(np.int32)
    data = data._replace(
        train_features=every[train.features],
        train_labels=train.labels,
        test_features=every[test.features],
        test_labels=test.labels,
        clients=owners,
        test_clients=test.clients.astype(np.int32),
    )
    return Task(data, owners, seed, own[train.features], own[test.features], network)
