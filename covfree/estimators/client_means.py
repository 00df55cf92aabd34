"""Compute the class means of each client from its rows, which may be examples."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from covfree.core.types import Rows
from covfree.estimators.components import client_groups
from covfree.estimators.moments import first_moments, row_labels


def client_means(rows: Rows, num_classes: int) -> Rows:
    """Average the rows of each client and class: the result has one row for each such pair, then padding.

    >>> import jax.numpy as jnp
    >>> client = jnp.array([5, 5, 7])
    >>> rows = Rows(jnp.array([[1.0], [4.0], [9.0]]), jnp.array([2, 1, 1]), jnp.zeros(3, int), client)
    >>> means = client_means(rows, 1)
    >>> means.mean.ravel().tolist(), means.count.tolist()
    ([2.0, 9.0, 0.0], [3.0, 1.0, 0.0])
    """
    group = client_groups(rows, num_classes)
    size = max(1, group.shape[0])
    own = first_moments(replace(rows, label=group, covariance=None, sketch=None), size)
    slot = jnp.where(group >= 0, group, size)
    label = jax.ops.segment_max(row_labels(rows), slot, size)
    return Rows(own.mean, own.count, jnp.where(own.count > 0, label, -1))
