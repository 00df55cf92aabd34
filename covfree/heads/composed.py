"""Heads made of other heads: after a feature map, with a linear term, or one of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from covfree.core.doors import AnyHead
from covfree.core.types import AnyArray, Head, LinearHead, is_traced


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SelectedHead:
    """One of several classifiers, perhaps of different kinds, chosen by an index that may be traced.

    Attributes:
        heads: the classifiers.
        index: the index of the chosen classifier.
    """

    heads: tuple[Head, ...]
    index: Integer[Array, ""]

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch classes"]:
        """Compute the scores of the chosen classifier."""
        # All branches must return the same data type.
        like = jax.eval_shape(lambda x: [head(x) for head in self.heads], features)
        dtype = jnp.result_type(*(each.dtype for each in like))
        branches = [lambda x, head=head: head(x).astype(dtype) for head in self.heads]
        return jax.lax.switch(self.index, branches, features)


def taken(head: AnyHead) -> AnyHead:
    """Unwrap a `SelectedHead`: return the classifier that its index chooses.

    If the index is traced, or the head is of another type, ``head`` itself is returned.
    """
    if not isinstance(head, SelectedHead) or is_traced(head.index):
        return head
    return cast(AnyHead, head.heads[int(np.asarray(head.index))])
