"""Accuracy of a method in closed form round by round, as clients arrive and send what they have, once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import covfree
from covfree.rounds import participation
from covfree.studies.training import participation_of
from experiments.tables.data import Data
from experiments.tables.settings import federation_of, method_of


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Accuracy after each round, with all clients that were drawn until then; until it is high enough.

    Each round draws ``participation`` clients, which may have come before; those that have send nothing more.
    """
    features = data.load(seed)
    owners = federation_of(own).assign(features, seed).astype(np.int32)
    number = int(owners.max()) + 1
    per_round = participation_of(str(own["participation"]), number)
    schedule = participation(number, per_round, own["rounds"], seed=seed)
    method, came, accuracy = method_of(own), np.zeros(number, bool), 0.0
    history: list[list[float]] = []
    for place, drawn in enumerate(schedule, start=1):
        new = ~came[drawn]
        came[drawn] = True
        # Who came before sends nothing more; some clients hold no examples.
        if np.isin(owners, drawn[new]).any():
            here = np.flatnonzero((owners >= 0) & came[owners])
            head: Any = covfree.fit(
                method,
                features.train_features[here],
                features.train_labels[here],
                owners[here],
                num_classes=features.num_classes,
                key=jax.random.key(seed),
            )
            accuracy = float(covfree.evaluate(head, features.test_features, features.test_labels))
        history.append([place, accuracy])
        if 100 * accuracy >= own.get("reaches", np.inf):
            break
    return {"history": history}
