"""OLL (only local labels): clients train as if only their own classes existed."""

from __future__ import annotations

from typing import Any

from covfree.finetune import averaging
from covfree.finetune.local import LocalTraining
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
    """OLL: FedAvg in which each client's softmax is only over the classes that the client has.

    A client has no gradient for the weights of other classes, so it does not push down classes that it lacks.
    For prediction, each client chooses among its own classes: pass ``own_classes=client_classes(…)`` to
    `client_accuracy`. Predictions of this kind are possible with any head, trained or not.

    Args:
        model: see `fedavg`.
        client: see `fedavg`.
        server: see `fedavg`.
        weighting: see `fedavg`.
        options: ``epochs``, ``steps``, ``batch_size``, ``schedule`` of `fedavg`.

    Source: Fanì et al. (2025), "Resource-Efficient Personalization in Federated Learning with Closed-Form
    Classifiers", according to its abstract: local classifiers of only the locally relevant classes.
    """
    training = LocalTraining.of(client, **options, own_classes=True)
    return averaging.federated(model, training, server, weighting, "oll")
