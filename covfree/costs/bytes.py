"""What a method costs: bytes from the clients to the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from covfree.checks import check_positive
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.refine.refined import Refined
from covfree.staged import Staged
from covfree.statistics import count_rows
from covfree.statistics.residuals import count_clients
from covfree.types import AnyArray, Message

FLOAT_BYTES = 4


class SentBytes(NamedTuple):
    """Bytes that clients send.

    Attributes:
        statistics: the floating-point statistics, which is what the papers count.
        counts: counts and labels beside them, as 32-bit integers: 8 bytes for each class mean or sum.
    """

    statistics: int
    counts: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.statistics + self.counts


def formula_bytes(*, num_rows: int, dim: int, num_matrices: int = 0) -> int:
    """Compute the bytes of statistics by the papers' formulas: 4·(M·d + matrices·d²).

    Args:
        num_rows: M, client-class pairs (times subsets) over all clients.
        dim: d.
        num_matrices: d × d matrices that are sent: none for FedNCM and FedCOF, K for Fed3R, FedCGS and AFL, M
            for FedCOF's oracle and CCVR.

    Source: FedCOF (Goswami et al. 2024), section 3.2 and Table 3.

    >>> formula_bytes(num_rows=2870, dim=1280) / 1e6
    14.6944
    """
    return FLOAT_BYTES * (num_rows * dim + num_matrices * dim * dim)


def prompt_bytes(*, rounds: int, clients: int, dim: int, num_classes: int, prompts: int) -> int:
    """Compute the bytes of prompt tuning by the formula of FedCOF's App. H: 2·4·s·(d·C·T + d·Σ_t P_t).

    Both ways: in each round each client receives and sends the head's weights and the pool of prompts.

    Args:
        rounds: T.
        clients: s, that take part in a round.
        dim: d.
        num_classes: C.
        prompts: Σ_t P_t, prompts of the pool over all rounds: T·P where it stays as large as it is.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a number is below 1.

    Source: FedCOF (Goswami et al. 2024), App. H; 120 rounds of FedAvg-PT on CIFAR-100, Table 4:

    >>> prompt_bytes(rounds=120, clients=10, dim=768, num_classes=100, prompts=120 * 20) / 1e6
    884.736
    """
    sizes = {"rounds": rounds, "clients": clients, "dim": dim, "num_classes": num_classes, "prompts": prompts}
    for name, size in sizes.items():
        check_positive(name, size)
    return 2 * FLOAT_BYTES * clients * dim * (num_classes * rounds + prompts)


def message_bytes(message: Message) -> SentBytes:
    """Count the bytes of one message from its arrays.

    Args:
        message: from `client_message`. Padding rows are not sent.

    >>> import covfree, jax.numpy as jnp
    >>> message_bytes(Message(covfree.Rows(jnp.ones((3, 10)), jnp.array([2, 0, 5]), jnp.array([0, -1, 1]))))
    SentBytes(statistics=80, counts=16)
    """
    rows = message.rows
    sketch = False if rows.sketch is None else np.asarray(rows.sketch)
    kept = (np.asarray(rows.count) > 0) & ((np.asarray(rows.label) >= 0) | sketch)
    number = int(kept.sum())
    # By shape: taking the rows out would compile a function for each number of them.
    tables = [rows.mean] if rows.covariance is None else [rows.mean, rows.covariance]
    size = number * sum(math.prod(table.shape[1:]) * table.dtype.itemsize for table in tables)
    return SentBytes(size + (0 if message.matrix is None else message.matrix.nbytes), 8 * number)


def sent_bytes(
    method: Method | Refined | Staged,
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> SentBytes:
    """Compute the bytes that all clients of a federation send, without making their messages.

    Equal to the sum of `message_bytes` over the clients' messages (float32), unless a transform of the method
    drops rows. A client without examples sends nothing. Of a refined method the rounds after the first are
    counted too, in each of which a client sends d·q numbers and two more; of a method of several rounds of
    sums, what a client sends in each.

    Args:
        method: the method, `covfree.refined` of one, or one such as `covfree.deepafl`.
        labels: classes of all examples; below 0 is padding. C of methods of several rounds is the largest
            plus 1.
        clients: their clients; below 0 is padding.
        dim: d of the features, before any map of them.
    """
    if isinstance(method, Refined):
        first = sent_bytes(method.method, labels, clients, dim=dim)
        return first._replace(statistics=first.statistics + _of_products(method, labels, clients, dim, 2))
    if isinstance(method, Staged):
        rounds = method.shapes(dim, _num_classes(labels))
        sums = [x for _, sent in rounds for x in sent]
        senders = count_clients(np.asarray(labels), np.asarray(clients))
        whole, floats = _numbers(sums), _numbers(x for x in sums if x.dtype.kind == "f")
        return SentBytes(FLOAT_BYTES * senders * floats, FLOAT_BYTES * senders * (whole - floats))
    check_method(method)
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim = mapped_dim(method, dim)
    if method.message is None:
        rows, floats = method.summary.floats(labels, clients, dim)
        return SentBytes(FLOAT_BYTES * floats, 8 * rows)
    rows, senders = count_rows(labels, clients), count_clients(labels, clients)
    matrices = method.message.num_matrices(num_rows=rows, num_clients=senders)
    return SentBytes(formula_bytes(num_rows=rows, dim=dim, num_matrices=matrices), 8 * rows)


def received_bytes(
    method: Method | Refined | Staged,
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> int:
    """Compute the bytes that clients receive before the head is made: 0 for methods of one round.

    In each round of a refined method after the first, each client with examples receives d·q numbers, the
    directions; in each round of a method such as `covfree.deepafl` the server's state. The head itself is not
    counted, as in no method.

    Args:
        method: see `sent_bytes`.
        labels: see `sent_bytes`.
        clients: see `sent_bytes`.
        dim: see `sent_bytes`.

    >>> import covfree, numpy as np
    >>> labels, clients = np.arange(6) % 3, np.array([0, 0, 0, 1, 1, 1])
    >>> received_bytes(covfree.refined(covfree.fedcof(), 2), labels, clients, dim=50)
    1600
    """
    if isinstance(method, Refined):
        return _of_products(method, labels, clients, dim, 0)
    if isinstance(method, Staged):
        rounds = method.shapes(dim, _num_classes(labels))
        numbers = _numbers(x for state, _ in rounds for x in state)
        return FLOAT_BYTES * count_clients(np.asarray(labels), np.asarray(clients)) * numbers
    check_method(method)
    return 0


def alignment_bytes(
    clients: Integer[AnyArray, " examples"], *, dim: int, num_components: int
) -> tuple[SentBytes, int]:
    """Compute the bytes of `align`, which come before those of the method: up of all clients, and down.

    Each client sends a mean and a covariance, r + r² numbers, and the number of its examples. It receives the
    subspace, d·r numbers, and the barycentre, r + r².

    Args:
        clients: the client of each example; below 0 is padding.
        dim: d.
        num_components: r.

    >>> import numpy as np
    >>> alignment_bytes(np.arange(60) % 6, dim=512, num_components=64)
    (SentBytes(statistics=99840, counts=24), 886272)
    """
    clients = np.asarray(clients)
    senders = len(np.unique(clients[clients >= 0]))
    sent = num_components + num_components**2
    received = dim * num_components + sent
    return SentBytes(FLOAT_BYTES * senders * sent, 4 * senders), FLOAT_BYTES * senders * received


def _num_classes(labels: AnyArray) -> int:
    return int(np.max(labels, initial=0)) + 1


def _numbers(leaves: Iterable[Any]) -> int:
    """How many numbers arrays of these shapes hold."""
    return sum(math.prod(leaf.shape) for leaf in leaves)


def _of_products(method: Refined, labels: AnyArray, clients: AnyArray, dim: int, more: int) -> int:
    """Bytes of a d × q matrix, and of some numbers more, for each client and round after the first."""
    labels, clients = np.asarray(labels), np.asarray(clients)
    dim = mapped_dim(method.method, dim)
    numbers = sum(dim * asked + more for asked in method.asked(dim, _num_classes(labels)))
    return FLOAT_BYTES * count_clients(labels, clients) * numbers


def mapped_dim(method: Method, dim: int) -> int:
    """Dimension of what a client summarises: of the features behind the method's map, if it has one."""
    return dim if method.feature_map is None else method.feature_map.num_features
