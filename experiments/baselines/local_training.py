"""What clients of one-shot methods do: each trains a network of its own on its own images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from baselines.idx import Images
from jax.tree_util import Partial
from jaxtyping import Float

from covfree import finetune, rounds
from covfree.core.types import PRNGKey

# FedCGS's trained baselines, and DENSE's and Co-Boosting's local training.
LEARNING_RATE, MOMENTUM, BATCH_SIZE = 0.01, 0.9, 128


def train_clients(
    model: finetune.Model,
    data: Images,
    clients: np.ndarray,
    *,
    epochs: int,
    key: PRNGKey,
    learning_rate: float = LEARNING_RATE,
    batch_size: int = BATCH_SIZE,
) -> Any:
    """Train a network for each client, all from the same start, in one compiled call.

    Gradient descent with momentum 0.9. One client is training in one place.

    Args:
        model: the start, from `cnn_model`.
        data: images of all clients.
        clients: [examples] whose each is, from 0.
        epochs: passes over a client's images.
        key: of the order of the images.
        learning_rate: of the descent.
        batch_size: images of a step.

    Returns:
        Variables of the networks, with an axis of clients in front.
    """
    optimiser = Partial(optax.sgd, learning_rate, momentum=MOMENTUM)
    algorithm = finetune.local_only(model, optimiser, epochs=epochs, batch_size=batch_size)
    own = rounds.run(algorithm, data.images, data.labels, clients, key=key, rounds=1).result.own
    return {"params": own.trained, "batch_stats": own.statistics}


def average(members: Any, share: Float[np.ndarray, " clients"]) -> Any:
    """One-shot FedAvg: the weighted mean of the clients' networks, running statistics included.

    With shares of the examples it is where `covfree.finetune.fedavg` with a server's rate of 1 is
    after one round of as many epochs.

    Args:
        members: variables with an axis of clients in front.
        share: weight of each client; their sum is 1.
    """
    return jax.tree.map(lambda x: jnp.tensordot(jnp.asarray(share, x.dtype), x, 1), members)
