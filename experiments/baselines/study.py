"""The federations of `fashion_mnist.py`, one for each seed and α, and what may be measured on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from baselines.cnn import CNN, applied, cnn_model, new_variables
from baselines.distillation import Networks, State, distil
from baselines.generator import Generator
from baselines.idx import Images
from baselines.local_training import average, train_clients

import covfree
from covfree import rounds
from covfree.core.keys import derive
from covfree.data.partitions import dirichlet

# Classes of the images that the frozen backbone is trained on: half of all.
SEEN = 5
# As DENSE's authors have it.
FEWEST = 10
ROUND_BATCH = 64


@dataclass(frozen=True)
class Options:
    """Sizes of the study; see `fashion_mnist.py`."""

    images: int
    clients: int
    kernel: int
    local_epochs: int
    rounds: int
    round_epochs: int
    tuning_rounds: int
    distillation_epochs: int
    generator_steps: int
    generator_width: int
    distillation_batch: int | None
    every: int


class Measured(NamedTuple):
    """What came of a method.

    Attributes:
        accuracy: of each class of the test images, which has the same number of each.
        bytes_up: of all clients, in all rounds.
        history: pairs of a round, or an epoch of the server's, and the accuracy after it.
        ensemble: accuracy of the ensemble that was distilled.
    """

    accuracy: list[float]
    bytes_up: int
    history: list[tuple[int, float]]
    ensemble: float | None = None


class Seed:
    """What all methods of a seed share: the clients' images, others, and the start of all networks."""

    def __init__(self, options: Options, train: Images, test: Images, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(train.labels))
        self.options, self.test, self.seed = options, test, seed
        self.train, self.others = train[order[: options.images]], train[order[options.images :]]
        self.num_classes = int(train.labels.max()) + 1
        self.cnn = CNN(self.num_classes, kernel=options.kernel)
        self.start = new_variables(self.cnn, train.images.shape[1:], self.key("start"))

    def key(self, stream: str) -> Any:
        """The key of a named stream."""
        return derive(jax.random.key(self.seed), stream)

    def predictions(self, variables: Any) -> np.ndarray:
        """Logits of the test images."""
        return applied(self.cnn, variables, self.test.images)

    def measured(self, logits: np.ndarray, bytes_up: int, **more: Any) -> Measured:
        """A method's accuracy by class, from its logits of the test images."""
        right = logits.argmax(1) == self.test.labels
        counts = np.bincount(self.test.labels)
        by_class = np.bincount(self.test.labels, right) / counts
        return Measured(by_class.tolist(), bytes_up, **{"history": [], **more})

    def accuracy(self, logits: np.ndarray) -> float:
        """Share of right predictions."""
        return float((logits.argmax(1) == self.test.labels).mean())

    def in_one_place(self, data: Images, epochs: int) -> Any:
        """Train the network on images of one place, as a client does."""
        alone = np.zeros(len(data.labels), np.int32)
        model = cnn_model(self.cnn, self.start)
        members = train_clients(model, data, alone, epochs=epochs, key=self.key("central"))
        return jax.tree.map(lambda x: x[0], members)

    def centralised(self) -> Measured:
        """The network trained on all clients' images in one place."""
        variables = self.in_one_place(self.train, self.options.local_epochs)
        return self.measured(self.predictions(variables), 0)

    @cached_property
    def backbone(self) -> Any:
        """The network trained on the first half of the classes, on images that no client has."""
        seen = self.others[self.others.labels < SEEN]
        if len(seen.labels) == 0:
            raise ValueError("images: expected some to be left for the backbone, got all of them as clients'")
        return self.in_one_place(seen, self.options.local_epochs)


