"""Personalised training as in FedCGS's Table 3, for `personalisation.py` and the command of the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree import finetune, rounds
from covfree.core.types import PRNGKey

METHODS = ("local", "fedavg", "fedavg-ft", "fedproto", "fedcgs", "oll")
# FedAvg-FT takes this part of the epochs at home, unless it is told.
_AT_HOME = 5
# Rounds from one checkpoint to the next.
_EVERY = 10


class Part(NamedTuple):
    """Examples and whose they are."""

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray

    def split(self, share: float, rng: np.random.Generator) -> tuple[Part, Part]:
        """Take a share of each client's examples out; the others come first."""
        order = rng.permutation(len(self.labels))
        order = order[np.argsort(self.clients[order], kind="stable")]
        sizes = np.bincount(self.clients)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        out = place < np.rint(share * sizes)[self.clients[order]]
        return Part(*(x[order[~out]] for x in self)), Part(*(x[order[out]] for x in self))


class Start(NamedTuple):
    """What all methods start from.

    Attributes:
        model: the model.
        again: makes a model to train on from what a run of FedAvg gives.
        prototypes: class means of all clients' features.
    """

    model: finetune.Model
    again: Callable[[Any], finetune.Model]
    prototypes: finetune.Prototypes


def personalised(
    method: str,
    start: Start,
    train: Part,
    test: Part,
    *,
    client: Any,
    epochs: int,
    strength: float,
    key: PRNGKey,
    checkpoint: Path | None = None,
    tuned: int | None = None,
    **options: Any,
) -> tuple[np.ndarray, int | None]:
    """Train a model of each client's own, or FedAvg's one for all; all clients take part in each round.

    Args:
        method: one of `METHODS`.
        start: what it starts from.
        train: the clients' examples.
        test: examples that they hold back.
        client: the clients' optimiser, or its rate.
        epochs: passes over a client's examples: in that many rounds of one, or without a break where nothing
            comes back.
        strength: λ of FedProto and FedCGS.
        key: of all draws.
        checkpoint: a folder in which rounds are saved, and from which they go on.
        tuned: epochs of FedAvg-FT at home, after as many rounds as FedAvg has; None to take a fifth of them.
        options: ``batch_size``, as algorithms of `covfree.finetune` have it.

    Returns:
        Accuracy of each client on its own test examples; and the round that gave no finite model and was
        undone, so that these are not the accuracies of what was asked for. None if there was none.
    """
    model, (num_classes, dim) = start.model, start.prototypes.mean.shape
    diverged: list[int] = []
    at_home = {"client": client, "epochs": epochs, **options}

    def run(algorithm: rounds.Algorithm, number: int) -> Any:
        # FedAvg-FT has two runs, of different names.
        saved = checkpoint and rounds.Checkpoint(checkpoint / algorithm.name, every=_EVERY)
        done = rounds.run(algorithm, *train, key=key, rounds=number, checkpoint=saved)
        if done.stopped is not None:
            diverged.append(len(done.history) + 1)
        return done.result

    known = None
    if method == "local":
        result = run(finetune.local_only(model, **at_home), 1)
    elif method == "fedcgs":
        result = run(finetune.fedcgs_personal(model, start.prototypes, strength, **at_home), 1)
    elif method == "fedproto":
        result = run(finetune.fedproto(model, num_classes, dim, strength, client, **options), epochs)
    elif method == "oll":
        result = run(finetune.oll(model, client, **options), epochs)
        known = finetune.client_classes(train.labels, train.clients, num_classes=num_classes)
    elif method in ("fedavg", "fedavg-ft"):
        last = 0
        if method == "fedavg-ft":
            last = epochs // _AT_HOME if tuned is None else tuned
        before = epochs - last if tuned is None else epochs
        result = start.again(run(finetune.fedavg(model, client, **options), before))
        if last:
            result = run(finetune.local_only(result, client, epochs=last, **options), 1)
    else:
        raise ValueError(f"algorithm: expected one of {', '.join(METHODS)}, got {method!r}")
    return finetune.client_accuracy(result, *test, own_classes=known), (diverged or [None])[0]
