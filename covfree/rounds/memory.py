"""What clients remember between rounds: a bank of pytrees, one for each client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

# Where the bank lies: beside the computation, or in the host's memory where clients are too many for that.
Place = Literal["device", "host"]


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
