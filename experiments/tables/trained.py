"""Training in rounds, as ``covfree finetune`` does it, and a closed-form head on what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util as trees
import jax
import numpy as np

import covfree
from covfree.cli.finetune import participation_of
from covfree.data.extract import features_of_pixels
from covfree.finetune.registry import Rates
from covfree.studies import curves, variants
from covfree.studies.progress import progress_bar
from covfree.studies.training import Network, Settings, Task, make_start, train
from experiments.tables.data import Data
from experiments.tables.settings import federation_of

_BATCH = 64


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """The history of a run, which goes on from its last checkpoint if the folder has one.

    With ``refit``, a method in closed form, ``refitted`` is the accuracy of its head on the trained features.
    """
    task = task_of(own, data, seed)
    init, algorithm = own["init"], own["algorithm"]
    start = make_start(init, task, seed)
    settings = Settings(
        rounds=own["rounds"],
        participation=participation_of(str(own["participation"]), int(task.clients.max()) + 1),
        train=own["train"],
        norms=own["norms"],
        options={key: own[key] for key in ("epochs", "batch_size", "mu") if key in own},
    )
    rates = Rates(own["client_lr"], own["server_lr"])
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bar(width=12) as bar:
        name = f"{init} → {algorithm}, seed {seed}"
        live = curves.Live(bar, bar.add_task(name), name, settings.rounds)
        done = train(task, start, init, algorithm, rates, settings, seed, folder=folder, tell=live)
    history = [[record["round"], record["accuracy"]] for record in done.evaluated]
    record: dict[str, Any] = {"history": history, "diverged": done.diverged}
    if "refit" in own and done.diverged is None:
        record["refitted"] = 100 * _refitted(own["refit"], task, folder, seed)
    return record


def task_of(own: Mapping[str, Any], data: Data, seed: int) -> Task:
    """The federation of a seed. A head alone is trained on features, which do not change then."""
    features = data.load(seed)
    owners = federation_of(own).assign(features, seed).astype(np.int32)
    covfree.check(features.train_features, features.train_labels, owners, num_classes=features.num_classes)
    if own["train"] == "head" or data.images is None:
        return Task(features, owners, features.train_features, features.test_features, None)
    pixels = data.pixels(seed)
    return Task(features, owners, pixels.train_features, pixels.test_features, data.network(seed))


def features_of(network: Network, pixels: np.ndarray) -> np.ndarray:
    """Features of images."""
    parts = []
    for first in range(0, len(pixels), _BATCH):
        batch = pixels[first : first + _BATCH]
        # Filled up, so that all batches share a compiled function.
        filled = np.pad(batch, [(0, _BATCH - len(batch)), *[(0, 0)] * 3])
        made = features_of_pixels(network.params, filled, network.backbone, network.preprocessing)
        parts.append(np.asarray(made)[: len(batch)])
    return np.concatenate(parts)


def _refitted(method: str, task: Task, folder: Path, seed: int) -> float:
    """Accuracy of a method's head on features of the trained network, which lies in the folder."""
    train_features, test_features = task.inputs, task.test_inputs
    if task.network is not None:
        with np.load(folder / "backbone.npz") as file:
            network = task.network._replace(params=trees.unflatten_dict(dict(file), sep="/"))
        train_features, test_features = (
            features_of(network, part) for part in (task.inputs, task.test_inputs)
        )
    head: Any = covfree.fit(
        variants([method])[method].method,
        train_features,
        task.data.train_labels,
        task.clients,
        num_classes=task.data.num_classes,
        key=jax.random.key(seed),
    )
    return float(covfree.evaluate(head, test_features, task.data.test_labels))
