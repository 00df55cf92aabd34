"""The clients' memory between rounds: a pytree whose leaves have a leading axis of clients."""

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


def of_all(memory: Any, num_clients: int, place: Place) -> Any:
    """Return the memory of all clients, each a copy of ``memory``: leaves get a leading axis of clients."""
    if place == "host":
        return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], num_clients, 0), memory)
    return jax.tree.map(lambda x: jnp.repeat(x[None], num_clients, 0), memory)


def placed(memory: Any, place: Place) -> Any:
    """Copy the memory of all clients, e.g. from a saved run, to where it is kept."""
    return jax.tree.map(np.array if place == "host" else jnp.array, memory)


def of_clients(memory: Any, clients: np.ndarray, place: Place) -> Any:
    """Return the memory of each client in ``clients``, from ``memory``, that of all clients.

    −1 is padding, and gets client 0's memory, which is not used.
    """
    if not jax.tree.leaves(memory):
        return memory
    places = np.maximum(clients, 0)
    return jax.tree.map(lambda x: x[places], memory) if place == "host" else _gather(memory, places)


def updated(memory: Any, clients: np.ndarray, new: Any, place: Place) -> Any:
    """Replace the memory of ``clients`` (−1 is padding) by ``new``; return the memory of all clients.

    The argument ``memory``, that of all clients, must not be used afterwards.
    """
    kept = clients >= 0
    if place == "host":
        for all_of, own in zip(jax.tree.leaves(memory), jax.tree.leaves(new), strict=True):
            all_of[clients[kept]] = np.asarray(own)[kept]
    elif jax.tree.leaves(memory):
        memory = _scatter(memory, np.where(kept, clients, np.iinfo(np.int32).max), new)
    return memory


@jit
def _gather(memory: Any, clients: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[clients], memory)


# Donate the old memory: two copies may not fit.
@partial(jit, donate_argnums=0)
def _scatter(memory: Any, clients: jax.Array, new: Any) -> Any:
    return jax.tree.map(lambda x, own: x.at[clients].set(own, mode="drop"), memory, new)
