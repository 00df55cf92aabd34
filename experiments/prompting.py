"""Prompt tuning as in FedCOF's Table 4: what `prompt_tuning.py` and the command of the tables share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from covfree import finetune
from covfree.backbones import Backbone, Preprocessing
from covfree.core.types import LinearHead, PRNGKey
from covfree.rounds import Algorithm


# One for each rate, as functions are compared by identity and others would be compiled anew.
@cache
def _adam(rate: float) -> optax.GradientTransformation:
    """Clients' Adam in PFPT's code."""
    return optax.adam(rate, b1=0.9, b2=0.98, eps=1e-6)


class Training(NamedTuple):
    """How clients train: Adam's rate, passes over their examples, examples of a step, FedProx's μ."""

    rate: float
    epochs: int
    batch: int
    mu: float

    @property
    def adam(self) -> optax.GradientTransformation:
        """The clients' optimiser."""
        return _adam(self.rate)

    @property
    def options(self) -> Any:
        """What all algorithms take."""
        return {"epochs": self.epochs, "batch_size": self.batch}


ALGORITHMS: dict[str, Callable[[finetune.Model, Training], Algorithm]] = {
    "fedavg": lambda model, own: finetune.fedavg(model, own.adam, **own.options),
    "fedprox": lambda model, own: finetune.fedprox(model, own.adam, own.mu, **own.options),
    "pfpt": lambda model, own: finetune.pfpt(model, own.adam, **own.options),
}


class Keys(NamedTuple):
    """Keys of a seed: of the prompts, the random head and the rounds."""

    prompts: PRNGKey
    head: PRNGKey
    rounds: PRNGKey

    @classmethod
    def of(cls, seed: int) -> Keys:
        """Those of a seed."""
        return cls(*jax.random.split(jax.random.key(seed), 3))


def prompted(
    network: Backbone,
    params: Any,
    head: LinearHead,
    *,
    prompts: int,
    top: int,
    preprocessing: Preprocessing,
    key: PRNGKey,
) -> finetune.Model:
    """A frozen transformer with random prompts, of which each image reads ``top``, under a head."""
    drawn = finetune.random_prompts(network, prompts, key=key)
    return finetune.prompt_model(network, params, head, drawn, top=top, preprocessing=preprocessing)


def in_batches(function: Callable[[Any], Any], images: np.ndarray, size: int = 250) -> np.ndarray:
    """What a compiled function gives, one batch after the other."""
    return np.concatenate([np.asarray(function(images[i : i + size])) for i in range(0, len(images), size)])


@jax.jit
def _predicted(model: finetune.Model, images: jax.Array) -> jax.Array:
    return model(images).argmax(1)


def accuracy(model: finetune.Model, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of the images that a model gets right."""
    return float((in_batches(partial(_predicted, model), images) == labels).mean())
