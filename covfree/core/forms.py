"""Find the shapes and data types of a function's result without computing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Form(NamedTuple):
    """The shapes and data types of a pytree of arrays, without the arrays.

    Attributes:
        structure: the tree structure.
        leaves: shape and data type of each leaf.
    """

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    def zeros(self) -> Any:
        """Return the pytree with zeros as leaves: new arrays, so that ``jit`` may donate them."""
        return self.filled(jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves)

    def filled(self, leaves: Iterable[jax.Array]) -> Any:
        """Build the pytree from the next arrays of the iterator ``leaves``, one for each leaf.

        Later arrays stay in the iterator, e.g. for another `Form`.
        """
        return jax.tree.unflatten(self.structure, list(islice(leaves, len(self.leaves))))


def forms_of(make: Callable[..., Iterable[Any]], *arguments: Any) -> list[Form]:
    """Return the `Form` of each pytree in the sequence ``make(*arguments)``, without computing it."""
    structures: list[Any] = []

    def leaves(*arguments: Any) -> list[list[Any]]:
        # `eval_shape` puts shapes in place of the arrays of its result. Dataclasses with fields typed as
        # arrays must not hold shapes, so return their leaves alone.
        flat, found = zip(*map(jax.tree.flatten, make(*arguments)), strict=True)
        structures[:] = found
        return list(flat)

    shapes = jax.eval_shape(leaves, *arguments)
    return [Form(structure, tuple(own)) for structure, own in zip(structures, shapes, strict=True)]


def zeros_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return zeros in the shapes and data types of ``function(*arguments)``, without computing it."""
    return forms_of(lambda *own: [function(*own)], *arguments)[0].zeros()
