"""Run one training of ``covfree finetune``: rounds, perhaps with closed-form stages between the rounds.

In a closed-form stage, clients send statistics of features, from which the server solves for a new head.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covfree
import covfree.rounds
from covfree.core.atomic import replacing
from covfree.core.keys import derive, participation_seed
from covfree.finetune import (
    Model,
    augmented,
    linear_model,
    lora,
    network_model,
    prompt_model,
    random_prompts,
)
from covfree.rounds.schedule import as_schedule
from covfree.studies.history import History
from covfree.studies.progress import Listener
from covfree.studies.result import Record, Run
from covfree.studies.run_folder import save_result
from covfree.studies.starts import Start, start_of
from covfree.studies.task import Task
from covfree.studies.training import Training, algorithm_of

# The file in a run's checkpoint folder with the result of the last closed-form stage.
_START = "start.npz"


class _Stretch(NamedTuple):
    """The start of a stretch of training: the rounds between one closed-form stage and the next.

    Attributes:
        number: 0 for the first stretch, 1 for the next, ….
        model: the model from which the stretch starts.
        records: the history before the stretch, its closed-form stage included.
    """

    number: int
    model: Model
    records: list[Record]


def train(
    training: Training,
    task: Task,
    folder: Path | None = None,
    history: History | None = None,
    predictions: bool = False,
) -> Run:
    """Run a training, from its checkpoint if there is one, and return its `Run`.

    With ``folder``, checkpoints and the trained head are saved there. ``history`` gets each round's record.
    ``predictions`` says whether the run gets counts of the test predictions.
    """
    history = history or History("", training.rounds, None, Listener())
    key, count = jax.random.key(task.seed), int(task.clients.max()) + 1
    schedule = as_schedule(training.participation, count, training.rounds, seed=participation_seed(key))
    head = start_of(training.start, task).head
    flops = _flops(training, task, head, schedule)
    checkpoint = folder and folder / "checkpoint"
    anew = checkpoint is None or not checkpoint.exists()
    stretch = None if training.restart == 0 or checkpoint is None else _kept(training, task, checkpoint)
    stretch = stretch or _first(training, task)
    while True:
        number, model = stretch.number, stretch.model
        since, length = number * training.restart, training.stretches[number]
        history.begin(stretch.records, flops[since:])
        if anew or not length:
            history([])
        result, stopped = model.result(model.trained, model.statistics), None
        if length:
            own = checkpoint if checkpoint is None or not training.restart else checkpoint / str(number)
            with warnings.catch_warnings():
                # Silence this warning, as `Run.diverged` reports the divergence.
                warnings.filterwarnings("ignore", ".*the state is not finite", RuntimeWarning)
                ended = covfree.rounds.run(
                    _algorithm(training, model),
                    task.inputs,
                    task.data.train_labels,
                    task.clients,
                    key=derive(key, f"stretch {number}") if number else key,
                    rounds=length,
                    participation=schedule[since : since + length],
                    evaluate=covfree.rounds.Evaluation(
                        lambda result: {"accuracy": task.accuracy(result)}, every=training.every
                    ),
                    stop=history,
                    checkpoint=own and covfree.rounds.Checkpoint(own, every=training.save_every),
                    place=covfree.rounds.Placement(width=training.width),
                )
            history(ended.history)
            result, stopped = ended.result, ended.stopped
        if stopped is not None or number + 1 == len(training.stretches):
            break
        stretch, anew = _next(training, task, stretch, result, history.records), True
        if checkpoint is not None:
            _keep(stretch, checkpoint)
    if folder is not None:
        save_result(folder, result, task.data, task.seed)
    records = history.records
    total: dict[str, Any] = {
        name: sum(line[name] for line in records) for name in ("bytes_up", "bytes_down", "flops", "seconds")
    }
    return Run(
        method=training.name,
        seed=task.seed,
        accuracy=[line["accuracy"] for line in records if "accuracy" in line][-1],
        sent=covfree.SentBytes(total["bytes_up"], 0),
        received=total["bytes_down"],
        clients=len(np.unique(task.clients[task.clients >= 0])),
        client_flops=total["flops"],
        client_seconds=total["seconds"],
        predictions=task.predictions(result) if predictions else None,
        history=records,
        rates=training.rates,
        diverged=None if stopped is None else records[-1]["round"] + 1,
    )


def _algorithm(training: Training, model: Model) -> covfree.rounds.Algorithm:
    entry, numbers = algorithm_of(training.algorithm)
    options = {k: v for k, v in training.options.items() if k != "mu" or k in entry.accepts} | numbers
    return entry.make(model, training.client, training.rates.server, **options)


def _first(training: Training, task: Task) -> _Stretch:
    """Return the first `_Stretch`, whose head comes from the first closed-form stage or is random."""
    start = start_of(training.start, task)
    model = _model(training, task, start, 0)
    head = start.head if task.network is None else model.result(model.trained, model.statistics)
    *earlier, last = start.records
    return _Stretch(0, model, [*earlier, {**last, "accuracy": task.accuracy(head)}])


def _next(training: Training, task: Task, before: _Stretch, result: Any, records: list[Record]) -> _Stretch:
    """Make a new closed-form head on the features of the trained network, from which training continues.

    ``before`` is the stretch of training (a `_Stretch`) that has just ended with ``result``; ``records`` is
    the history so far. All clients receive what they receive in a round of training, and send the statistics
    of the method that made the first head.
    """
    began, number = perf_counter(), before.number + 1
    assert task.network is not None
    moved = _moved(task, result.feature_map.params)
    start = start_of(training.start._replace(start_rounds="once"), moved)
    (record,) = start.records
    received = jax.tree.leaves((before.model.trained, before.model.statistics))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in received)
    record = {**record, "round": number * training.restart, "seconds": perf_counter() - began}
    record["bytes_down"] += size * record["clients"]
    return _Stretch(number, _model(training, moved, start, number), [*records, record])


def _moved(task: Task, params: Any) -> Task:
    """Return the task with its features computed anew, by the network with the parameters ``params``."""
    assert task.network is not None
    network = task.network._replace(params=params)
    train, test = (np.asarray(network.features(part)) for part in (task.inputs, task.test_inputs))
    data = task.data._replace(train_features=train, test_features=test)
    return Task(data, task.clients, task.seed, task.inputs, task.test_inputs, network)


def _keep(stretch: _Stretch, checkpoint: Path) -> None:
    """Save what a stretch begins with, and remove the checkpoints of the stretch before."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    leaves: Any = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(stretch.model))}
    about = json.dumps({"number": stretch.number, "records": stretch.records})
    with replacing(checkpoint / _START) as file:
        np.savez(file, about=about, **leaves)
    shutil.rmtree(checkpoint / str(stretch.number - 1), ignore_errors=True)


