"""The methods that `fashion_mnist.py` compares, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import optax
from baselines import co_boosting, dense
from baselines.local_training import LEARNING_RATE, MOMENTUM
from baselines.study import Federation, Measured
from jax.tree_util import Partial

import covfree
from covfree import finetune

SERVER_RATE, PROXIMAL = 0.01, 0.01

# Clients descend alike in all of them.
_DESCENT = Partial(optax.sgd, LEARNING_RATE, momentum=MOMENTUM)
ROUNDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "fedavg": ("FedAvg", partial(finetune.fedavg, client=_DESCENT)),
    "fedavg-uniform": (
        "FedAvg, equal weights",
        partial(finetune.fedavg, client=_DESCENT, weighting="uniform"),
    ),
    "fedprox": ("FedProx", partial(finetune.fedprox, client=_DESCENT, mu=PROXIMAL)),
    "scaffold": ("SCAFFOLD", partial(finetune.scaffold, client=_DESCENT)),
    "fednova": ("FedNova", partial(finetune.fednova, client=_DESCENT)),
    "fedadam": ("FedAdam", partial(finetune.fedadam, client=_DESCENT, server_lr=SERVER_RATE)),
}
_HEADS: dict[str, tuple[str, covfree.Method]] = {
    "fedncm": ("FedNCM", covfree.fedncm()),
    "fed3r": ("Fed3R", covfree.fed3r()),
    "fedcgs": ("FedCGS", covfree.fedcgs()),
    "fedpft": ("FedPFT, 10 components", covfree.fedpft(num_components=10)),
    "fedcof": ("`fedcof()`", covfree.fedcof()),
    "fedcof-oracle": ("FedCOF oracle", covfree.fedcof_oracle()),
}


class Way(NamedTuple):
    """A line of the table.

    Attributes:
        title: how it is named.
        group: of which lines it is one.
        measure: on a federation.
    """

    title: str
    group: str
    measure: Callable[[Federation], Measured]


ONE_SHOT, SCRATCH = "one round, networks from scratch", "in rounds, from scratch"
FROZEN, TUNED = "one round, frozen backbone", "in rounds, from the backbone and `fedcof()`"
CENTRAL = "centralised"
WAYS: dict[str, Way] = {
    CENTRAL: Way("all images in one place", CENTRAL, lambda on: on.shared.centralised()),
    "one-shot-fedavg": Way("FedAvg", ONE_SHOT, lambda on: on.one_shot_average(alike=False)),
    "one-shot-uniform": Way("FedAvg, equal weights", ONE_SHOT, lambda on: on.one_shot_average(alike=True)),
    "ensemble": Way("ensemble", ONE_SHOT, lambda on: on.ensemble(alike=True)),
    "ensemble-weighted": Way("ensemble, by examples", ONE_SHOT, lambda on: on.ensemble(alike=False)),
    "dense": Way("DENSE", ONE_SHOT, lambda on: on.distilled(dense)),
    "co-boosting": Way("Co-Boosting", ONE_SHOT, lambda on: on.distilled(co_boosting)),
    **{
        name: Way(title, FROZEN, lambda on, method=method: on.head(method))
        for name, (title, method) in _HEADS.items()
    },
    **{
        name: Way(
            title, SCRATCH, lambda on, make=make: on.in_rounds(make, on.shared.start, on.options.rounds)
        )
        for name, (title, make) in ROUNDS.items()
    },
    **{
        f"tuned-{name}": Way(
            title, TUNED, lambda on, make=make: on.in_rounds(make, on.tuning_start, on.options.tuning_rounds)
        )
        for name, (title, make) in ROUNDS.items()
    },
}
