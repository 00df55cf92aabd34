"""OLL, only local labels: clients train and predict as if there were no classes but their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from covfree.finetune import averaging
from covfree.finetune.local import Training
from covfree.finetune.model import Model
from covfree.rounds.algorithm import Algorithm


def oll(
    model: Model,
    client: Any = 0.01,
    server: Any = 1.0,
    *,
    weighting: averaging.Weighting = "examples",
    **options: Any,
) -> Algorithm:
    """OLL: FedAvg whose clients' softmax is over the classes that they have.

    The weights of other classes get no gradient from a client: it does not push down what it has not seen.
    In prediction a client takes the best of its own classes: ``client_accuracy(…, own_classes=
    client_classes(…))``. That works with any head, trained or not.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        server: see `fedavg`.
        weighting: see `fedavg`.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`.

    Source: Fanì et al. (2025), "Resource-Efficient Personalization in Federated Learning with Closed-Form
    Classifiers", as its abstract has it: local classifiers of the locally relevant classes alone.
    """
    training = Training.of(client, **options, own_classes=True)
    return averaging.federated(model, training, server, weighting, "oll")


def client_classes(labels: Any, clients: Any, *, num_classes: int) -> Bool[np.ndarray, "clients classes"]:
    """Say which classes each client has.

    Args:
        labels: [examples] of training; below 0 is padding.
        clients: [examples] whose each is; below 0 is padding.
        num_classes: C.

    >>> client_classes(np.array([0, 2, 1]), np.array([0, 0, 1]), num_classes=3).astype(int)
    array([[1, 0, 1],
           [0, 1, 0]])
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    kept = (labels >= 0) & (clients >= 0)
    has = np.zeros((int(clients[kept].max(initial=-1)) + 1, num_classes), bool)
    has[clients[kept], labels[kept]] = True
    return has
