"""Compute the eigenvalues of the scatter within classes and of the scatter between classes."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.doors import compiled
from covfree.core.lapack import eigh
from covfree.core.linalg import rank_cut
from covfree.core.types import Rows
from covfree.estimators.moments import first_moments
from covfree.estimators.scatter import Weighting, between_scatter, within_scatter


class Spectrum(NamedTuple):
    """Eigenvalues of one scatter matrix.

    Attributes:
        values: eigenvalues, the largest first; those within rounding are 0.
        rank: the number of eigenvalues above 0.
        condition: the largest eigenvalue over the smallest above 0; 1 if all are 0.
    """

    values: Float[Array, " dim"]
    rank: Integer[Array, ""]
    condition: Float[Array, ""]


class Spectra(NamedTuple):
    """The spectra of the within-class scatter, of the between-class scatter, and of their sum.

    Attributes:
        within: spectrum of the within-class scatter, see `within_scatter`.
        between: spectrum of the `between_scatter`; its rank is at most C − 1.
        both: spectrum of their sum.
    """

    within: Spectrum
    between: Spectrum
    both: Spectrum


@compiled(("num_classes", "weighting"))
def scatter_spectra(rows: Rows, num_classes: int, *, weighting: Weighting = "per_class") -> Spectra:
    """Compute eigenvalues and condition numbers of the within-class and between-class scatter.

    A ridge head inverts the scatter that it is given. The scatter between classes has few, large eigenvalues,
    in the directions that separate the classes. If it is added to the scatter within classes, the condition
    number usually rises, so FedCOF leaves it out.

    Args:
        rows: class rows; examples (`Rows.from_examples`) give the exact spectra.
        num_classes: C, the number of classes, static.
        weighting: see `within_scatter`.

    Returns:
        The spectra. Costs three ``eigh`` of size dim.

    Source: FedCOF (Goswami et al. 2024), section 4.3.

    >>> import jax.numpy as jnp
    >>> means = jnp.array([[0.0, 0.0], [0.0, 2.0], [5.0, 0.0]])
    >>> rows = Rows(means, jnp.array([1, 1, 1]), jnp.array([0, 0, 1]))
    >>> scatter_spectra(rows, 2).within.values.tolist()
    [2.0, 0.0]
    """
    moments = first_moments(rows, num_classes)
    within, between = within_scatter(rows, moments, weighting=weighting), between_scatter(moments)
    return Spectra(*(_spectrum(matrix) for matrix in (within, between, within + between)))


def _spectrum(matrix: Float[Array, "dim dim"]) -> Spectrum:
    values = eigh(matrix)[0][::-1]
    kept = values > rank_cut(values)
    smallest = jnp.where(kept, values, jnp.inf).min()
    condition = jnp.where(kept.any(), values[0] / jnp.where(kept.any(), smallest, 1), 1)
    return Spectrum(jnp.where(kept, values, 0), kept.sum(), condition)
