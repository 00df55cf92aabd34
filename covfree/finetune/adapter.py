"""A small trainable network between frozen features and a linear head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.checks import check_positive
from covfree.core.types import LinearHead, PRNGKey
from covfree.finetune.model import Model, linear_part
from covfree.heads.composed import MappedHead
from covfree.heads.student import StudentHead
from covfree.statistics.feature_maps import Adapter


def _features(
    trained: Any, frozen: Any, statistics: tuple[()], inputs: Any, train: bool, key: Any
) -> tuple[jax.Array, tuple[()]]:
    adapter, _ = trained
    return adapter(inputs), ()


def _scores(trained: Any, frozen: Any, features: Any) -> jax.Array:
    _, head = trained
    return replace(head, present=frozen)(features)


def _finish(trained: Any, frozen: Any, statistics: tuple[()]) -> MappedHead:
    adapter, head = trained
    return MappedHead(adapter, replace(head, present=frozen))


def adapter_model(
    head: LinearHead | StudentHead | MappedHead, *, rank: int = 32, key: PRNGKey | None = None
) -> Model:
    """Make a model that trains a linear head on features, and a residual adapter before the head.

    The adapter maps features x in d dimensions to x + relu(x A) B, with A [d, rank] and B [rank, d]. A is
    drawn from N(0, 1/d) and B starts as 0, so before training the model predicts what the linear head does
    (of a `StudentHead`, its linear part). The result of a run is a `MappedHead` of an `Adapter` and a head;
    pass this result as ``head`` to train it further.

    Args:
        head: a head calibrated as in `linear_model`, or the result of an earlier run.
        rank: the rank of the adapter, which has 2·d·rank parameters; ignored if the head has an adapter
            already.
        key: PRNG key that draws A; needed unless the head has an adapter already.

    Raises:
        TypeError: if the head is not linear, or a key is needed and missing.

    Source: Houlsby et al. (2019), "Parameter-Efficient Transfer Learning for NLP", section 2.1; no biases.
    """
    if isinstance(head, MappedHead) and isinstance(head.feature_map, Adapter):
        adapter, inner = head.feature_map, head.head
    else:
        adapter, inner = None, head
    inner = linear_part(inner)
    if adapter is None:
        check_positive("rank", rank)
        if key is None:
            raise TypeError("key: expected a PRNG key to draw the adapter with, got None")
        dim = inner.weight.shape[0]
        down = jax.random.normal(key, (dim, rank), inner.weight.dtype) * dim**-0.5
        adapter = Adapter(down, jnp.zeros((rank, dim), inner.weight.dtype))
    trained, classes = (adapter, replace(inner, present=None)), inner.weight.shape[1]
    return Model(trained, inner.marks, (), _features, _scores, _finish, num_classes=classes)
