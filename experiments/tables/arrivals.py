"""Accuracy of a method in closed form round by round, as clients arrive and send what they have, once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covfree.rounds import participation
from covfree.studies.arrivals import arrivals
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
    history: list[list[float]] = []
    for record, _ in arrivals(method_of(own), features, owners, schedule, seed=seed):
        history.append([record["round"], record["accuracy"]])
        if 100 * record["accuracy"] >= own.get("reaches", np.inf):
            break
    return {"history": history}