class Federation:
    """All methods on the clients of a seed and an α."""

    def __init__(self, shared: Seed, alpha: float) -> None:
        self.shared, self.options = shared, shared.options
        self.clients = dirichlet(
            shared.train.labels,
            shared.options.clients,
            alpha,
            min_partition_size=FEWEST,
            max_attempts=100_000,
            seed=shared.seed,
        )

    @cached_property
    def members(self) -> Any:
        """Each client's own network."""
        model = cnn_model(self.shared.cnn, self.shared.start)
        epochs, key = self.options.local_epochs, self.shared.key("local")
        return train_clients(model, self.shared.train, self.clients, epochs=epochs, key=key)

    @cached_property
    def uploads(self) -> int:
        """Bytes of all clients' networks."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.members))

    def share(self, alike: bool) -> np.ndarray:
        """The clients' weights: all the same, or their shares of the examples."""
        count = self.options.clients
        sizes = np.ones(count) if alike else np.bincount(self.clients, minlength=count)
        return sizes / sizes.sum()

    def one_shot_average(self, alike: bool) -> Measured:
        """The mean of the clients' networks."""
        logits = self.shared.predictions(average(self.members, self.share(alike)))
        return self.shared.measured(logits, self.uploads)

    @cached_property
    def member_logits(self) -> np.ndarray:
        """[clients, images, classes] of the test images."""
        each = [jax.tree.map(lambda x, i=i: x[i], self.members) for i in range(self.options.clients)]
        return np.stack([self.shared.predictions(variables) for variables in each])

    def ensemble(self, alike: bool) -> Measured:
        """The mean of the clients' logits."""
        logits = np.tensordot(self.share(alike), self.member_logits, 1)
        return self.shared.measured(logits, self.uploads)

    def distilled(self, method: Any) -> Measured:
        """One network that learns from the ensemble: ``method`` is `dense` or `co_boosting`."""
        options, shared = self.options, self.shared
        settings = replace(
            method.PUBLISHED,
            epochs=options.distillation_epochs,
            steps=options.generator_steps,
            batch_size=options.distillation_batch or method.PUBLISHED.batch_size,
        )
        height, _, channels = shared.train.images.shape[1:]
        networks = Networks(shared.cnn, Generator(height, channels, options.generator_width))
        history = []

        def report(state: State) -> None:
            if int(state.epoch) % options.every == 0 or int(state.epoch) == settings.epochs:
                history.append((int(state.epoch), shared.accuracy(shared.predictions(state.student))))

        key = shared.key("distillation")
        state = distil(method.epoch, networks, settings, self.members, key=key, report=report)
        taught = np.tensordot(np.asarray(state.weights), self.member_logits, 1)
        return shared.measured(
            shared.predictions(state.student),
            self.uploads,
            history=history,
            ensemble=shared.accuracy(taught),
        )

    def in_rounds(self, make: Callable[..., Any], start: Any, number: int) -> Measured:
        """Federated optimisation, all clients in each round."""
        shared, options = self.shared, self.options
        algorithm = make(cnn_model(shared.cnn, start), epochs=options.round_epochs, batch_size=ROUND_BATCH)
        run = rounds.run(
            algorithm,
            shared.train.images,
            shared.train.labels,
            self.clients,
            key=shared.key("rounds"),
            rounds=number,
            evaluate=rounds.Evaluation(
                lambda variables: {"accuracy": shared.accuracy(shared.predictions(variables))},
                every=options.every,
            ),
        )
        history = [(0, shared.accuracy(shared.predictions(start)))]
        history += [
            (record["round"] + 1, record["accuracy"]) for record in run.history if "accuracy" in record
        ]
        sent = sum(record["bytes_up"] for record in run.history)
        return shared.measured(shared.predictions(run.result), sent, history=history)

    @cached_property
    def features(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the clients' and of the test images, from the frozen backbone."""
        shared = self.shared
        parts = shared.train.images, shared.test.images
        one, other = (applied(shared.cnn, shared.backbone, part, method="features") for part in parts)
        return one, other

    def head(self, method: covfree.Method) -> Measured:
        """A training-free method on the frozen backbone's features."""
        train, test = self.features
        labels, classes = self.shared.train.labels, self.shared.num_classes
        head = covfree.fit(
            method, train, labels, self.clients, num_classes=classes, key=self.shared.key("head")
        )
        sent = covfree.sent_bytes(method, labels, self.clients, dim=train.shape[1])
        return self.shared.measured(np.asarray(head(jnp.asarray(test))), sent.statistics)

    @cached_property
    def tuning_start(self) -> Any:
        """The backbone under FedCOF's head, at the temperature that fits the clients' images."""
        train, labels = self.features[0], self.shared.train.labels
        head: Any = covfree.fit(
            covfree.fedcof(), train, labels, self.clients, num_classes=self.shared.num_classes
        )
        head = covfree.with_temperature(head, covfree.calibrate_temperature(head, train, labels))
        params = self.shared.backbone["params"] | {"head": {"kernel": head.weight, "bias": head.bias}}
        return self.shared.backbone | {"params": params}
