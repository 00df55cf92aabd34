"""The nearest class mean head."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from covfree.core.types import LinearHead, Moments
from covfree.heads.columns import head_for_present, resolved_sums, unit_columns


def ncm_head(moments: Moments) -> LinearHead:
    """Make a classifier that predicts the class whose mean has the largest cosine with the features.

    Args:
        moments: `first_moments` of all rows.

    Returns:
        The head: class means scaled to norm 1, with a bias of 0. Absent classes are marked. If a class's
        features sum to 0, within rounding, the mean has no direction, and the class's column is 0.

    Source: FedNCM (Legate et al. 2023).

    >>> import jax.numpy as jnp
    >>> ncm_head(Moments(jnp.array([2]), jnp.array([1]), jnp.array([[6.0, 8.0]]))).weight.ravel()
    Array([0.6, 0.8], dtype=float32)
    """
    mean = replace(moments, total=resolved_sums(moments)).mean
    weight = unit_columns(mean.T)
    return head_for_present(weight, jnp.zeros_like(weight[0]), moments.present)