def _kept(training: Training, task: Task, checkpoint: Path) -> _Stretch | None:
    """Load what `_keep` saved last, so that training can resume from there; None if nothing was saved.

    Raises:
        ValueError: if the stretch begins after the last round of this training.
    """
    if not (checkpoint / _START).exists():
        return None
    with np.load(checkpoint / _START) as file:
        about = json.loads(str(file["about"]))
        if about["number"] >= len(training.stretches):
            done = about["number"] * training.restart
            text = f"expected at least {done}, as {checkpoint} holds, got {training.rounds}"
            raise ValueError(f"--rounds: {text}")
        tree = jax.tree.structure(_first(training, task).model)
        model = tree.unflatten([jnp.asarray(file[f"leaf{i}"]) for i in range(tree.num_leaves)])
    return _Stretch(about["number"], model, about["records"])


def _flops(training: Training, task: Task, head: Any, schedule: np.ndarray) -> np.ndarray:
    """Return the floating-point operations of all clients together in each round of training, [rounds]."""
    linear, extractor = linear_model(head), training.extractor_flops
    feature_map, _ = linear.frozen
    if feature_map is not None:
        dim = task.data.train_features.shape[1]
        extractor += covfree.call_flops(feature_map, jax.ShapeDtypeStruct((1, dim), jnp.float32))
    if training.train == "prompts" and training.top is not None:
        # `training_flops` counts three forward passes for an example. Selecting its prompts takes a fourth,
        # without prompts.
        extractor *= 4 / 3
    one = covfree.training_flops(
        1,
        extractor=extractor,
        head=2 * linear.trained.weight.size,
        epochs=training.options.get("epochs", 1),
        train="all" if training.train == "prompts" else training.train,
    )
    sizes = np.bincount(task.clients[task.clients >= 0], minlength=int(task.clients.max()) + 1)
    return one * np.where(schedule >= 0, sizes[schedule], 0).sum(1)


def _model(training: Training, task: Task, start: Start, number: int) -> Model:
    head: Any = start.head
    if task.network is None:
        model = linear_model(head)
    elif training.train == "prompts":
        backbone, params, preprocessing = task.network
        key = derive(jax.random.key(task.seed), "prompts")
        prompts = random_prompts(backbone, training.prompts, key=key)
        if start.temperature is not None:
            # Tests and saved files take the head and the prompts out of the model, without its ``scores``,
            # where `at_temperature` would divide. So divide the head itself.
            head, start = covfree.with_temperature(head, start.temperature), start._replace(temperature=None)
        model = prompt_model(backbone, params, head, prompts, top=training.top, preprocessing=preprocessing)
    else:
        backbone, params, preprocessing = task.network
        model = network_model(
            backbone, params, head, train=training.train, norms=training.norms, preprocessing=preprocessing
        )
    model = start.at_temperature(model)
    model = augmented(model) if training.augment else model
    key = derive(jax.random.key(task.seed), f"lora {number}")
    return lora(model, training.rank, key=key) if training.rank else model
