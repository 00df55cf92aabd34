"""Prompt tuning of a frozen vision transformer, as ``experiments/prompt_tuning.py`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from prompting import ALGORITHMS, Keys, Training, accuracy, prompted

from covfree import finetune, rounds
from covfree.studies.training import participation_of
from experiments.tables.data import Data
from experiments.tables.settings import federation_of

# Rounds from one checkpoint to the next.
_EVERY = 10


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Accuracy after the last round; a run goes on from its last checkpoint if the folder has one.

    Raises:
        ValueError: if the algorithm is unknown, or the backbone is no vision transformer.
    """
    name = own["algorithm"]
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {name!r}")
    images = data.pixels(seed)
    owners = federation_of(own).assign(images, seed).astype(np.int32)
    network, keys = data.network(seed), Keys.of(seed)
    model = prompted(
        network.backbone,
        network.params,
        finetune.random_head(network.backbone.num_features, images.num_classes, key=keys.head),
        prompts=own["pool"],
        top=own["top"],
        preprocessing=network.preprocessing,
        key=keys.prompts,
    )
    training = Training(own["client_lr"], own["epochs"], own["batch_size"], own.get("mu", 0.0))
    done = rounds.run(
        ALGORITHMS[name](model, training),
        images.train_features,
        images.train_labels,
        owners,
        key=keys.rounds,
        rounds=own["rounds"],
        participation=participation_of(str(own["participation"]), int(owners.max()) + 1),
        checkpoint=rounds.Checkpoint(folder / "checkpoint", every=_EVERY),
    )
    return {
        "value": 100 * accuracy(done.result, np.asarray(images.test_features), images.test_labels),
        "diverged": None if done.stopped is None else len(done.history) + 1,
    }
