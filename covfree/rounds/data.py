"""The examples of a simulated federation: one table, of which each client is a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.doors import as_array, as_int32
from covfree.engine.parts import digest
from covfree.rounds.checkpoint import Mark
from covfree.rounds.cohort import Examples, Members


class Group(NamedTuple):
    """Members of a round that run in one compiled function.

    Attributes:
        members: as the function takes them.
        clients: their numbers on the host; −1 for padding.
        longest: most examples of any.
    """

    members: Members
    clients: np.ndarray
    longest: int


@dataclass(frozen=True)
class Federation:
    """All clients' examples.

    Attributes:
        examples: the table.
        start: [clients] where in the table's order each client's examples start.
        size: [clients] how many it has.
        longest: [clients] the padded size with which it is compiled.
    """

    examples: Examples
    start: np.ndarray
    size: np.ndarray
    longest: np.ndarray

    @classmethod
    def of(
        cls, features: Any, labels: Any, clients: Any, *, whole: bool, num_classes: int | None = None
    ) -> Federation:
        """From flat arrays, checked.

        Args:
            features: [examples, …], floats, or integers such as pixels.
            labels: [examples], integers; below 0 is padding.
            clients: [examples], integers; below 0 is padding.
            whole: whether clients look at all of their examples at once, so that those of about one size
                are best put together.
            num_classes: C, which labels must be below; None for any.

        Raises:
            TypeError: if a data type is wrong.
            ValueError: if a shape or a value is wrong.
        """
        shape, dtype = np.shape(features), jnp.dtype(getattr(features, "dtype", np.float32))
        if len(shape) < 2:
            raise ValueError(f"features: expected shape [examples, …], got {list(shape)}")
        for name, array in (("labels", labels), ("clients", clients)):
            if np.asarray(array).dtype.kind not in "iu":
                raise TypeError(f"{name}: expected integers, got {np.asarray(array).dtype}")
            if np.shape(array) != shape[:1]:
                raise ValueError(
                    f"{name}: expected shape [{shape[0]}], one for each row of features, got "
                    f"{list(np.shape(array))}"
                )
        owner = np.where(np.asarray(as_int32("labels", labels)) >= 0, np.asarray(clients), -1)
        if not (owner >= 0).any():
            raise ValueError("clients: expected an example of a client at least, got none")
        if owner.max() >= shape[0] + 2**20:
            raise ValueError(
                f"clients: expected numbers from 0 without large gaps, got {owner.max()}; number them anew: "
                "np.unique(clients, return_inverse=True)[1]"
            )
        if num_classes is not None and (past := (np.asarray(labels) >= num_classes) & (owner >= 0)).any():
            row = int(past.argmax())
            raise ValueError(
                f"labels: row {row} of client {owner[row]} has label {np.asarray(labels)[row]}; expected "
                f"labels below num_classes = {num_classes} (below 0 is padding)"
            )
        if jnp.issubdtype(dtype, jnp.floating):
            finite = np.asarray(_finite(features))
            if (wrong := ~finite & (owner >= 0)).any():
                row = int(wrong.argmax())
                raise ValueError(
                    f"features: row {row} of client {owner[row]} (class {np.asarray(labels)[row]}) holds a "
                    "number that is not finite; expected finite numbers"
                )
        order = np.argsort(owner, kind="stable").astype(np.int32)
        order = order[(owner < 0).sum() :]
        size = np.bincount(owner[owner >= 0]).astype(np.int32)
        start = (np.cumsum(size) - size).astype(np.int32)
        longest = np.full(len(size), size.max())
        if whole:
            # Powers of 4 from 16: few functions are compiled, and padding is bounded.
            steps = np.ceil(np.log2(np.maximum(size, 16) / 16) / 2)
            longest = np.minimum(longest, (16 * 4**steps).astype(int))
        table = Examples(as_array(features), as_int32("labels", labels), as_array(order))
        return cls(table, start, size, longest)

    @property
    def num_clients(self) -> int:
        """The largest number of a client plus 1."""
        return len(self.size)

    @property
    def num_holders(self) -> int:
        """How many clients have examples."""
        return int((self.size > 0).sum())

    def groups(self, drawn: np.ndarray, delay: np.ndarray, multiple: int, delays: int) -> list[Group]:
        """The members of a round, in groups of one padded size each; the larger clients first.

        Args:
            drawn: clients of the round; −1 for nobody.
            delay: of their uploads.
            multiple: of which the members' number must be one.
            delays: how many there are.
        """
        delay, drawn = delay[drawn >= 0], drawn[drawn >= 0]
        # Those that run at once have about as much to do.
        order = np.lexsort((drawn, -self.size[drawn]))
        drawn, delay = drawn[order], delay[order]
        groups = []
        for longest in np.unique(self.longest[drawn]) if len(drawn) else self.longest[:1]:
            here = self.longest[drawn] == longest
            # Rounded up, so that rounds share a compiled function.
            number = -(-max(1, int(here.sum())) // multiple) * multiple
            padding = number - int(here.sum())
            clients = np.append(drawn[here], np.full(padding, -1)).astype(np.int32)
            arrives = np.append(delay[here], np.full(padding, -1))[:, None] == np.arange(delays)
            known = clients >= 0
            members = Members(
                as_array(clients),
                as_array(np.where(known, self.start[clients], 0)),
                as_array(np.where(known, self.size[clients], 0)),
                as_array(arrives),
            )
            groups.append(Group(members, clients, int(longest)))
        return groups

    def identity(self) -> dict[str, Mark]:
        """What tells the examples, and who has which, from those of another federation."""
        order, size = np.asarray(self.examples.order), self.size
        return {
            "features": Mark.of(self.examples.features),
            "labels": Mark.of(self.examples.labels),
            "clients": Mark(f"{len(size)} clients of {len(order)} examples", digest([order, size])),
        }


@jax.jit
def _finite(features: jax.Array) -> jax.Array:
    """Whether all numbers of each example are finite."""
    return jnp.isfinite(features).reshape(features.shape[0], -1).all(1)
