"""OLL, only local labels: clients train as if there were no classes but their own."""

from __future__ import annotations

from typing import Any

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
    """OLL: FedAvg in which each client's softmax is only over the classes that the client has.

    The weights of other classes get no gradient from a client: it does not push down classes that it lacks.
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
