"""Training in rounds, as ``covfree finetune`` does it, and a closed-form head on what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util as trees
import jax
import numpy as np

import covfree
from covfree.finetune.registry import Rates
from covfree.studies import variants
from covfree.studies.progress import Progress
from covfree.studies.task import Task
from covfree.studies.training import Training, participation_of, temperature_of
from covfree.studies.tuning import run_training
from experiments.tables.data import Data
from experiments.tables.settings import federation_of


def run(own: Mapping[str, Any], data: Data, seed: int, folder: Path) -> dict[str, Any]:
    """The history of a run, which goes on from its last checkpoint if the folder has one.

    With ``refit``, a method in closed form, ``refitted`` is the accuracy of its head on the trained features.
    """
    task = task_of(own, data, seed)
    training = Training(
        own["init"],
        own["algorithm"],
        Rates(own["client_lr"], own["server_lr"]),
        rounds=own["rounds"],
        participation=participation_of(str(own["participation"]), int(task.clients.max()) + 1),
        train=own["train"],
        norms=own["norms"],
        augment=own.get("augment", False) and task.network is not None,
        options={key: own[key] for key in ("epochs", "batch_size", "mu") if key in own},
        momentum=own.get("momentum", 0.0),
        weight_decay=own.get("weight_decay", 0.0),
        temperature=temperature_of(str(own.get("temperature", "auto"))),
    )
    with Progress(width=12) as progress:
        done = run_training(training, task, out=folder, listener=progress)
    history = [[record["round"], record["accuracy"]] for record in done.evaluated]
    record: dict[str, Any] = {"history": history, "diverged": done.diverged}
    if "refit" in own and done.diverged is None:
        record["refitted"] = 100 * _refitted(own["refit"], task, training.folder(folder, seed))
    return record


def task_of(own: Mapping[str, Any], data: Data, seed: int) -> Task:
    """The federation of a seed. A head alone is trained on features, which do not change then."""
    features = data.load(seed)
    owners = federation_of(own).assign(features, seed).astype(np.int32)
    if own["train"] == "head" or data.images is None:
        return Task(features, owners, seed, features.train_features, features.test_features)
    pixels = data.pixels(seed)
    return Task(features, owners, seed, pixels.train_features, pixels.test_features, data.network(seed))


def _refitted(method: str, task: Task, folder: Path) -> float:
    """Accuracy of a method's head on features of the trained network, which lies in the folder."""
    train_features, test_features = task.inputs, task.test_inputs
    if task.network is not None:
        with np.load(folder / "backbone.npz") as file:
            network = task.network._replace(params=trees.unflatten_dict(dict(file), sep="/"))
        train_features, test_features = (
            np.asarray(network.features(part)) for part in (task.inputs, task.test_inputs)
        )
    head: Any = covfree.fit(
        variants([method])[method].method,
        train_features,
        task.data.train_labels,
        task.clients,
        num_classes=task.data.num_classes,
        key=jax.random.key(task.seed),
    )
    return float(covfree.evaluate(head, test_features, task.data.test_labels))
