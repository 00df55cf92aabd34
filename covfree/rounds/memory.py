"""What clients remember between rounds: a bank of pytrees, one for each client."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from covfree.core.checks import check_choice, check_positive

# Where the bank lies: beside the computation, or in the host's memory where clients are too many for that.
Place = Literal["device", "host"]


@dataclass(frozen=True)
class Placement:
    """Where a simulation runs, and what it keeps there; nothing of it changes the result, but for rounding.

    Attributes:
        width: clients that are simulated at once by ``vmap``. More than one pays on accelerators.
        memory: where clients' memory lies: ``"device"``, or ``"host"`` for more clients than fit there.
        mesh: devices over which the clients of a round are spread; each has a copy of all examples.
        multiple: of which the number of clients that run together is one.
    """

    width: int = 1
    memory: Place = "device"
    mesh: Mesh | None = None
    multiple: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive("place: width", self.width)
        check_choice("place: memory", self.memory, get_args(Place))
        if not isinstance(self.mesh, Mesh | None):
            raise TypeError(f"place: mesh: expected a jax.sharding.Mesh or None, got {self.mesh!r}")
        if self.mesh is not None:
            # Of the kind that leaves to the compiler what is not said; `jax.make_mesh` makes another.
            object.__setattr__(self, "mesh", Mesh(self.mesh.devices, self.mesh.axis_names))
        devices = 1 if self.mesh is None else self.mesh.size
        object.__setattr__(self, "multiple", self.width * devices)


@dataclass
class Bank:
    """The memory of all clients, with an axis of clients in front of each leaf.

    Attributes:
        leaves: the pytree.
        place: where it lies.
    """

    leaves: Any
    place: Place

    @classmethod
    def of(cls, memory: Any, num_clients: int, place: Place) -> Bank:
        """One that holds the same for each client."""
        if place == "host":
            leaves = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], num_clients, 0), memory)
        else:
            leaves = jax.tree.map(lambda x: jnp.repeat(x[None], num_clients, 0), memory)
        return cls(leaves, place)

    @classmethod
    def holding(cls, leaves: Any, place: Place) -> Bank:
        """One that holds what was saved."""
        return cls(jax.tree.map(np.array if place == "host" else jnp.array, leaves), place)

    def of_clients(self, clients: np.ndarray) -> Any:
        """What these clients remember; of padding (−1), what some client does."""
        places = np.maximum(clients, 0)
        if self.place == "host":
            return jax.tree.map(lambda x: x[places], self.leaves)
        return _gather(self.leaves, places)

    def remember(self, clients: np.ndarray, memory: Any) -> None:
        """Take in what these clients remember now."""
        kept = clients >= 0
        if self.place == "host":
            for bank, new in zip(jax.tree.leaves(self.leaves), jax.tree.leaves(memory), strict=True):
                bank[clients[kept]] = np.asarray(new)[kept]
        elif jax.tree.leaves(self.leaves):
            self.leaves = _scatter(self.leaves, np.where(kept, clients, np.iinfo(np.int32).max), memory)


@jax.jit
def _gather(bank: Any, clients: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[clients], bank)


# The old bank is let go of: two would not fit where one does.
@partial(jax.jit, donate_argnums=0)
def _scatter(bank: Any, clients: jax.Array, memory: Any) -> Any:
    return jax.tree.map(lambda x, new: x.at[clients].set(new, mode="drop"), bank, memory)
