"""Heads that training starts from: random, or in closed form with a calibrated temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.core.types import LinearHead
from covfree.finetune import random_head
from covfree.heads import MappedHead
from covfree.studies.result import Record
from covfree.studies.task import Task
from covfree.studies.timing import timed
from covfree.studies.variants import variants

RANDOM = "random"
# A closed-form head's temperature before training: fitted to the training examples, none, or given.
Temperature: TypeAlias = float | Literal["auto", "none"]


class Start(NamedTuple):
    """The head that training starts from.

    Attributes:
        head: a linear head; in closed form, its scores are divided by the temperature.
        record: the history's line of round 0, the closed-form stage, without the accuracy.
    """

    head: LinearHead | MappedHead
    record: Record


def start_of(init: str, task: Task, temperature: Temperature = "auto") -> Start:
    """Return a random head, or a method's head with scores divided by a temperature; made once per task."""
    key = f"{init}, {temperature}"
    if key not in task.starts:
        task.starts[key] = _start(init, task, temperature)
    return task.starts[key]


def _start(init: str, task: Task, temperature: Temperature) -> Start:
    features, classes = np.asarray(task.data.train_features), task.data.num_classes
    clients, uploaded, received, seconds = 0, 0, 0, 0.0
    if init == RANDOM:
        head = random_head(features.shape[1], classes, key=jax.random.key(task.seed))
        # Closed-form heads have `present`, so setting it lets all starts share compiled functions.
        head = replace(head, present=jnp.ones(classes))
    else:
        method, labels = variants([init])[init].method, task.data.train_labels
        used = np.where(task.clients >= 0, labels, -1)

        def calibrated() -> Any:
            key = jax.random.key(task.seed)
            head: Any = covfree.fit(method, features, labels, task.clients, num_classes=classes, key=key)
            if temperature == "none":
                return head
            if temperature == "auto":
                return covfree.with_temperature(head, covfree.calibrate_temperature(head, features, used))
            return covfree.with_temperature(head, temperature)

        head, seconds = timed(calibrated)
        clients = len(np.unique(task.clients[task.clients >= 0]))
        uploaded = covfree.sent_bytes(method, labels, task.clients, dim=features.shape[1]).statistics
        received = covfree.received_bytes(method, labels, task.clients, dim=features.shape[1])
    sizes = {"clients": clients, "bytes_up": uploaded, "bytes_down": received}
    return Start(head, {"round": 0, **sizes, "seconds": seconds})
