"""What training starts from: a random head, or a closed-form one at the temperature that fits best."""

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
# Of a closed-form head before it is trained: what fits the training examples best, none, or a number.
Temperature: TypeAlias = float | Literal["auto", "none"]


class Start(NamedTuple):
    """What is trained from.

    Attributes:
        head: a linear head, calibrated if it is in closed form.
        record: the line of history of round 0, the closed-form stage; without the accuracy.
    """

    head: LinearHead | MappedHead
    record: Record


def start_of(init: str, task: Task, temperature: Temperature = "auto") -> Start:
    """A random head, or that of a method, whose scores are divided by a temperature."""
    key = f"{init}, {temperature}"
    if key not in task.starts:
        task.starts[key] = _start(init, task, temperature)
    return task.starts[key]


def _start(init: str, task: Task, temperature: Temperature) -> Start:
    features, classes = np.asarray(task.data.train_features), task.data.num_classes
    clients, uploaded, received, seconds = 0, 0, 0, 0.0
    if init == RANDOM:
        head = random_head(features.shape[1], classes, key=jax.random.key(task.seed))
        # As closed-form heads have it, so that all starts share compiled functions.
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
