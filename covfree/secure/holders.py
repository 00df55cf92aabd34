"""Leave out of secure sums the classes that only few clients have: their sums reveal these clients' data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_positive
from covfree.core.types import AnyArray, PRNGKey, is_traced
from covfree.methods.rounds import bound
from covfree.rounds.algorithm import Algorithm, ClientData, check_algorithm


class _Numbers(NamedTuple):
    """The ``params`` of the algorithm from `common_classes`.

    Attributes:
        own: the original algorithm's ``params``.
        holders: the least number of clients that must have a class.
    """

    own: Any
    holders: AnyArray


class _State(NamedTuple):
    """The server's state in the algorithm from `common_classes`.

    Attributes:
        own: the original algorithm's state.
        common: [C] bool, whether enough clients have the class; None until its clients are counted.
    """

    own: Any
    common: AnyArray | None


def common_classes(algorithm: Algorithm, holders: int) -> Algorithm:
    """Return an algorithm that first counts each class's clients, and leaves out classes with few clients.

    If only one client has a class, the sum of this class is that client's own sum, even under masks; of two,
    each learns the other's class mean from the total. So in a round before the algorithm's own ones, each
    client uploads C numbers: 1 for each class that it has, 0 for others. Their sums K_c are the numbers of
    clients with class c. The server announces the classes with K_c ≥ ``holders``, and clients leave the
    examples of other classes out of everything they send. FedCOF then takes three rounds of sums: K_c, class
    sums, and scatter. The head never predicts a class that was left out.

    A client must trust the announcement, as it does not see K_c.

    Args:
        algorithm: ``covfree.rounds.as_algorithm(method, num_classes=C, uploads="sums")``.
        holders: the least number of clients that hold a class, at least 3; more if some may be corrupt.

    Raises:
        ValueError: if ``holders`` is below 3, or if the algorithm has no fixed number of rounds or of
            classes, as its uploads are then not sums by class. A run raises if no class has enough holders.

    >>> import covfree
    >>> from covfree.rounds import as_algorithm
    >>> sums = as_algorithm(covfree.fedcof(), num_classes=10, uploads="sums")
    >>> common_classes(sums, 3).rounds
    3
    """
    check_algorithm(algorithm)
    if check_positive("holders", holders) < 3:
        raise ValueError(f"holders: expected at least 3 clients, got {holders}")
    if algorithm.rounds is None or algorithm.num_classes is None:
        raise ValueError(f"algorithm: expected sums of a method's classes, got {algorithm.name!r}")
    return replace(
        algorithm,
        params=_Numbers(algorithm.params, jnp.asarray(holders, jnp.int32)),
        init=bound(_init, init=algorithm.init),
        broadcast=bound(_broadcast, broadcast=algorithm.broadcast),
        client=bound(_client, client=algorithm.client, num_classes=algorithm.num_classes),
        server=bound(_server, server=algorithm.server),
        result=bound(_result, result=algorithm.result),
        rounds=algorithm.rounds + 1,
        # Require the same clients in all rounds: if one left after the count, a class might have too few
        # clients.
        same_clients=True,
        report=None if algorithm.report is None else bound(_report, report=algorithm.report),
    )


def nothing_left(params: Any, state: Any) -> str:
    """Return an error text if `common_classes` left out all classes, as too few clients have each; else "".

    ``state`` is the server's state. Also return "" if the classes' clients are not counted yet, or if the
    state is that of another algorithm.
    """
    if not isinstance(state, _State) or state.common is None or np.any(np.asarray(state.common)):
        return ""
    return f"no class is held by {int(params.holders)} clients or more: nothing is left to learn"


def _init(
    numbers: _Numbers, num_clients: int, key: PRNGKey, *, init: Callable[..., Any]
) -> tuple[_State, Any]:
    state, memory = init(numbers.own, num_clients, key)
    return _State(state, None), memory


def _broadcast(numbers: _Numbers, state: _State, *, broadcast: Callable[..., Any]) -> Any:
    """Return what the server of `common_classes` sends to clients.

    It sends None in the first round, which counts each class's clients. Later it sends a pair: a mask [C] of
    the classes that enough clients have, and the original algorithm's broadcast.
    """
    return None if state.common is None else (state.common, broadcast(numbers.own, state.own))


def _client(
    numbers: _Numbers,
    sent: Any,
    data: ClientData,
    memory: Any,
    key: PRNGKey,
    *,
    client: Callable[..., Any],
    num_classes: int,
) -> tuple[Any, Any, dict[str, Any]]:
    if sent is None:
        _, labels = data.all()
        # Padding gets the class C, which is out of range, so that JAX's `.at[].set` drops it.
        labels = jnp.where(labels >= 0, labels, num_classes)
        return jnp.zeros(num_classes, jnp.int32).at[labels].set(1, mode="drop"), memory, {}
    common, own = sent
    labels = jnp.asarray(data.labels)
    kept = (labels >= 0) & jnp.asarray(common)[jnp.clip(labels, 0, num_classes - 1)]
    return client(numbers.own, own, replace(data, labels=jnp.where(kept, labels, -1)), memory, key)


def _server(numbers: _Numbers, state: _State, total: Any, *, server: Callable[..., Any]) -> _State:
    if state.common is None:
        return _State(state.own, jnp.asarray(total) >= numbers.holders)
    return _State(server(numbers.own, state.own, total), state.common)


def _result(numbers: _Numbers, state: _State, memory: Any, *, result: Callable[..., Any]) -> Any:
    if not is_traced(state.common) and (reason := nothing_left(numbers, state)):
        raise ValueError(f"holders: {reason}")
    return None if state.common is None else result(numbers.own, state.own, memory)


def _report(numbers: _Numbers, state: _State, *, report: Callable[..., Any]) -> dict[str, Any]:
    return {} if state.common is None else report(numbers.own, state.own)
