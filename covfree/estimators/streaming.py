"""Estimate FedCOF's covariance of one class from rows that arrive in parts: `init`, `update`, `finalize`.

The state has a fixed size, so that `update` runs under ``jit`` and as the step of ``lax.scan``; ``vmap``
batches it over classes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from covfree.core.checks import check_means, check_positive
from covfree.core.doors import compiled
from covfree.core.linalg import Scatter
from covfree.core.products import product, symmetric_product
from covfree.core.sums import deviations
from covfree.core.types import AnyArray, Moments, Scalar
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.covariance import across, one_class, spread_weight
from covfree.estimators.moments import first_moments
from covfree.estimators.scatter import Freedom, centred_rows
from covfree.estimators.shrinkage import Shrinkage


class CovarianceState(NamedTuple):
    """The sufficient statistics of the rows added so far.

    Attributes:
        num_examples: N, the sum of the rows' counts.
        num_rows: K, the number of rows with a count above 0.
        centre: a point near the rows: the mean of those that were added first.
        offset: μ − centre, where μ is the rows' weighted mean. Storing μ as this difference keeps digits if
            the rows are far from 0.
        scatter: Σ_k n_k (μ_k − μ)(μ_k − μ)ᵀ over rows k, the means μ_k of n_k examples.
    """

    num_examples: Float[Array, ""]
    num_rows: Integer[Array, ""]
    centre: Float[Array, " dim"]
    offset: Float[Array, " dim"]
    scatter: Float[Array, "dim dim"]


def init(dim: int, dtype: Any = float) -> CovarianceState:
    """Make the initial state, which has no rows.

    Args:
        dim: d, the number of features.
        dtype: data type of the floats: float32, or float64 where x64 is enabled.

    Raises:
        TypeError: if ``dtype`` is another data type.
        ValueError: if ``dim`` is below 1.
    """
    check_positive("dim", dim)
    if jax.dtypes.canonicalize_dtype(dtype) not in (np.float32, np.float64):
        raise TypeError(f"dtype: expected float32 or float64, got {np.dtype(dtype).name}")
    # Make a separate array for each field, so that the state may be donated to `update`.
    return CovarianceState(
        num_examples=jnp.zeros((), dtype),
        num_rows=jnp.zeros((), jnp.int32),
        centre=jnp.zeros(dim, dtype),
        offset=jnp.zeros(dim, dtype),
        scatter=jnp.zeros((dim, dim), dtype),
    )


def _check_state(name: str, state: Any) -> None:
    if not isinstance(state, CovarianceState):
        raise TypeError(
            f"{name}: expected a CovarianceState that init or update returned, got {type(state).__name__}"
        )


def _check_states(first: Any, second: Any) -> None:
    _check_state("first", first)
    _check_state("second", second)


def _check_update(state: Any, means: Any, counts: Any) -> None:
    _check_state("state", state)
    check_means(means, counts)
    if jnp.shape(means)[1] != state.offset.shape[0]:
        raise ValueError(
            f"means: expected [rows, {state.offset.shape[0]}] as the state has, got {list(jnp.shape(means))}"
        )


@compiled(check=_check_update, padded={"means": 0, "counts": 0})
def update(
    state: CovarianceState, means: Float[AnyArray, "rows dim"], counts: Num[AnyArray, " rows"]
) -> CovarianceState:
    """Add rows to the state.

    Args:
        state: the state of all earlier rows.
        means: the class's mean in each new row.
        counts: examples behind each mean; rows with count 0 are ignored, whatever they hold.

    Returns:
        The state of all rows. The scatter is taken about their mean, so means far from 0 lose no digits.

    Raises:
        TypeError: if ``state`` is no state, means are no floats, or counts are no numbers.
        ValueError: if shapes do not fit.

    Source: the update of Chan, Golub and LeVeque (1983).

    >>> import jax.numpy as jnp
    >>> state = update(init(1), jnp.array([[0.0], [2.0]]), jnp.array([3, 3]))
    >>> state = update(state, jnp.array([[4.0]]), jnp.array([3]))
    >>> finalize(state).tolist()
    [[12.0]]
    """
    dtype = state.offset.dtype
    first = first_moments(one_class(means, counts), 1).mean[0].astype(dtype)
    centre = jnp.where(state.num_examples > 0, state.centre, first)
    rows = one_class(means.astype(dtype) - centre[None, :], counts)
    moments = first_moments(rows, 1)
    factor = centred_rows(rows, moments)
    part = CovarianceState(
        moments.count[0], moments.num_rows[0], centre, moments.mean[0], symmetric_product(factor)
    )
    return merge(state, part)


@compiled(check=_check_states)
def merge(first: CovarianceState, second: CovarianceState) -> CovarianceState:
    """Combine the states of two disjoint sets of rows into the state of all their rows."""
    count = first.num_examples + second.num_examples
    share = second.num_examples / jnp.where(count > 0, count, 1)
    centre = jnp.where(first.num_examples > 0, first.centre, second.centre)
    # `deviations` treats means that are equal up to rounding as equal, so rounding adds no spread.
    away = deviations(second.offset + (second.centre - centre), first.offset)
    between = first.num_examples * share * product(away[:, None], away[None, :])
    return CovarianceState(
        num_examples=count,
        num_rows=first.num_rows + second.num_rows,
        centre=centre,
        offset=first.offset + share * away,
        scatter=first.scatter + second.scatter + between,
    )


def finalize(
    state: CovarianceState,
    shrinkage: Scalar | str | Shrinkage = 0.0,
    *,
    axis_name: Hashable | None = None,
) -> Float[Array, "dim dim"]:
    """Estimate the covariance from the state, as `estimate_covariance` does from all rows at once.

    Args:
        state: the state of all rows.
        shrinkage: see `estimate_covariance`; not a rule that needs single rows, such as `ledoit_wolf`.
        axis_name: one or several mapped axes; Σ̂ is then estimated from the rows of all states along them.

    Returns:
        Σ̂.

    Raises:
        ValueError: if the shrinkage is unknown or needs single rows.
        TypeError: if ``state`` is no state, or ``shrinkage`` is neither a number, a string nor a rule.
    """
    _check_state("state", state)
    rule = as_shrinkage(shrinkage)
    if rule.needs_rows:
        raise ValueError(
            f"shrinkage: expected a number or a rule of Σ̂ alone, got {rule.rule.__name__.strip('_')}, which "
            "looks at single rows; a state has none"
        )
    return _finalize(state, rule, axis_name)


@compiled(("axis_name",))
def _finalize(state: CovarianceState, rule: Shrinkage, axis_name: Hashable | None) -> Array:
    count, num_rows, centre, offset, scatter = state
    if axis_name is not None:
        count, num_rows, total = across((count, num_rows, count * centre), axis_name)
        whole = jnp.where(count > 0, count, 1)
        centre = total / whole
        own = state.offset + (state.centre - centre)
        offset = across(state.num_examples * own, axis_name) / whole
        away = deviations(own, offset)
        scatter = across(scatter + state.num_examples * product(away[:, None], away[None, :]), axis_name)
    moments = Moments(count[None], num_rows[None], count * (centre + offset)[None, :])
    weight = spread_weight(moments)
    covariance = Scatter.from_matrix(scatter * weight[0])
    return rule.apply(covariance, moments, Freedom.of_classes(moments, weight), None).dense()
