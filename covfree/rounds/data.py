"""The examples of a simulated federation in one table, and where each client's examples are in it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.compiling import jit
from covfree.core.doors import as_array, as_int32
from covfree.engine.checkpoint import Mark, digest
from covfree.rounds.algorithm import is_classes
from covfree.rounds.cohort import Examples, Members

# A function is compiled for each size to which clients are padded. Two sizes are merged if this adds fewer
# padding examples than _SORTED: to sort so many in each round of a typical run takes about as long as one
# compilation.
_SORTED = 2**16


class Group(NamedTuple):
    """Some clients of a round, which run in one compiled function.

    Attributes:
        members: the clients as `Members`, arrays on the device.
        clients: the same clients' numbers, on the host; −1 for padding.
        longest: the size to which the examples of each member are padded.
    """

    members: Members
    clients: np.ndarray
    longest: int


@dataclass(frozen=True)
class ClientTable:
    """All clients' examples.

    Attributes:
        examples: features and labels, and ``order``, the examples' indices sorted by client.
        start: [clients] where in ``examples.order`` each client's examples start.
        size: [clients] the number of each client's examples.
        longest: [clients] the size to which each client's examples are padded.
    """

    examples: Examples
    start: np.ndarray
    size: np.ndarray
    longest: np.ndarray

    @classmethod
    def of(
        cls, features: Any, labels: Any, clients: Any, *, whole: bool, num_classes: int | None = None
    ) -> ClientTable:
        """Check the examples, and sort their indices by client.

        Args:
            features: [examples, …], floats, or integers such as pixels; or a pytree of such arrays.
            labels: [examples], integers, below 0 is padding; or [examples, …] any numbers.
            clients: [examples], integers; below 0 is padding.
            whole: whether clients take all of their examples at once, see `Algorithm.whole`.
            num_classes: C; labels must be integers below C. None allows any labels.

        Raises:
            TypeError: if a data type is wrong.
            ValueError: if a shape or a value is wrong.
        """
        owner = _owners(features, labels, clients, num_classes)
        order = np.argsort(owner, kind="stable").astype(np.int32)
        order = order[(owner < 0).sum() :]
        size = np.bincount(owner[owner >= 0]).astype(np.int32)
        start = (np.cumsum(size) - size).astype(np.int32)
        labels = as_int32("labels", labels) if is_classes(labels) else as_array(labels)
        table = Examples(jax.tree.map(as_array, features), labels, as_array(order))
        return cls(table, start, size, _padded_sizes(size, whole))

    def groups(self, drawn: np.ndarray, multiple: int) -> list[Group]:
        """Divide the clients of a round into groups, each of which is computed by one compiled function.

        In a group, all clients are padded to one number of examples; clients with more examples come first.

        Args:
            drawn: clients of the round; −1 for nobody.
            multiple: each group is padded to a multiple of this number of clients.
        """
        most, drawn = len(drawn), drawn[drawn >= 0]
        # Sort by size, so that clients that run at once have similar amounts of work.
        drawn = drawn[np.lexsort((drawn, -self.size[drawn]))]
        groups = []
        for longest in np.unique(self.longest[drawn]) if len(drawn) else self.longest[:1]:
            here = self.longest[drawn] == longest
            # Round up to a power of 2, so that rounds share a compiled function; padding costs no time.
            few = min(1 << (max(1, int(here.sum())) - 1).bit_length(), most, (self.longest == longest).sum())
            number = -(-max(1, few) // multiple) * multiple
            padding = number - int(here.sum())
            clients = np.append(drawn[here], np.full(padding, -1)).astype(np.int32)
            known = clients >= 0
            members = Members(
                as_array(clients),
                as_array(np.where(known, self.start[clients], 0)),
                as_array(np.where(known, self.size[clients], 0)),
            )
            groups.append(Group(members, clients, int(longest)))
        return groups

    def identity(self) -> dict[str, Mark]:
        """Return fingerprints of the examples and their clients; `Checkpoint` compares them."""
        order, size = np.asarray(self.examples.order), self.size
        parts, _ = jax.tree_util.tree_flatten_with_path(self.examples.features)
        return {
            **{f"features{jax.tree_util.keystr(path)}": Mark.of(part) for path, part in parts},
            "labels": Mark.of(self.examples.labels),
            "clients": Mark(f"{len(size)} clients of {len(order)} examples", digest([order, size])),
        }


def _owners(features: Any, labels: Any, clients: Any, num_classes: int | None) -> np.ndarray:
    """Return the client of each example, −1 for padding; raise if a shape, type or value is wrong."""
    parts = jax.tree.leaves(features)
    if not parts or any(np.ndim(part) < 1 for part in parts):
        raise ValueError(f"features: expected arrays [examples, …], got {type(features).__name__}")
    number = np.shape(parts[0])[0]
    # A single array must have an axis of features; an array in a pytree may have one number per example.
    if any(np.shape(part)[0] != number for part in parts) or (parts[0] is features and np.ndim(features) < 2):
        shapes = [list(np.shape(part)) for part in parts]
        raise ValueError(f"features: expected shape [examples, …], got {', '.join(map(str, shapes))}")
    kind = np.asarray(labels).dtype
    if num_classes is not None and kind.kind not in "iu":
        raise TypeError(
            f"labels: expected integers, got {kind}; for targets other than classes, use a model or an "
            "algorithm whose num_classes is None"
        )
    if np.asarray(clients).dtype.kind not in "iu":
        raise TypeError(f"clients: expected integers, got {np.asarray(clients).dtype}")
    classes = num_classes is not None or is_classes(labels)
    for name, array, wanted in (("labels", labels, classes), ("clients", clients, True)):
        if np.shape(array)[:1] != (number,) or (wanted and np.ndim(array) != 1):
            raise ValueError(
                f"{name}: expected shape [{number}], one for each row of features, got "
                f"{list(np.shape(array))}"
            )
    owner = np.asarray(clients)
    if classes:
        owner = np.where(np.asarray(as_int32("labels", labels)) >= 0, owner, -1)
    if not (owner >= 0).any():
        label = " and a label 0 or above" * classes
        raise ValueError(f"clients: expected at least one example of a client 0 or above{label}; got none")
    if owner.max() >= number + 2**20:
        raise ValueError(
            f"clients: expected numbers from 0 without large gaps, got {owner.max()}; number them anew: "
            "np.unique(clients, return_inverse=True)[1]"
        )
    if num_classes is not None and (past := (np.asarray(labels) >= num_classes) & (owner >= 0)).any():
        row = int(past.argmax())
        raise ValueError(
            f"labels: row {row} of client {owner[row]} has label {np.asarray(labels)[row]}; expected labels "
            f"below num_classes = {num_classes} (below 0 is padding)"
        )
    for name, part in [*(("features", part) for part in parts), ("labels", np.asarray(labels))]:
        if not jnp.issubdtype(getattr(part, "dtype", np.float32), jnp.floating):
            continue
        if (wrong := ~np.asarray(_finite(part)) & (owner >= 0)).any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{name}: row {row} of client {owner[row]} holds a number that is not finite; expected "
                "finite numbers"
            )
    return owner


@jit
def _finite(features: jax.Array) -> jax.Array:
    """Return, for each example, whether all of its numbers are finite."""
    return jnp.isfinite(features).reshape(features.shape[0], -1).all(1)


def _padded_sizes(size: np.ndarray, whole: bool) -> np.ndarray:
    """Return the number of examples to which each client's data is padded.

    The numbers are 16 times powers of 4, or the largest client's size if that is smaller, so that few
    functions are compiled. If clients take their examples in batches (not ``whole``), padding costs only
    sorting; then neighbouring sizes are merged if this costs less than compiling another function.
    """
    steps = np.ceil(np.log2(np.maximum(size, 16) / 16) / 2)
    padded = np.minimum(size.max(), (16 * 4**steps).astype(int))
    if whole:
        return padded
    for small, large in itertools.pairwise(np.unique(padded)):
        if (padded == small).sum() * (large - small) < _SORTED:
            padded = np.where(padded == small, large, padded)
    return padded
