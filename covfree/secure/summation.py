"""Simulate secure sums in one process: of uploads that you give, or of clients' uploads in an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.keys import derive
from covfree.core.optional import optional
from covfree.core.types import AnyArray, PRNGKey
from covfree.rounds import cohort
from covfree.rounds.adding import is_table
from covfree.rounds.algorithm import Algorithm, ClientData, check_algorithm
from covfree.rounds.data import ClientTable
from covfree.rounds.run import number_of_rounds
from covfree.secure.client import STEPS, Client, public_of
from covfree.secure.holders import nothing_left
from covfree.secure.messages import Refused, check_enough, session_named
from covfree.secure.server import Server
from covfree.secure.words import Encoding, FixedPoint

T = TypeVar("T")


class Summed(NamedTuple):
    """The result of `secure_sum`.

    Attributes:
        total: the sum of the uploads that came, with the structure of an upload.
        came: the numbers of the clients whose uploads are in the sum.
    """

    total: Any
    came: list[int]


def secure_sum(
    uploads: Mapping[int, Any],
    point: Encoding,
    *,
    name: str = "sum",
    threshold: int | None = None,
    least: int | None = None,
    neighbours: int | None = None,
    leaves: Mapping[int, str] | None = None,
) -> Summed:
    """Add uploads so that the server sees only their sum; all parties of the protocol run in this process.

    The steps are those of `Client` and `Server`, which separate machines would call.

    Args:
        uploads: each client's upload, by its number: pytrees of one structure, with arrays that add up. At
            least three, as each of two clients would learn the other's upload from the sum.
        point: the encoding of numbers as words (integers modulo 2⁶⁴): a `FixedPoint`, or from
            `covfree.privacy.private_updates`.
        name: distinguishes this sum from others, see `Session`.
        threshold: t, see `Session`; by default the smallest number above half of a client's neighbours.
        least: the least number of clients in a sum. By default what ``point`` asks for: 2, or the number of
            clients on whose noise the privacy promise relies.
        neighbours: k, the number of other clients with which each client shares masks, an even number; None
            for all.
        leaves: for each client that leaves, the name in `STEPS` of the first step that it does not take.

    Returns:
        The sum of the uploads that were sent before their clients left. The sum of words is exact.
        Rounding a number to words has an error of at most 2^−(bits + 1) for each client; see
        `FixedPoint.bits`.

    Raises:
        Refused: if too many clients leave.
        ValueError: if a number is above the bound, the uploads differ in structure, shapes or data types, or
            ``least`` is too small for ``point``.

    >>> import numpy as np
    >>> uploads = {client: {"sum": np.full(2, client), "count": np.array(1)} for client in range(4)}
    >>> secure_sum(uploads, FixedPoint(100.0, 4), leaves={3: "mask"})
    Summed(total={'count': array(3), 'sum': array([3, 3])}, came=[0, 1, 2])
    """
    if len(uploads) > point.num_clients:
        raise ValueError(f"point: expected one for {len(uploads)} clients, got one for {point.num_clients}")
    forms = {_form(upload) for upload in uploads.values()}
    check_enough("uploads", len(uploads))
    if len(forms) > 1:
        raise ValueError(f"uploads: expected one structure, shapes and data types, got {len(forms)}")
    least = point.least if least is None else least
    if least < point.least:
        raise ValueError(f"least: expected at least {point.least} clients, as point asks for, got {least}")
    if neighbours is not None and point.least > 2:
        raise ValueError(
            "neighbours: expected None (each client shares masks with all others), as the server could learn "
            f"a sum of fewer than {point.least} clients otherwise, got {neighbours}"
        )
    words = {client: point.encode(upload) for client, upload in uploads.items()}
    for client, step in (leaves or {}).items():
        if client not in uploads or step not in STEPS:
            raise ValueError(f"leaves: expected clients' steps, among {STEPS}, got {client!r}: {step!r}")
    ed25519 = optional("cryptography.hazmat.primitives.asymmetric.ed25519", "secure")
    keys = {client: ed25519.Ed25519PrivateKey.generate() for client in sorted(uploads)}
    public = {client: public_of(key) for client, key in keys.items()}
    size = len(next(iter(words.values())))
    session = session_named(name, public, size, least=least, threshold=threshold, neighbours=neighbours)
    clients = {client: Client(session, client, key) for client, key in keys.items()}
    server, like = Server(session), next(iter(uploads.values()))

    def here(step: str, among: Any) -> list[int]:
        gone = {*STEPS[: STEPS.index(step) + 1]}
        return [client for client in among if (leaves or {}).get(client) not in gone]

    for client in here("advertise", clients):
        server.take_advert(clients[client].advertise())
    shared = _each(here("share", clients), lambda client: clients[client].share(server.adverts_for(client)))
    for client, boxes in shared.items():
        server.take_shares(client, boxes)
    masked = _each(
        here("mask", shared), lambda client: clients[client].mask(server.shares_for(client), words[client])
    )
    for each in masked.values():
        server.take_upload(each)
    came = server.came()
    agreed = _each(here("agree", came), lambda client: clients[client].agree(came))
    for each in agreed.values():
        server.take_agreed(each)
    for opened in _each(
        here("unmask", agreed), lambda client: clients[client].unmask(server.agreed)
    ).values():
        server.take_opened(opened)
    return Summed(point.decode(server.total(), like), came)


def run_securely(
    algorithm: Algorithm,
    features: AnyArray,
    labels: AnyArray,
    clients: AnyArray,
    bound: float | Encoding,
    *,
    key: PRNGKey,
    rounds: int | None = None,
    **protocol: Any,
) -> Any:
    """Run an algorithm and return its result; in each round, `secure_sum` adds the clients' uploads.

    Args:
        algorithm: e.g. ``covfree.rounds.as_algorithm(method, num_classes=C, uploads="sums")``, or one of
            `covfree.finetune`.
        features: [examples, dim].
        labels: [examples] classes; below 0 is padding.
        clients: [examples] the client of each example, from 0; below 0 for none.
        bound: see `FixedPoint`: the largest absolute value of a number in an upload. Or an encoding of
            uploads as words, such as `covfree.privacy.private_updates`, with which each client adds noise.
        key: PRNG key of the run.
        rounds: the number of rounds; by default the algorithm's.
        protocol: ``threshold``, ``least`` and ``neighbours`` of `secure_sum`.

    Returns:
        The algorithm's result, such as a head.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of its range; if an upload holds a table of rows, which is no sum;
            if a number exceeds the bound; or if no class has as many clients as `common_classes` asks for.
        Refused: see `secure_sum`.
    """
    check_algorithm(algorithm)
    number = number_of_rounds(algorithm, rounds)
    data = _own_data(
        ClientTable.of(features, labels, clients, whole=algorithm.whole, num_classes=algorithm.num_classes)
    )
    check_enough("clients", len(data))
    point = bound if isinstance(bound, Encoding) else FixedPoint(bound, len(data))
    if point.rounds is not None and number > point.rounds:
        raise ValueError(
            f"rounds: expected at most {point.rounds}, for which the promise holds, got {number}"
        )
    state, memory = cohort.start(algorithm, key, num_clients=len(data))
    memories = dict.fromkeys(data, memory)
    answer = jax.jit(lambda algorithm, *given: algorithm.client(algorithm.params, *given)[:2])
    for turn in range(number):
        sent = cohort.broadcast(algorithm, state)
        own_keys = derive(jax.random.fold_in(derive(key, "rounds"), turn), "clients")
        uploads = {}
        for client, own in data.items():
            draws = jax.random.fold_in(own_keys, client)
            uploads[client], memories[client] = answer(algorithm, sent, own, memories[client], draws)
        if any(map(is_table, jax.tree.leaves(next(iter(uploads.values())), is_leaf=is_table))):
            raise ValueError(f"algorithm: expected uploads that are sums, got rows from {algorithm.name!r}")
        summed = secure_sum(uploads, point, name=f"{algorithm.name}, round {turn}", **protocol)
        state, _ = cohort.serve(algorithm, state, summed.total)
        if reason := nothing_left(algorithm.params, state):
            raise ValueError(f"holders: {reason}")
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *memories.values())
    return algorithm.result(algorithm.params, state, stacked)


def _form(upload: Any) -> Any:
    """Return an upload's structure, shapes and data types, which must be the same for all clients."""
    leaves, structure = jax.tree.flatten(upload)
    return structure, *((np.shape(leaf), str(np.asarray(leaf).dtype)) for leaf in leaves)


def _own_data(federation: ClientTable) -> dict[int, ClientData]:
    """Return each client's data, all padded to one size, so that one compilation serves all clients."""
    (features, labels, _), data = federation.examples, {}
    order = np.asarray(federation.examples.order)
    for client in np.flatnonzero(federation.size).tolist():
        start, size = federation.start[client], federation.size[client]
        index = np.full(federation.size.max(), -1, np.int32)
        index[:size] = order[start : start + size]
        data[client] = ClientData(features, labels, index, np.asarray(client, np.int32))
    return data


def _each(clients: Iterable[int], step: Callable[[int], T]) -> dict[int, T]:
    """Return ``step(client)`` for each client, without clients for which it raises `Refused`."""
    answers = {}
    for client in clients:
        with suppress(Refused):
            answers[client] = step(client)
    return answers
