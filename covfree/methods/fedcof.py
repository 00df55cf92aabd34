"""FedCOF: covariances from class means, and its oracle with the clients' true covariances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.estimators import Weighting, total_gram
from covfree.estimators.covariance import covariance_scatter
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import Freedom, centred_rows, class_weights
from covfree.estimators.shrinkage import Shrinkage, as_shrinkage
from covfree.heads import lda_head, ridge_head
from covfree.linalg import Scatter
from covfree.methods.fedncm import moments_phase
from covfree.methods.method import ClassMeans, Examples, Factor, Method, Summary, sent_matrix
from covfree.types import LinearHead, Message, Moments, Rows, Scalar


def _oracle_merge(
    shrinkage: Shrinkage, message: Message, num_classes: int
) -> tuple[Moments, tuple[Scatter, Any]]:
    covariances = sent_matrix(message.covariances, "covariances")
    if shrinkage.needs_rows:
        raise ValueError("shrinkage: the rule looks at single rows, which class covariances do not hold")
    moments = example_moments(message.rows, num_classes)
    weight = jnp.full(num_classes, 1 / jnp.maximum(moments.within_degrees, 1))
    return moments, (covariance_scatter(message.rows, covariances, moments, weight), None)


# A function takes the shrunk within-class covariance and the moments.
Head: TypeAlias = Literal["lda", "ridge"] | Callable[[Scatter, Moments], LinearHead]

_HEADS: dict[str, Callable[[Scatter, Moments], LinearHead]] = {"lda": lda_head, "ridge": ridge_head}


def _covariance_weights(moments: Moments, weighting: Weighting) -> Float[Array, " classes"]:
    """Weights with which the classes' scatters sum to Σ̂."""
    degrees = moments.within_degrees
    return class_weights(moments, weighting) / jnp.where(degrees > 0, degrees, 1)


@dataclass(frozen=True)
class _CovariancePhase:
    """Rows y_r with Σ̂ = Σ_r y_r y_rᵀ, and what the shrinkage rule must know of them."""

    weighting: Weighting

    def __call__(
        self, shrinkage: Shrinkage, totals: tuple[Moments], rows: Rows, num_classes: int
    ) -> tuple[Factor, Any]:
        (moments,) = totals
        factor = centred_rows(rows, moments, _covariance_weights(moments, self.weighting))
        return Factor(factor), shrinkage.statistics(factor)


@dataclass(frozen=True)
class _System:
    """Shrunk covariance, or the Gram matrix made from it where the head is ridge regression."""

    weighting: Weighting
    ridge: bool

    def __call__(self, shrinkage: Shrinkage, moments: Moments, spread: tuple[Scatter, Any]) -> Scatter:
        freedom = Freedom.of_classes(moments, _covariance_weights(moments, self.weighting))
        covariance = shrinkage.apply(spread[0], moments, freedom, spread[1])
        if not self.ridge:
            return covariance
        return total_gram(covariance.scaled(moments.within_degrees), moments, between_class=False)


@dataclass(frozen=True)
class _Head:
    function: Callable[[Scatter, Moments], LinearHead]

    def __call__(
        self, shrinkage: Shrinkage, system: Scatter, moments: Moments, spread: tuple[Scatter, Any]
    ) -> LinearHead:
        return self.function(system, moments)


def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int = 1,
    weighting: Weighting = "per_class",
    head: Head = "lda",
) -> Method:
    """FedCOF: clients send class means and counts; their spread gives the covariance that the head needs.

    Bytes up: 4·M·d for M client-class pairs, as FedNCM. The paper's settings are
    ``fedcof(shrinkage=1.0, head="ridge")``.

    Args:
        shrinkage: a number γ adds γI to the covariance; ``"auto"`` or another rule needs no tuning.
        num_subsets: most random subsets of a client's class, each sending its mean; more rows, more bytes.
        weighting: how the classes' scatters are put together, see `within_scatter`.
        head: ``"lda"``; ``"ridge"``, which solves with (N − C)·Σ̃ + N μ_g μ_gᵀ (the Gram matrix without
            the scatter between classes); or a function of the shrunk within-class covariance (a
            `Scatter`; ``.dense()`` is the matrix) and the `Moments`.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: Goswami, Magistri, Wang, Twardowski, Bagdanov and van de Weijer (2024), Alg. 1.
    """
    return _fedcof("fedcof", ClassMeans(num_subsets), shrinkage, weighting, head, "rows")


def fedcof_oracle(shrinkage: Scalar | str | Shrinkage = "auto", head: Head = "lda") -> Method:
    """FedCOF's oracle: clients also send their class covariances, so that nothing need be estimated.

    The covariances aggregate (`aggregate_covariances`) to the pooled examples' own within-class scatter,
    which is what is computed here. Bytes up: 4·M·(d² + d).

    Args:
        shrinkage: see `fedcof`.
        head: see `fedcof`.

    Source: FedCOF (Goswami et al. 2024), section 5 and eq. 24.
    """
    return _fedcof("fedcof-oracle", Examples(), shrinkage, "per_class", head, "covariances", _oracle_merge)


def _fedcof(
    name: str,
    summary: Summary,
    shrinkage: Scalar | str | Shrinkage,
    weighting: Weighting,
    head: Head,
    message: Literal["rows", "covariances"],
    merge: Callable[[Any, Message, int], tuple[Any, ...]] | None = None,
) -> Method:
    if weighting not in get_args(Weighting):
        raise ValueError(f"weighting: expected one of {get_args(Weighting)}, got {weighting!r}")
    function = _HEADS.get(head) if isinstance(head, str) else head
    if not callable(function):
        raise ValueError(f"head: expected 'lda', 'ridge' or a function, got {head!r}")
    return Method(
        params=as_shrinkage(shrinkage),
        name=name,
        summary=summary,
        phases=(moments_phase, _CovariancePhase(weighting)),
        system=_System(weighting, ridge=head == "ridge"),
        head=_Head(function),
        message=message,
        merge=merge,
    )
