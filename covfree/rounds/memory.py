"""The clients' memory between rounds: pytrees with one entry for each client."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from covfree.core.checks import check_choice, check_positive
from covfree.core.compiling import jit

# Where the memory is kept: on the device that computes, or on the host if the device is too small.
Place = Literal["device", "host"]


@dataclass(frozen=True)
class Placement:
    """How a simulation uses its devices, and where it keeps clients' memory; results change by rounding only.

    Attributes:
        width: the number of clients that ``vmap`` simulates at once. More than 1 is faster on accelerators.
        memory: where the clients' memory is kept: ``"device"``, or ``"host"`` if the device is too small.
        mesh: devices over which the clients of a round are spread; each has a copy of all examples.
        multiple: ``width`` times the mesh's devices; clients run in groups whose size is a multiple of this.
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
            # A `Mesh` made here has automatic axes, for which the compiler chooses shardings. The given one
            # may have others, such as explicit axes from `jax.make_mesh`.
            object.__setattr__(self, "mesh", Mesh(self.mesh.devices, self.mesh.axis_names))
        devices = 1 if self.mesh is None else self.mesh.size
        object.__setattr__(self, "multiple", self.width * devices)


@dataclass
class Bank:
    """What all clients remember between rounds: a pytree whose leaves have a leading axis of clients.

    Attributes:
        leaves: the pytree.
        place: ``"device"`` or ``"host"``, where the leaves are kept.
    """

    leaves: Any
    place: Place

    @classmethod
    def of(cls, memory: Any, num_clients: int, place: Place) -> Bank:
        """Make a bank for ``num_clients`` clients, each with a copy of the pytree ``memory``."""
        if place == "host":
            leaves = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], num_clients, 0), memory)
        else:
            leaves = jax.tree.map(lambda x: jnp.repeat(x[None], num_clients, 0), memory)
        return cls(leaves, place)

    @classmethod
    def holding(cls, leaves: Any, place: Place) -> Bank:
        """Make a bank from a copy of all clients' memory: ``leaves``, as in `Bank`, e.g. from a saved run."""
        return cls(jax.tree.map(np.array if place == "host" else jnp.array, leaves), place)

    def of_clients(self, clients: np.ndarray) -> Any:
        """Return the memory of each client in ``clients``: the pytree, with an axis of these clients.

        −1 is padding, and gets client 0's memory, which is not used.
        """
        places = np.maximum(clients, 0)
        if self.place == "host":
            return jax.tree.map(lambda x: x[places], self.leaves)
        return _gather(self.leaves, places)

    def remember(self, clients: np.ndarray, memory: Any) -> None:
        """Store the new memory of these clients; −1 is padding."""
        kept = clients >= 0
        if self.place == "host":
            for bank, new in zip(jax.tree.leaves(self.leaves), jax.tree.leaves(memory), strict=True):
                bank[clients[kept]] = np.asarray(new)[kept]
        elif jax.tree.leaves(self.leaves):
            self.leaves = _scatter(self.leaves, np.where(kept, clients, np.iinfo(np.int32).max), memory)


@jit
def _gather(bank: Any, clients: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[clients], bank)


# Donate the old memory: two copies may not fit.
@partial(jit, donate_argnums=0)
def _scatter(bank: Any, clients: jax.Array, memory: Any) -> Any:
    return jax.tree.map(lambda x, new: x.at[clients].set(new, mode="drop"), bank, memory)
