"""A head that is one of several heads, chosen by an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import jax
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.doors import AnyHead
from covfree.core.types import AnyArray, Head, is_traced


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
        dtype = jax.numpy.result_type(*(each.dtype for each in like))
        branches = [lambda x, head=head: head(x).astype(dtype) for head in self.heads]
        return jax.lax.switch(self.index, branches, features)


def taken(head: AnyHead) -> AnyHead:
    """Unwrap a `SelectedHead`: return the classifier that its index chooses.

    If the index is traced, or the head is of another type, ``head`` itself is returned.
    """
    if not isinstance(head, SelectedHead) or is_traced(head.index):
        return head
    return cast(AnyHead, head.heads[int(np.asarray(head.index))])
