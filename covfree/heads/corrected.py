"""A head whose scores are those of another head plus those of a linear head."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.types import AnyArray, Head, LinearHead


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CorrectedHead:
    """A classifier plus a linear one: scores are ``scale · head(x) + linear(x)``.

    A class is absent, with a score of −∞, if it is absent in the classifier or in the linear term.

    Attributes:
        head: the classifier, e.g. a `StudentHead`.
        linear: the linear term.
        scale: the factor of the classifier's scores, above 0.
    """

    head: Head
    linear: LinearHead
    scale: Float[Array, ""]

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch classes"]:
        """Compute the scores of each class."""
        own, more = self.head(features), self.linear(features)
        dtype = jnp.promote_types(own.dtype, more.dtype)
        return self.scale.astype(dtype) * own.astype(dtype) + more.astype(dtype)
