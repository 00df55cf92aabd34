"""A classifier that is applied after a feature map."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Num

from covfree.core.types import AnyArray, Head


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MappedHead:
    """A classifier of mapped features: ``head(feature_map(x))``.

    Attributes:
        feature_map: the map.
        head: the classifier of the mapped features.
    """

    feature_map: Head
    head: Head

    def __call__(self, features: Num[AnyArray, "..."]) -> Float[Array, "... classes"]:
        """Map the features, and compute the score of each class from the mapped features."""
        scores: jax.Array = self.head(self.feature_map(features))
        return scores
