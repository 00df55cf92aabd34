"""FedProx: FedAvg whose clients are held near the server's model."""

from __future__ import annotations

from typing import Any

import optax
from jax.tree_util import Partial

from covfree.core.checks import check_strength
from covfree.core.types import Scalar
from covfree.finetune.averaging import fedavg
from covfree.finetune.local import as_optimiser
from covfree.finetune.model import Model
from covfree.finetune.optimisers import add_proximal
from covfree.rounds.algorithm import Algorithm


def _proximal(mu: Scalar, client: Any) -> Any:
    return optax.chain(add_proximal(mu), client())


def fedprox(model: Model, client: Any = 0.01, mu: Scalar = 0.01, **options: Any) -> Algorithm:
    """FedProx: each client minimises its loss plus μ/2 ‖y − x‖², with x the server's model.

    The term's gradient comes before the client's optimiser, momentum included. With μ = 0 it is FedAvg.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        mu: μ, at least 0.
        options: others of `fedavg`.

    Source: Li et al. (2020), Algorithm 2.
    """
    near = Partial(_proximal, check_strength("mu", mu), as_optimiser("client", client))
    return fedavg(model, near, name="fedprox", **options)
