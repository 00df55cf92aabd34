"""The named algorithms of federated optimisation, with default learning rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import optax
from jax.tree_util import Partial

from covfree.core.registries import Registry
from covfree.core.types import Scalar
from covfree.finetune.averaging import SERVERS, fedadagrad, fedadam, fedavg, fedprox, fedyogi
from covfree.finetune.baselines.fednova import fednova
from covfree.finetune.baselines.scaffold import scaffold
from covfree.finetune.model import Model
from covfree.rounds.algorithm import Algorithm


class Rates(NamedTuple):
    """Learning rates.

    Attributes:
        client: the rate of the clients' gradient descent.
        server: the rate of the server's optimiser.
    """

    client: float
    server: float


class Entry(NamedTuple):
    """A named algorithm.

    Attributes:
        title: the algorithm's name in tables.
        make: ``(model, client, server_lr, **options) -> Algorithm``, where ``client`` is a rate or an optax
            transformation; the options are ``epochs``, ``steps``, ``batch_size`` and ``schedule`` of
            `fedavg`, and those in ``accepts``.
        head: rates for a linear head on features; they need no tuning, see docs/fine-tuning.md.
        network: rates for a network; FedAvg's are those of FedCOF's authors (Table 13).
        accepts: names of the algorithm's further hyperparameters.
    """

    title: str
    make: Callable[..., Algorithm]
    head: Rates
    network: Rates
    accepts: frozenset[str] = frozenset()


def _momentum(model: Model, client: Any, server_lr: Scalar, **options: Any) -> Algorithm:
    server = Partial(optax.sgd, server_lr, momentum=0.9)
    return fedavg(model, client, server, name="fedavgm", **options)


def _prox(model: Model, client: Any, server_lr: Scalar, mu: Scalar = 0.01, **options: Any) -> Algorithm:
    return fedprox(model, client, mu, server=server_lr, **options)


_MEAN, _NETWORK_MEAN = Rates(0.1, 1.0), Rates(1e-3, 1.0)
_ADAPTIVE = {
    "fedadam": ("FedAdam", fedadam),
    "fedadam-torch": ("FedAdam, PyTorch's", partial(fedadam, form="torch")),
    "fedadam-flower": ("FedAdam, Flower's", partial(fedadam, form="flower")),
    "fedyogi": ("FedYogi", fedyogi),
    "fedadagrad": ("FedAdagrad", fedadagrad),
}

_REGISTRY: Registry[Entry] = Registry(
    {
        "fedavg": Entry("FedAvg", fedavg, _MEAN, _NETWORK_MEAN),
        # Momentum of 0.9 makes the server's steps up to ten times as long, so its rate is smaller.
        "fedavgm": Entry("FedAvgM", _momentum, Rates(0.1, 0.3), Rates(1e-3, 0.3)),
        **{
            name: Entry(title, make, Rates(0.1, 0.01), Rates(0.03, 3e-4), SERVERS[name][1])
            for name, (title, make) in _ADAPTIVE.items()
        },
        "fedprox": Entry("FedProx", _prox, _MEAN, _NETWORK_MEAN, frozenset({"mu"})),
        "scaffold": Entry("SCAFFOLD", scaffold, _MEAN, _NETWORK_MEAN),
        "fednova": Entry("FedNova", fednova, _MEAN, _NETWORK_MEAN),
    }
)


def registry() -> Registry[Entry]:
    """Return a read-only mapping of all named algorithms, like `covfree.methods.registry`.

    >>> registry()["fedadam"].head
    Rates(client=0.1, server=0.01)
    """
    return _REGISTRY
