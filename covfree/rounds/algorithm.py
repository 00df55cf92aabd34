"""What runs in rounds: a record of pure functions, with its numbers as the leaves of a pytree."""

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
    """One client's examples, which lie among others in a table.

    Where clients are simulated together, the table is that of the whole federation: nothing is copied but
    the examples that are worked on. A client of its own has ``ClientData.own(features, labels)``.

    Attributes:
        features: [table, …] the table's features, of any rank: vectors, images, …; or a pytree of such
            arrays, such as ``{"ids": …, "mask": …}``.
        labels: [table] their classes; or [table, …] what else is to be predicted.
        index: [size] where in the table the client's examples are, those first; −1 for padding.
        client: number of the client, from 0.
    """

    features: Any
    labels: AnyArray
    index: AnyArray
    client: AnyArray

    @classmethod
    def own(cls, features: Any, labels: AnyArray, client: int = 0) -> ClientData:
        """Make the data of a client whose examples are all in these arrays.

        Args:
            features: [examples, …], or a pytree of such arrays.
            labels: [examples] classes, below 0 is padding; or [examples, …] what else is to be predicted.
            client: its number.
        """
        padding = jnp.asarray(labels) < 0 if is_classes(labels) else jnp.zeros(len(labels), bool)
        # Padding comes last, as `index` promises.
        order = jnp.argsort(padding, stable=True)
        index = jnp.where(padding[order], -1, order).astype(jnp.int32)
        return cls(features, labels, index, jnp.asarray(client, jnp.int32))

    @property
    def num_examples(self) -> jax.Array:
        """n_k, how many examples the client has."""
        return (self.index >= 0).sum(dtype=jnp.int32)

    def take(self, places: AnyArray) -> tuple[Any, jax.Array]:
        """Some of the client's examples.

        Args:
            places: [batch] places among the client's examples; padding where there is none.

        Returns:
            Features [batch, …], and labels [batch], which are −1 for padding. Of padding, features are those
            of some example, and labels that are no classes are 0.
        """
        index = jnp.asarray(self.index).at[places].get(mode="fill", fill_value=-1)
        safe, labels = jnp.maximum(index, 0), jnp.asarray(self.labels)
        nothing = -1 if is_classes(labels) else jnp.zeros((), labels.dtype)
        labels = jnp.where((index >= 0).reshape(-1, *(1,) * (labels.ndim - 1)), labels[safe], nothing)
        return jax.tree.map(lambda x: jnp.asarray(x)[safe], self.features), labels

    def all(self) -> tuple[Any, jax.Array]:
        """All of the client's examples, padded to ``size``; labels of padding are −1."""
        return self.take(jnp.arange(self.index.shape[0]))


def is_classes(labels: Any) -> bool:
    """Whether labels are classes, an integer for each example, of which those below 0 are padding."""
    return np.ndim(labels) == 1 and jnp.issubdtype(jnp.result_type(labels), jnp.integer)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: what passes between clients and a server, in rounds whose uploads add up.

    In round r the server broadcasts, each client that takes part answers with an upload, the uploads are
    added (`covfree.rounds.add`), and the server makes its next state of the sum:

        state ──broadcast──▶ client(broadcast, data, memory, key) ──▶ upload, memory, metrics
          ▲                                                              │ summed over clients
          └─────────────────── server(state, total) ◀────────────────────┘   … result(state, memory)

    Whoever runs it chooses who takes part and how clients are put together; the algorithm does not know. A
    pytree whose leaves are the numbers in ``params``, so that another learning rate compiles nothing anew.

    Attributes:
        params: the numbers that may be swept, and arrays to start from.
        name: the algorithm's name.
        init: ``(params, num_clients, key) -> (state, memory)``: the server's first state, and what each
            client remembers before its first round; ``()`` where clients remember nothing. ``num_clients``
            counts the clients that have examples.
        broadcast: ``(params, state) -> pytree`` that clients need.
        client: ``(params, broadcast, data, memory, key) -> (upload, memory, metrics)`` for one client, whose
            ``data`` is a `ClientData`. Metrics are a dict of numbers. For a client without examples the
            upload must be zero.
        server: ``(params, state, total) -> state``. The total is all zero if no upload arrived.
        result: ``(params, state, memory) -> what is wanted``, such as a head; None as long as there is
            none. The memory is that of all clients, with an axis of clients in front.
        rounds: how many rounds it takes; None for as many as one likes.
        whole: whether a client looks at all of its examples at once (`ClientData.all`), so that it computes
            with padding too; only clients of about one size are then padded to one. If not, it takes them in
            batches, and padding costs no more than the order of its examples does.
        num_classes: C; labels are then classes, integers below it. None if labels may be anything, such as
            targets of a regression.
        same_clients: whether all rounds need the same clients, as they are steps of one computation.
        report: ``(params, state) -> dict`` of numbers that the history of a round tells of the state after
            it; None for nothing.
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
    """Raise unless this is an algorithm."""
    if not isinstance(algorithm, Algorithm):
        hint = type(algorithm).__name__
        if hint == "Model":
            hint += "; make an algorithm of it, such as covfree.finetune.fedavg(model)"
        elif hint == "Method":
            hint += "; make an algorithm of it: covfree.rounds.as_algorithm(method, num_classes=…)"
        elif callable(algorithm):
            hint = f"{getattr(algorithm, '__name__', algorithm)!s}, which makes one: call it"
        raise TypeError(f"algorithm: expected a covfree.rounds.Algorithm, got {hint}")
