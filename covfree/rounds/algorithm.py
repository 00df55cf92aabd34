"""The record of a federated algorithm's pure functions, and the data that its client function gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import AnyArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientData:
    """One client's examples, as indices into a table of examples.

    In a simulation the table has the examples of all clients, and only the examples that a step uses are
    copied. A real client has ``ClientData.own(features, labels)``.

    Attributes:
        features: [table, …] the table's features, of any rank: vectors, images, …; or a pytree of such
            arrays, such as ``{"ids": …, "mask": …}``.
        labels: [table] the examples' classes; or [table, …] other targets.
        index: [size] rows of the table that are the client's examples, followed by −1 as padding.
        client: number of the client, from 0.
    """

    features: Any
    labels: AnyArray
    index: AnyArray
    client: AnyArray

    @classmethod
    def own(cls, features: Any, labels: AnyArray, client: int | AnyArray = 0) -> ClientData:
        """Make the data of a client whose examples are all in these arrays.

        Args:
            features: [examples, …], or a pytree of such arrays.
            labels: [examples] classes, below 0 is padding; or [examples, …] other targets.
            client: the client's number.
        """
        padding = jnp.asarray(labels) < 0 if is_classes(labels) else jnp.zeros(len(labels), bool)
        # Padding comes last, as `index` promises.
        order = jnp.argsort(padding, stable=True)
        index = jnp.where(padding[order], -1, order).astype(jnp.int32)
        return cls(features, labels, index, jnp.asarray(client, jnp.int32))

    @property
    def num_examples(self) -> jax.Array:
        """n_k, the number of the client's examples."""
        return (self.index >= 0).sum(dtype=jnp.int32)

    def take(self, places: AnyArray) -> tuple[Any, jax.Array]:
        """Return a batch of the client's examples.

        Args:
            places: [batch] positions among the client's examples; positions past the end give padding.

        Returns:
            Features [batch, …] and labels [batch]. Padding has the features of some example and the label −1,
            or 0 if labels are not classes.
        """
        index = jnp.asarray(self.index).at[places].get(mode="fill", fill_value=-1)
        safe, labels = jnp.maximum(index, 0), jnp.asarray(self.labels)
        nothing = -1 if is_classes(labels) else jnp.zeros((), labels.dtype)
        labels = jnp.where((index >= 0).reshape(-1, *(1,) * (labels.ndim - 1)), labels[safe], nothing)
        return jax.tree.map(lambda x: jnp.asarray(x)[safe], self.features), labels

    def all(self) -> tuple[Any, jax.Array]:
        """Return features and labels of all of the client's examples, with padding after them, see `take`.

        The arrays are as long as ``index``.
        """
        return self.take(jnp.arange(self.index.shape[0]))


def is_classes(labels: Any) -> bool:
    """Return whether labels are classes: a vector of integers, one for each example."""
    return np.ndim(labels) == 1 and jnp.issubdtype(jnp.result_type(labels), jnp.integer)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm as pure functions of clients and server; in each round the server sums uploads.

    In round r the server broadcasts, each client that takes part answers with an upload, the uploads are
    added (`covfree.rounds.add`), and the server computes its next state from the sum:

        state ──broadcast──▶ client(broadcast, data, memory, key) ──▶ upload, memory, metrics
          ▲                                                              │ summed over clients
          └─────────────────── server(state, total) ◀────────────────────┘   … result(state, memory)

    The caller chooses which clients take part, and how many are computed at once. An algorithm is a pytree
    with the leaves of ``params``, so another learning rate needs no recompilation.

    Attributes:
        params: hyperparameters, which ``vmap`` may sweep, and initial arrays.
        name: the algorithm's name.
        init: ``(params, num_clients, key) -> (state, memory)``: the server's first state, and each client's
            memory before its first round, ``()`` if clients remember nothing. ``num_clients`` counts the
            clients that have examples.
        broadcast: ``(params, state) -> pytree`` that the server sends to clients.
        client: ``(params, broadcast, data, memory, key) -> (upload, memory, metrics)`` for one client, whose
            ``data`` is a `ClientData`. Metrics are a dict of numbers. For a client without examples the
            upload must be zero.
        server: ``(params, state, total) -> state``. The total is all zero if no upload arrived.
        result: ``(params, state, memory) -> result``, such as a head; it returns None as long as there is no
            result. The memory is that of all clients, with a leading axis of clients.
        rounds: the number of rounds; None for any number.
        whole: whether ``client`` takes all examples at once (`ClientData.all`). Padding then costs
            computation, so only clients of similar size are padded to a common size. If False, ``client``
            takes batches, and padding costs little.
        num_classes: C; labels are then classes, integers below C. None if labels may be anything, such as
            targets of a regression.
        same_clients: whether the same clients must take part in all rounds.
        report: ``(params, state) -> dict`` of numbers about the state after a round, which the history
            records; None if there are none.
    """

    params: Any
    name: str = field(metadata={"static": True})
    init: Callable[..., tuple[Any, Any]] = field(metadata={"static": True})
    broadcast: Callable[..., Any] = field(metadata={"static": True})
    client: Callable[..., tuple[Any, Any, dict[str, Any]]] = field(metadata={"static": True})
    server: Callable[..., Any] = field(metadata={"static": True})
    result: Callable[..., Any] = field(metadata={"static": True})
    rounds: int | None = field(default=None, metadata={"static": True})
    whole: bool = field(default=False, metadata={"static": True})
    num_classes: int | None = field(default=None, metadata={"static": True})
    same_clients: bool = field(default=False, metadata={"static": True})
    report: Callable[..., dict[str, Any]] | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("init", "broadcast", "client", "server", "result"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name}: expected a function, got {getattr(self, name)!r}")


def check_algorithm(algorithm: Any) -> None:
    """Raise unless the argument is an `Algorithm`."""
    if not isinstance(algorithm, Algorithm):
        hint = type(algorithm).__name__
        if hint == "Model":
            hint += "; make an algorithm of it, such as covfree.finetune.fedavg(model)"
        elif hint == "Method":
            hint += "; make an algorithm of it: covfree.rounds.as_algorithm(method, num_classes=…)"
        elif callable(algorithm):
            hint = f"{getattr(algorithm, '__name__', algorithm)!s}, which makes one: call it"
        raise TypeError(f"algorithm: expected a covfree.rounds.Algorithm, got {hint}")
