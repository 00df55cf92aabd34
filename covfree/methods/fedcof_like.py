"""FedCOF-like methods: the head is computed from a shrunk estimate of the within-class covariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import Head, LinearHead, Moments, Rows, Scalar
from covfree.estimators import ScatterChoice
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads import lda_head, ridge_head
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round, bound, head_of_moments, moments_of
from covfree.methods.student import Student, StudentNumbers, with_student
from covfree.methods.summary import Summary
from covfree.methods.within import Estimate, Within

# A head given as a function takes the shrunk within-class covariance and the moments.
HeadChoice: TypeAlias = Literal["lda", "ridge", "student"] | Student | Callable[[Scatter, Moments], Head]

_HEADS: dict[str, Callable[[Scatter, Moments], LinearHead]] = {
    "lda": lda_head,
    "ridge": ridge_head,
}


class Spread(NamedTuple):
    """A client's terms of the second round, or their total.

    In the total, ``scatter`` + ``inner`` is the covariance within classes before shrinkage.

    Attributes:
        scatter: the term from the means of the rows (class means, or single examples): a `Factor` from one
            client, a `Scatter` once added up.
        inner: the term from the variances that clients sent with the means: one for each feature, or one for
            all; None if they sent none.
        statistics: further sums over the rows, which only the shrinkage rule needs.
    """

    scatter: Any
    inner: jax.Array | None
    statistics: Any


def _first_terms(
    shrinkage: Shrinkage, sent: tuple[()], rows: Rows, num_classes: int, *, within: Within
) -> Any:
    return within.first(rows, num_classes)


def _spread_terms(
    shrinkage: Shrinkage, sent: tuple[Any], rows: Rows, num_classes: int, *, within: Within
) -> Spread:
    """Compute what a client's rows add to the `Spread` that the server sums.

    ``sent`` holds the first round's total, and ``within`` is the estimator of the within-class covariance.
    Summed over all clients, ``scatter`` + ``inner`` (0 if None) is this covariance before shrinkage.
    """
    (first,) = sent
    divisor = within.freedom(first).expected
    factor = within.factor(rows, first) / jnp.sqrt(divisor)
    inner = None if within.inner is None else within.inner(rows, first) / divisor
    weight = None if within.class_weight is None else within.class_weight(first) / divisor
    statistics = shrinkage.statistics(factor, rows, moments_of(first), weight)
    return Spread(Factor(factor), inner, statistics)


def _covariance(shrinkage: Shrinkage, first: Any, spread: Spread, *, within: Within) -> Scatter:
    """Compute the shrunk covariance within classes, from the totals of the two rounds of sums."""
    scatter = with_inner(spread.scatter, spread.inner)
    freedom = within.freedom(first)
    freedom = freedom.scaled(1 / freedom.expected)
    return shrinkage.apply(scatter, moments_of(first), freedom, spread.statistics)


def _gram_matrix(shrinkage: Shrinkage, first: Any, spread: Spread, *, estimate: Estimate) -> Scatter:
    return estimate.gram_of(estimate.covariance(shrinkage, first, spread), first)


def fedcof_like(
    name: str,
    summary: Summary,
    within: Within,
    shrinkage: Scalar | str | Shrinkage,
    head: HeadChoice,
    scatter: ScatterChoice = "within",
    *,
    bias: bool = False,
) -> Method[Any]:
    """Make a method whose head comes from a shrunk within-class covariance, which ``within`` estimates."""
    check_choice("scatter", scatter, get_args(ScatterChoice))
    if scatter != "within" and head != "ridge":
        raise ValueError(f"scatter: expected 'within' unless the head is 'ridge', got {scatter!r}")
    if bias and head != "ridge":
        raise ValueError(f"bias: expected False unless the head is 'ridge', got {bias!r}")
    if isinstance(head, Student) or head == "student":
        choice = head if isinstance(head, Student) else Student()
        linear = fedcof_like(name, summary, within, shrinkage, "lda", scatter)
        return with_student(linear, choice)
    function = _HEADS.get(head) if isinstance(head, str) else head
    if not callable(function):
        raise ValueError(f"head: expected 'lda', 'ridge', 'student' or a function, got {head!r}")
    if bias:
        function = bound(ridge_head, bias=True)
    estimate = Estimate(within, bound(_covariance, within=within), scatter if head == "ridge" else None)
    system = estimate.covariance if estimate.gram is None else bound(_gram_matrix, estimate=estimate)
    clients = bound(_first_terms, within=within), bound(_spread_terms, within=within)
    rounds = tuple(Round(client, fixed=True) for client in clients)
    return Method(
        params=as_shrinkage(shrinkage),
        name=name,
        summary=summary,
        rounds=rounds,
        system=system,
        head=bound(head_of_moments, function=function),
        estimate=replace(estimate, made=(system, rounds)),
    )


def with_inner(scatter: Scatter, inner: jax.Array | None) -> Scatter:
    """Add to ``scatter`` the variances that clients sent beside their class means, if any.

    ``inner`` is a vector with one variance for each feature, one number for all features, or None.
    """
    if inner is None:
        return scatter
    return scatter.shifted(inner) if inner.ndim == 0 else scatter.with_diagonal(inner)


def plain_head(method: Method[Any]) -> Literal["lda", "ridge", "student"] | None:
    """Return which head the server of a method like `fedcof` makes from its estimate of the covariance.

    None stands for another method or head, such as a linear head with an intercept or a temperature.
    """
    if method.estimate is None:
        return None
    if isinstance(method.params, StudentNumbers):
        return "student"
    linear = "lda" if method.estimate.gram is None else "ridge"
    return linear if method.head == bound(head_of_moments, function=_HEADS[linear]) else None
