"""The ways to the within-class scatter: what each sums over rows, and how much it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from covfree.core.types import Moments, Rows
from covfree.estimators import Freedom, Weighting, first_moments, within_factor
from covfree.estimators.class_scatter import row_scatter
from covfree.estimators.components import (
    ComponentMoments,
    component_factor,
    component_freedom,
    component_moments,
)
from covfree.estimators.directed import DirectedMoments, directed_factor, directed_freedom, directed_moments
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows, class_weights


@runtime_checkable
class Within(Protocol):
    """An estimator of the within-class scatter Ŵ as a sum over rows; hashable."""

    def first(self, rows: Rows, num_classes: int) -> Any:
        """What must be known of all rows first; adds up over rows."""
        ...

    def moments(self, first: Any) -> Moments:
        """The class moments in it."""
        ...

    def factor(self, rows: Rows, first: Any) -> jax.Array:
        """Y with YᵀY = Ŵ, up to what `inner` adds."""
        ...

    def inner(self, rows: Rows, first: Any) -> jax.Array | None:
        """What clients sent of the scatter inside the rows: its diagonal, or one number for all."""
        ...

    def freedom(self, first: Any) -> Freedom:
        """Of Ŵ/(N − C)."""
        ...

    def class_weight(self, first: Any) -> jax.Array | None:
        """w_c with Ŵ/(N − C) = Σ_r w_c n_r (x_r − μ_c)(x_r − μ_c)ᵀ; None if Ŵ is made otherwise."""
        ...


@dataclass(frozen=True)
class FromMeans:
    """FedCOF: from how the rows' means spread."""

    weighting: Weighting

    def first(self, rows: Rows, num_classes: int) -> Moments:
        """The moments are enough."""
        return first_moments(rows, num_classes)

    def moments(self, first: Moments) -> Moments:
        """Themselves."""
        return first

    def factor(self, rows: Rows, first: Moments) -> jax.Array:
        """As `within_factor`."""
        return within_factor(rows, first, weighting=self.weighting)

    def inner(self, rows: Rows, first: Moments) -> None:
        """Estimated, not sent."""
        return None

    def freedom(self, first: Moments) -> Freedom:
        """K_c − 1 degrees for each class."""
        return Freedom.of_classes(first, self.class_weight(first))

    def class_weight(self, first: Moments) -> jax.Array:
        """Of the weighting."""
        return class_weights(first, self.weighting) / jnp.maximum(first.within_degrees, 1)


@dataclass(frozen=True)
class FromVariances:
    """The clients' own variances about their means, and how the means spread: no sampling error."""

    def first(self, rows: Rows, num_classes: int) -> Moments:
        """Every example was an observation, not every mean."""
        return example_moments(rows, num_classes)

    def moments(self, first: Moments) -> Moments:
        """Themselves."""
        return first

    def factor(self, rows: Rows, first: Moments) -> jax.Array:
        """Of the scatter between the means."""
        return centred_rows(rows, first, jnp.ones_like(first.total[:, 0]))

    def inner(self, rows: Rows, first: Moments) -> jax.Array:
        """Σ_r (n_r − 1) S_r of the variances that came with the rows."""
        if rows.covariance is None:
            raise ValueError("rows: expected a covariance with each row, as the method sends it; got none")
        return jnp.asarray(row_scatter(rows, first.total.shape[0]))

    def freedom(self, first: Moments) -> Freedom:
        """N_c − 1 degrees for each class."""
        weight = jnp.full_like(first.total[:, 0], 1) / jnp.maximum(first.within_degrees, 1)
        return Freedom.of_classes(first, weight)

    def class_weight(self, first: Any) -> None:
        """None: the variances come on top."""
        return None


@dataclass(frozen=True)
class FromComponents:
    """From the spread of a client's own means, free of client shift, and how clients are seen to differ."""

    weighting: Weighting

    def first(self, rows: Rows, num_classes: int) -> ComponentMoments:
        """The moments, and how many means stand for each client's class."""
        return component_moments(rows, num_classes)

    def moments(self, first: ComponentMoments) -> Moments:
        """Of all rows."""
        return first.moments

    def factor(self, rows: Rows, first: ComponentMoments) -> jax.Array:
        """As `component_factor`."""
        return component_factor(rows, first, weighting=self.weighting)

    def inner(self, rows: Rows, first: ComponentMoments) -> None:
        """Estimated, not sent."""
        return None

    def freedom(self, first: ComponentMoments) -> Freedom:
        """As `component_freedom`."""
        return component_freedom(first, self.weighting)

    def class_weight(self, first: Any) -> None:
        """None: the spread within a client weighs more."""
        return None


@dataclass(frozen=True)
class FromDirections:
    """From the scatter between means, and the leading directions of that inside them."""

    def first(self, rows: Rows, num_classes: int) -> DirectedMoments:
        """The moments, and the number of directions."""
        return directed_moments(rows, num_classes)

    def moments(self, first: DirectedMoments) -> Moments:
        """Of the rows that are means."""
        return first.moments

    def factor(self, rows: Rows, first: DirectedMoments) -> jax.Array:
        """As `directed_factor`."""
        return directed_factor(rows, first.moments)

    def inner(self, rows: Rows, first: DirectedMoments) -> None:
        """All of it is in the directions."""
        return None

    def freedom(self, first: DirectedMoments) -> Freedom:
        """As `directed_freedom`."""
        return directed_freedom(first)

    def class_weight(self, first: Any) -> None:
        """None: the directions come on top."""
        return None
