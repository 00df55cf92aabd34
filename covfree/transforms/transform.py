"""What a transform of rows is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax

from covfree.types import PRNGKey, Rows, Scalar


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transform:
    """A transform of the rows that a client sends: a pytree whose one leaf is ``strength``.

    Row by row, so that it is the same on one client's rows and on all clients' in a simulation.

    Attributes:
        strength: the number a user may sweep or differentiate; what it means is the transform's to say.
        apply: ``(strength, rows, key) -> rows``.
    """

    strength: Scalar
    apply: Callable[[Scalar, Rows, jax.Array], Rows] = field(metadata={"static": True})

    def __call__(self, rows: Rows, *, key: PRNGKey) -> Rows:
        """The transformed rows."""
        return self.apply(self.strength, rows, key)
