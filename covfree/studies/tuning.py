"""Learning rates chosen on training clients that are set aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from covfree.finetune.registry import Rates
from covfree.studies.training import Settings, Start, Task, train

# The default, and a tenth and ten times of it: of equal accuracies the first is taken.
_FACTORS = (1.0, 0.1, 10.0)
ROUNDS = 10


def set_aside(task: Task, seed: int) -> Task:
    """The same federation whose test part is a fifth of the training clients, which take no part.

    Raises:
        ValueError: if there are fewer than two clients.
    """
    holders = np.unique(task.clients[task.clients >= 0])
    if len(holders) < 2:
        raise ValueError(f"--tune: expected at least 2 clients that hold examples, got {len(holders)}")
    # A stream of its own, apart from the split's and the partition's.
    rng = np.random.default_rng([seed, 2])
    aside = np.isin(task.clients, rng.choice(holders, max(1, len(holders) // 5), replace=False))
    kept = ~aside & (task.clients >= 0)
    data = task.data._replace(
        train_features=task.data.train_features[kept],
        train_labels=task.data.train_labels[kept],
        test_features=task.data.train_features[aside],
        test_labels=task.data.train_labels[aside],
    )
    clients = np.unique(task.clients[kept], return_inverse=True)[1].astype(np.int32)
    return Task(data, clients, task.inputs[kept], task.inputs[aside], task.network)


def tune(
    task: Task,
    start: Start,
    init: str,
    algorithm: str,
    base: Rates,
    settings: Settings,
    seed: int,
    *,
    tell: Callable[[int, int, dict[str, Any]], None] = lambda done, number, tried: None,
) -> tuple[Rates, list[dict[str, Any]]]:
    """The rates with which accuracy on clients that were set aside is highest, in the mean of a few rounds.

    A mean, and not what the last round comes to: rates that are too high go up and down.

    Args:
        task: from `set_aside`.
        start: from it, so that it has not seen those clients either.
        init: its name.
        algorithm: name in the registry.
        base: rates in the middle of the grid.
        settings: of the runs; of fewer rounds here.
        seed: of whatever is drawn.
        tell: is told how many pairs of rates were tried, of how many, and what came of the last.

    Returns:
        The rates, and the accuracy with each of the grid; None where it diverged.

    Raises:
        ValueError: if all diverged.
    """
    number = settings.participation
    if isinstance(number, int):
        number = min(number, int(task.clients.max()) + 1)
    rounds = min(ROUNDS, settings.rounds)
    short = replace(settings, rounds=rounds, participation=number, every=1, predictions=False)
    tried: list[dict[str, Any]] = []
    grid = list(product(_FACTORS, _FACTORS))
    for client, server in grid:
        # To what one would write: 0.1 · 0.1 is 0.010000000000000002.
        rates = Rates(*(float(f"{x:.6g}") for x in (base.client * client, base.server * server)))
        run = train(task, start, init, algorithm, rates, short, seed)
        accuracy = None if run.diverged else fmean(record["accuracy"] for record in run.evaluated[1:])
        tried.append({"client_lr": rates.client, "server_lr": rates.server, "accuracy": accuracy})
        tell(len(tried), len(grid), tried[-1])
    sound = [each for each in tried if each["accuracy"] is not None]
    if not sound:
        raise ValueError(f"--tune: {init}, {algorithm}: every learning rate that was tried diverged")
    best = max(sound, key=lambda each: each["accuracy"])
    return Rates(best["client_lr"], best["server_lr"]), tried
