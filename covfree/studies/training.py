"""Training in rounds that starts from a closed-form or random head: a run of ``covfree finetune``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import covfree
import covfree.rounds
from covfree.core.checks import check_above_zero, check_strength
from covfree.finetune import Model, augmented, linear_model, network_model, registry
from covfree.finetune.model import Norms, Trained
from covfree.finetune.registry import Entry, Rates
from covfree.rounds.schedule import participation as draw
from covfree.studies.names import parsed
from covfree.studies.progress import Listener
from covfree.studies.result import Record, Run
from covfree.studies.run_folder import save_result
from covfree.studies.starts import RANDOM, Temperature, start_of
from covfree.studies.table import as_bytes
from covfree.studies.task import Task

TRAINABLE = tuple(name for name, entry in covfree.methods.registry().items() if entry.linear)
_ARROW = " → "


@dataclass(frozen=True)
class Training:
    """A method of a study that trains a head in rounds.

    Attributes:
        init: `RANDOM`, or the method whose head training starts from.
        algorithm: name in `covfree.finetune.registry`, perhaps with numbers: ``"fedadam:tau=1e-4"``.
        rates: learning rates of the clients and the server.
        rounds: number of rounds.
        participation: clients per round, a number or a share.
        train: the part that is trained; see `covfree.finetune.network_model`.
        norms: how batch norms train; see `covfree.finetune.network_model`.
        options: options of the algorithm, beside its rates.
        every: rounds from one evaluation to the next.
        save_every: rounds from one checkpoint to the next.
        width: number of clients that are simulated at once.
        tune: whether the rates are tuned on a grid around the given ones, see `covfree.studies.tuning`.
        augment: whether images are cropped and flipped at random in training.
        momentum: momentum of the clients' gradient descent.
        weight_decay: the clients add this multiple of the parameters to the gradient, before momentum.
        temperature: the scores of a closed-form head are divided by it before training.
    """

    init: str
    algorithm: str
    rates: Rates
    rounds: int
    participation: int | float
    train: Trained = "head"
    norms: Norms = "frozen"
    options: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    save_every: int = 10
    width: int = 1
    tune: bool = False
    augment: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    temperature: Temperature = "auto"

    @property
    def client(self) -> Any:
        """The clients' learning rate for plain descent, or an optimiser with momentum and weight decay."""
        if not (self.momentum or self.weight_decay):
            return self.rates.client
        return jax.tree_util.Partial(_descent, self.rates.client, self.momentum, self.weight_decay)

    @property
    def name(self) -> str:
        """The training's name in results."""
        return f"{self.init}{_ARROW}{self.algorithm}"

    @property
    def title(self) -> str:
        """The training's title in tables."""
        start = "Random" if self.init == RANDOM else covfree.methods.registry()[self.init].title
        entry, numbers = algorithm_of(self.algorithm)
        shown = f" ({', '.join(f'{k}={v}' for k, v in numbers.items())})" if numbers else ""
        return f"{start}{_ARROW}{entry.title}{shown}"

    def folder(self, out: Path, seed: int) -> Path:
        """Return the subfolder of a study's folder that keeps this training's run."""
        return out / f"{self.init}-{self.algorithm}-seed{seed}"


def _descent(rate: Any, momentum: Any, weight_decay: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(rate, momentum=momentum))


def algorithm_of(text: str) -> tuple[Entry, dict[str, Any]]:
    """Parse an algorithm and its numbers from a text such as ``fedadam:tau=1e-4:b2=0.999``.

    Raises:
        ValueError: if the name is unknown, or the algorithm does not take a number or its value.
    """
    name, numbers = parsed(text, "algorithm: expected a number such as fedadam:tau=1e-4")
    if name not in registry():
        raise ValueError(f"algorithm: expected some of {', '.join(registry())}, got {name!r}")
    entry = registry()[name]
    for number, value in numbers.items():
        if number not in entry.accepts:
            takes = ", ".join(sorted(entry.accepts)) or "no number"
            raise ValueError(f"algorithm: {name} takes {takes}, got {number}")
        try:
            check_strength(number, value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"algorithm: {name}: {error}") from error
    return entry, numbers


def temperature_of(text: str) -> Temperature:
    """Parse a temperature: a number above 0, 'auto' or 'none'.

    Raises:
        ValueError: if the text is none of these.
    """
    if text in ("auto", "none"):
        return text  # pyright: ignore
    try:
        return float(check_above_zero("temperature", float(text)))
    except ValueError:
        raise ValueError(f"temperature: expected 'auto', 'none' or a number above 0, got {text!r}") from None


