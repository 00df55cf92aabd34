"""The computing cost of a method for its clients, in floating-point operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Integer

from covfree.core.types import AnyArray
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.statistics import count_rows
from covfree.statistics.residuals import count_clients


def client_flops(
    method: Method[Any],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> int:
    """Count the floating-point operations of all clients together, from features to messages.

    Only leading terms count; a multiplication and an addition count as two operations. Class means cost n·d.
    Gram matrices and covariances cost 2·n·d² more, AFL's own solutions d³/3 + 2·d²·C_k more for each client,
    a map to D features 2·n·d·D more, and each round of a refined method 4·n·d·q. The backbone's forward pass,
    usually far more, is left out.

    Args:
        method: the method.
        labels: classes of all examples; below 0 is padding.
        clients: their clients; below 0 is padding.
        dim: d of the features, before any map of them.

    >>> import covfree, numpy as np
    >>> labels, clients = np.zeros(100, int), np.arange(100) % 10
    >>> [client_flops(m, labels, clients, dim=50) for m in (covfree.fedcof(), covfree.fed3r())]
    [5000, 505000]
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    check_method(method)
    kept = (labels >= 0) & (clients >= 0)
    labels, clients = labels[kept], clients[kept]
    flops, size, classes = 0, len(labels), int(labels.max(initial=0)) + 1
    if method.feature_map is not None:
        flops, dim = 2 * size * dim * method.feature_map.num_features, method.feature_map.num_features
    if method.flops is not None:
        flops += method.flops(method.params, size, dim, classes)
    if method.message is None:
        return flops + method.summary.cost(labels, clients, dim).flops
    flops += size * dim + 2 * size * dim**2
    if method.message.solved:
        flops += count_clients(labels, clients) * dim**3 // 3 + 2 * dim**2 * count_rows(labels, clients)
    return flops
