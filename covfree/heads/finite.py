"""Make heads whose scores are all finite, for code that refuses −∞."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

import jax.numpy as jnp

from covfree.core.types import LinearHead
from covfree.heads.composed import CorrectedHead, MappedHead, taken
from covfree.heads.gaussian import GaussianHead
from covfree.heads.student import StudentHead

AnyHead = TypeVar("AnyHead")


def with_finite_scores(head: AnyHead, absent: float = -1e9) -> AnyHead:
    """Return a head that gives absent classes a low bias, not a score of −∞, which some code refuses.

    Predictions and the softmax stay the same if scores of present classes are far above ``absent``. The
    returned head has ``present`` None. Exclude its bias from weight decay, which would shrink ``absent`` too.

    Args:
        head: a linear, Gaussian or Student head, perhaps with a linear term or after a feature map.
        absent: the bias of an absent class, below all scores of present classes; limited to half the most
            negative number of the head's data type.

    Raises:
        TypeError: if the head has another type.

    >>> import jax.numpy as jnp
    >>> head = LinearHead(jnp.eye(2), jnp.zeros(2), present=jnp.array([1.0, 0.0]))
    >>> head(jnp.ones(2)).tolist(), with_finite_scores(head)(jnp.ones(2)).tolist()
    ([1.0, -inf], [1.0, -1000000000.0])
    """
    inner: Any = taken(head)
    if isinstance(inner, MappedHead):
        return cast(AnyHead, replace(inner, head=with_finite_scores(inner.head, absent)))
    if isinstance(inner, CorrectedHead):
        own, linear = with_finite_scores(inner.head, absent), with_finite_scores(inner.linear, absent)
        return cast(AnyHead, replace(inner, head=own, linear=linear))
    if not isinstance(inner, (LinearHead, GaussianHead, StudentHead)):
        raise TypeError(f"head: expected a linear, Gaussian or Student head, got {type(head).__name__}")
    if inner.present is None:
        return cast(AnyHead, inner)
    lowest = max(absent, float(jnp.finfo(inner.bias.dtype).min) / 2)
    present: Any = inner.marks if isinstance(inner, LinearHead) else inner.present
    bias = jnp.where(present > 0, inner.bias, lowest)
    return cast(AnyHead, replace(inner, bias=bias, present=None))