def start_and_algorithm(name: str) -> tuple[str, str]:
    """Split a training's name into start and algorithm."""
    init, _, algorithm = name.partition(_ARROW)
    return init, algorithm


def participation_of(text: str, num_clients: int) -> int | float:
    """Parse a number of clients, or a share of them.

    Raises:
        ValueError: if the text is neither.
    """
    try:
        number = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
        draw(num_clients, number, 1, seed=0)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"participation: expected a share in (0, 1] or a number of clients up to {num_clients}, got "
            f"{text!r} ({error})"
        ) from error
    return number


class History:
    """The records of a run, each written to a file and told to the listener as it comes.

    Rounds count from 1, and record 0 is the start, so record r holds the accuracy after r rounds.
    """

    def __init__(self, name: str, rounds: int, path: Path | None, listener: Listener) -> None:
        self.records: list[Record] = []
        self._name, self._rounds, self._path, self._listener = name, rounds, path, listener
        self._written = 0

    def __call__(self, rounds: list[Record]) -> bool:
        """Take the records of a run so far; return False, as a run is never stopped."""
        for record in rounds[len(self.records) - 1 :]:
            self.records.append({**record, "round": record["round"] + 1})
        if len(self.records) == self._written:
            return False
        if self._path is not None:
            # Start the file anew: an earlier run may have written lines after its last checkpoint.
            with self._path.open("a" if self._written else "w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(record)}\n" for record in self.records[self._written :])
        self._written = len(self.records)
        self._tell()
        return False

    def _tell(self) -> None:
        accuracy = [record["accuracy"] for record in self.records if "accuracy" in record][-1]
        up, down, seconds = (
            sum(record[key] for record in self.records) for key in ("bytes_up", "bytes_down", "seconds")
        )
        now, share, sent = self.records[-1]["round"], f"{100 * accuracy:.2f} %", f"{as_bytes(up)} up"
        line = f"{self._name}: round {now}/{self._rounds}, {share}, {seconds:.1f} s, {sent}, "
        line = f"{line}{as_bytes(down)} down" if "accuracy" in self.records[-1] else ""
        self._listener.step(f"{self._name}: {share}, {sent}", now, self._rounds, line)


def train(
    training: Training,
    task: Task,
    folder: Path | None = None,
    history: History | None = None,
    predictions: bool = False,
) -> Run:
    """Train with the given rates, and save the result if there is a folder."""
    history = history or History("", training.rounds, None, Listener())
    start = start_of(training.init, task, training.temperature)
    entry, numbers = algorithm_of(training.algorithm)
    options = {k: v for k, v in training.options.items() if k != "mu" or k in entry.accepts} | numbers
    model = _model(training, task, start.head)
    head = start.head if task.network is None else model.result(model.trained, model.statistics)
    history.records.append({**start.record, "accuracy": task.accuracy(head)})
    checkpoint = folder and folder / "checkpoint"
    if checkpoint is None or not checkpoint.exists():
        history([])
    with warnings.catch_warnings():
        # `Run.diverged` reports it.
        warnings.filterwarnings("ignore", ".*the state is not finite", RuntimeWarning)
        ended = covfree.rounds.run(
            entry.make(model, training.client, training.rates.server, **options),
            task.inputs,
            task.data.train_labels,
            task.clients,
            key=jax.random.key(task.seed),
            rounds=training.rounds,
            participation=training.participation,
            evaluate=covfree.rounds.Evaluation(
                lambda result: {"accuracy": task.accuracy(result)}, every=training.every
            ),
            stop=history,
            checkpoint=checkpoint and covfree.rounds.Checkpoint(checkpoint, every=training.save_every),
            place=covfree.rounds.Placement(width=training.width),
        )
    history(ended.history)
    if folder is not None:
        save_result(folder, ended.result, task.data, task.seed)
    records = history.records
    total = {name: sum(line[name] for line in records) for name in ("bytes_up", "bytes_down", "seconds")}
    return Run(
        method=training.name,
        seed=task.seed,
        accuracy=[line["accuracy"] for line in records if "accuracy" in line][-1],
        sent=covfree.SentBytes(total["bytes_up"], 0),
        received=total["bytes_down"],
        clients=len(np.unique(task.clients[task.clients >= 0])),
        client_seconds=total["seconds"],
        predictions=task.predictions(ended.result) if predictions else None,
        history=records,
        rates=training.rates,
        diverged=None if ended.stopped is None else len(records),
    )


def _model(training: Training, task: Task, head: Any) -> Model:
    if task.network is None:
        return linear_model(head)
    backbone, params, preprocessing = task.network
    model = network_model(
        backbone, params, head, train=training.train, norms=training.norms, preprocessing=preprocessing
    )
    return augmented(model) if training.augment else model
