"""Run a training and store it in a folder; tune its learning rates on training clients set aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from covfree.finetune.registry import Rates
from covfree.studies.history import History
from covfree.studies.progress import Listener
from covfree.studies.result import Run
from covfree.studies.run_folder import read_settings, write_settings
from covfree.studies.task import Task
from covfree.studies.train import train
from covfree.studies.training import Training

# The grid multiplies the given rates by these. 1 comes first, as the first of equal accuracies wins.
_FACTORS = (1.0, 0.1, 10.0)
_ROUNDS = 10


def run_training(
    training: Training,
    task: Task,
    *,
    out: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    predictions: bool = False,
    listener: Listener | None = None,
) -> Run:
    """Run a training, from its last checkpoint if it was stopped earlier, and return its `Run`.

    ``out`` is the study's folder, in which ``settings`` are stored with the run. If `Training.tune` is set,
    the learning rates are tuned first.
    """
    listener = listener or Listener()
    folder = None if out is None else training.folder(out, task.seed)
    earlier = None if folder is None else read_settings(folder, "rates", "tried")
    rates, tried = training.rates, None
    if earlier is not None:
        rates, tried = Rates(*earlier["rates"]), earlier["tried"]
    elif training.tune:
        rates, tried = tuned(training, task, listener)
    if folder is not None and earlier is None:
        write_settings(folder, settings or {}, rates=list(rates), tried=tried)
    name = f"{training.name}, seed {task.seed}"
    history = History(name, training.rounds, folder and folder / "history.jsonl", listener)
    run = train(replace(training, rates=rates), task, folder, history, predictions)
    if run.diverged is not None:
        listener.say(
            f"{name}: diverged in round {run.diverged}; what came before is kept. A smaller "
            f"--client-lr (now {rates.client:g}) or --server-lr ({rates.server:g}) may help"
        )
    elif run.accuracy < 0.5 * run.trained[0]["accuracy"]:
        listener.say(
            f"{name}: ends at {run.accuracy:.1%}, less than half of what it started from; a smaller "
            f"--client-lr (now {rates.client:g}) or --server-lr ({rates.server:g}) may help"
        )
    return replace(run, tried=tried)


def set_aside(task: Task) -> Task:
    """Return a task that tests on the examples of a fifth of the clients, and trains on all other clients."""
    holders = np.unique(task.clients[task.clients >= 0])
    if len(holders) < 2:
        raise ValueError(f"--tune: expected at least 2 clients that hold examples, got {len(holders)}")
    # Use another seed than those of the split and the partition.
    rng = np.random.default_rng([task.seed, 2])
    aside = np.isin(task.clients, rng.choice(holders, max(1, len(holders) // 5), replace=False))
    kept = ~aside & (task.clients >= 0)
    data = task.data._replace(
        train_features=task.data.train_features[kept],
        train_labels=task.data.train_labels[kept],
        test_features=task.data.train_features[aside],
        test_labels=task.data.train_labels[aside],
    )
    clients = np.unique(task.clients[kept], return_inverse=True)[1].astype(np.int32)
    return Task(data, clients, task.seed, task.inputs[kept], task.inputs[aside], task.network)


def tuned(training: Training, task: Task, listener: Listener) -> tuple[Rates, list[dict[str, Any]]]:
    """Choose the learning rates by trainings of at most ten rounds, tested on clients that do not train.

    The best rates have the highest mean accuracy over the rounds. The mean is more stable than the accuracy
    of the last round, as the accuracy oscillates if rates are too high.

    Args:
        training: the training, whose rates are in the middle of the grid.
        task: the federation. Closed-form heads are fitted anew, without the clients set aside.
        listener: receives the accuracy of each pair of rates.

    Returns:
        The rates, and a dict for each pair of the grid: its rates and accuracy, None if training diverged.
    """
    task.aside = apart = task.aside or set_aside(task)
    number = training.participation
    if isinstance(number, int):
        number = min(number, int(apart.clients.max()) + 1)
    rounds, name = min(_ROUNDS, training.rounds), f"{training.name}, seed {task.seed}"
    tried: list[dict[str, Any]] = []
    grid = list(product(_FACTORS, _FACTORS))
    for client, server in grid:
        # Round, as 0.1 · 0.1 is 0.010000000000000002.
        rates = Rates(
            *(float(f"{x:.6g}") for x in (training.rates.client * client, training.rates.server * server))
        )
        once = replace(training, rates=rates, rounds=rounds, participation=number, every=1)
        run = train(replace(once, start_rounds="once", restart=0), apart)
        accuracy = None if run.diverged else fmean(record["accuracy"] for record in run.evaluated[1:])
        tried.append({"client_lr": rates.client, "server_lr": rates.server, "accuracy": accuracy})
        share = "diverged" if accuracy is None else f"{100 * accuracy:.2f} %"
        pair = f"--client-lr {rates.client:g} --server-lr {rates.server:g}"
        listener.step(
            f"{name}: tuning, {pair}: {share}",
            len(tried),
            len(grid),
            f"{name}: tuning {len(tried)}/{len(grid)}, {pair}: {share}",
        )
    sound = [each for each in tried if each["accuracy"] is not None]
    if not sound:
        init, algorithm = training.init, training.algorithm
        raise ValueError(f"--tune: {init}, {algorithm}: every learning rate that was tried diverged")
    best = max(sound, key=lambda each: each["accuracy"])
    listener.say(
        f"{name}: tuned to --client-lr {best['client_lr']:g} --server-lr {best['server_lr']:g}, by the mean "
        f"accuracy of rounds 1 to {rounds} on clients set aside"
    )
    return Rates(best["client_lr"], best["server_lr"]), tried
