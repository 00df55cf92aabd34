"""Shapes and data types of a function's result, without computing it."""

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
        """Make the pytree of new arrays of zeros, which can be donated."""
        return self.filled(jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves)

    def filled(self, leaves: Iterable[jax.Array]) -> Any:
        """Make the pytree from an iterator's next arrays; it consumes only as many as it needs."""
        return jax.tree.unflatten(self.structure, list(islice(leaves, len(self.leaves))))


def forms_of(make: Callable[..., Iterable[Any]], *arguments: Any) -> list[Form]:
    """Find the forms of the pytrees that a function returns, without computing them."""
    structures: list[Any] = []

    def leaves(*arguments: Any) -> list[list[Any]]:
        # Return leaves only: records that hold shapes would contradict their fields' types.
        flat, found = zip(*map(jax.tree.flatten, make(*arguments)), strict=True)
        structures[:] = found
        return list(flat)

    shapes = jax.eval_shape(leaves, *arguments)
    return [Form(structure, tuple(own)) for structure, own in zip(structures, shapes, strict=True)]


def zeros_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Make zeros in the shapes of a function's result, without computing it."""
    return forms_of(lambda *own: [function(*own)], *arguments)[0].zeros()
