"""Personalised training of a whole network, as ``covfree personalise`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covfree.studies.personal import Personalisation, dealt
from experiments.tables.data import Data
from experiments.tables.settings import federation_of


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """Mean accuracy of the clients, each on examples of its own that it holds back.

    Training and test examples of the data are dealt to clients together. A run of several rounds goes on from
    its last checkpoint if the folder has one.
    """
    images = data.pixels(seed)
    pixels = images.train_features, images.test_features
    features = data.load(seed)._replace(clients=None)
    task = dealt(features, federation_of(own), own["test_share"], seed, pixels, data.network(seed))
    settings = Personalisation(
        rounds=own["epochs"],
        epochs=own["epochs"],
        home=own["epochs"] // 5,
        strength=own["strength"],
        rate=own["client_lr"],
        momentum=own["momentum"],
        weight_decay=own["weight_decay"],
        batch_size=own["batch_size"],
        norms=own["norms"],
    )
    done = settings(own["algorithm"], task, folder)
    return {"value": 100 * float(np.nanmean(done.accuracy)), "diverged": done.diverged}
