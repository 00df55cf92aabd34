"""Heads that training starts from: random, or in closed form with a temperature."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.core.keys import derive, participation_seed
from covfree.core.types import LinearHead
from covfree.finetune import Model, at_temperature, linear_model, random_head
from covfree.heads import MappedHead
from covfree.rounds.schedule import participation
from covfree.studies.arrivals import arrivals
from covfree.studies.result import Record
from covfree.studies.task import Task
from covfree.studies.timing import timed
from covfree.studies.variants import Variant, variants

RANDOM = "random"
# The temperature of a closed-form head: "auto" fits it to the training examples and divides the head by it
# once; "none" has no temperature; a number divides the scores throughout training.
Temperature: TypeAlias = float | Literal["auto", "none"]


# Rounds of the closed-form stage: their number; "once" for one of all clients, "all" until all have sent.
StartRounds: TypeAlias = int | Literal["once", "all"]


class From(NamedTuple):
    """The settings that determine the head from which training starts; `Training` describes them."""

    init: str
    temperature: Temperature
    start_rounds: StartRounds
    participation: int | float
    every: int
    extractor_flops: int | float


class Start(NamedTuple):
    """The head that training starts from.

    Attributes:
        head: a linear head, perhaps on mapped features. If a temperature was fitted, a closed-form head's
            scores are already divided by it.
        records: the history up to round 0: a record for each closed-form round; one, without costs, for
            a random head.
        temperature: a number by which a closed-form head's scores are still to be divided, or None.
    """

    head: LinearHead | MappedHead
    records: list[Record]
    temperature: float | None = None

    def at_temperature(self, model: Model) -> Model:
        """Return a model whose scores are divided by `temperature`, if there is one."""
        return model if self.temperature is None else at_temperature(model, self.temperature)


def start_variant(init: str) -> Variant:
    """Make the method whose head training starts from, by its name, such as ``fed3r-random:sigma=1000``."""
    (variant,) = variants([init]).values()
    return variant


def start_title(init: str) -> str:
    """Return the title, in tables and pictures, of the head ``init`` that training starts from."""
    return "Random" if init == RANDOM else start_variant(init).title


def start_of(settings: From, task: Task) -> Start:
    """Return the `Start` that ``settings`` describe: a random or a closed-form head; ``task`` caches it."""
    key = str(tuple(settings))
    if key not in task.starts:
        task.starts[key] = _random(task) if settings.init == RANDOM else _closed_form(settings, task)
    return task.starts[key]


def _random(task: Task) -> Start:
    classes = task.data.num_classes
    head = random_head(task.data.train_features.shape[1], classes, key=jax.random.key(task.seed))
    # Closed-form heads have `present`; set it here too, so that all starts share compiled functions.
    head = replace(head, present=jnp.ones(classes))
    nothing = {"clients": 0, "bytes_up": 0, "bytes_down": 0, "flops": 0.0, "seconds": 0.0}
    return Start(head, [{"round": 0, **nothing}])


def _schedule(settings: From, task: Task) -> np.ndarray:
    """Choose the clients that send statistics in the rounds before training.

    Returns:
        [rounds, clients in a round] the clients' numbers, −1 where a round has fewer. A single round of all
        clients if ``start_rounds`` is ``"once"``.
    """
    number, rounds = int(task.clients.max()) + 1, settings.start_rounds
    if rounds == "once":
        return np.arange(number)[None]
    seed = participation_seed(derive(jax.random.key(task.seed), "closed-form stage"))
    per_round = participation(number, settings.participation, 1, seed=seed).shape[1]
    needed = -(-number // per_round)
    if rounds != "all" and rounds > needed:
        text = f"--start-rounds: expected at most {needed}, after which all clients came, got {rounds}"
        raise ValueError(text)
    rounds = needed if rounds == "all" else rounds
    return participation(number, per_round, rounds, seed=seed, replacement=False)


def _closed_form(settings: From, task: Task) -> Start:
    init, temperature, labels = settings.init, settings.temperature, task.data.train_labels
    method, schedule = start_variant(init).method, _schedule(settings, task)
    if len(schedule) > 1 and not method.one_shot:
        raise ValueError(f"--start-rounds: expected a method whose clients send once, got {init}")
    data = task.data._replace(train_features=np.asarray(task.data.train_features))
    came = list(
        arrivals(
            *(method, data, task.clients, schedule),
            seed=task.seed,
            extractor=settings.extractor_flops,
            measured=lambda number: (len(schedule) - number) % settings.every == 0,
        )
    )
    head, records = came[-1][1], [record for record, _ in came]
    if head is None:
        raise ValueError(f"--start-rounds: no client that came in {len(schedule)} rounds holds examples")
    try:
        linear_model(head)
    except TypeError as error:
        raise ValueError(f"--init: {init}: {error}") from error
    if task.network is not None and isinstance(head, MappedHead):
        text = f"expected a head on a network's own features, got {init}, whose head maps them first"
        raise ValueError(f"--init: {text}; --train head trains it")
    for record in records:
        record["round"] -= len(schedule)
    if temperature != "auto":
        return Start(head, records, None if temperature == "none" else temperature)
    here = np.isin(task.clients, schedule[schedule >= 0])
    used = np.where(here, labels, -1)
    fitted, seconds = timed(partial(covfree.calibrate_temperature, head, data.train_features, used))
    records[-1]["seconds"] += seconds
    return Start(covfree.with_temperature(head, fitted), records)
