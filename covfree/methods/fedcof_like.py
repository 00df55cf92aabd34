"""FedCOF-like methods: the head is computed from a shrunk estimate of the within-class covariance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import Head, LinearHead, Moments, Rows, Scalar
from covfree.estimators import ScatterChoice, total_gram
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads import lda_head, ridge_head
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round, bound, option
from covfree.methods.student import Student, with_student
from covfree.methods.summary import Summary
from covfree.methods.within import Within, moments_of

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


def _first_phase(
    shrinkage: Shrinkage, sent: tuple[()], rows: Rows, num_classes: int, *, within: Within
) -> Any:
    return within.first(rows, num_classes)


def _spread_phase(
    shrinkage: Shrinkage, sent: tuple[Any], rows: Rows, num_classes: int, *, within: Within
) -> Spread:
    """Compute what a client's rows add to the `Spread` that the server sums.

    ``sent`` holds the first round's total, and ``within`` is the estimator of the within-class covariance.
    Over all clients, the fields ``scatter`` and ``inner`` (0 if None) sum to this covariance before
    shrinkage.
    """
    (first,) = sent
    divisor = within.freedom(first).expected
    factor = within.factor(rows, first) / jnp.sqrt(divisor)
    inner = None if within.inner is None else within.inner(rows, first) / divisor
    weight = None if within.class_weight is None else within.class_weight(first) / divisor
    statistics = shrinkage.statistics(factor, rows, moments_of(first), weight)
    return Spread(Factor(factor), inner, statistics)


def _system(
    shrinkage: Shrinkage, first: Any, spread: Spread, *, within: Within, gram: ScatterChoice | None
) -> Scatter:
    """Compute the matrix with which the head is solved, from the totals of the two rounds of sums.

    ``first`` and ``spread`` are these totals, and ``within`` estimates the within-class scatter. If ``gram``
    is None (for all heads but ridge heads), the matrix is the shrunk within-class covariance. For a ridge
    head it is the Gram matrix that `gram_of` makes from this covariance.
    """
    moments = moments_of(first)
    scatter = spread.scatter if spread.inner is None else with_inner(spread.scatter, spread.inner)
    freedom = within.freedom(first)
    freedom = freedom.scaled(1 / freedom.expected)
    covariance = shrinkage.apply(scatter, moments, freedom, spread.statistics)
    return covariance if gram is None else gram_of(covariance, first, within, gram)


def gram_of(covariance: Scatter, first: Any, within: Within, gram: ScatterChoice) -> Scatter:
    """Make the Gram matrix of a ridge head from the method's shrunk covariance within classes.

    The covariance times its degrees of freedom is the scatter within classes; `total_gram` adds the other
    terms.

    Args:
        covariance: the shrunk covariance.
        first: the total of the first round, which gives the class means and counts.
        within: the estimator with which the covariance was computed.
        gram: which terms to add: the argument ``scatter`` of `total_gram`.
    """
    moments = moments_of(first)
    # The covariance times its degrees of freedom is Ŵ, to which a class with a single row adds nothing. The
    # shift is multiplied by all N − C, as in the paper: γI is added to the covariance of each class, and
    # N_c − 1 times these are summed.
    observed = covariance.unshifted.scaled(within.freedom(first).expected)
    return total_gram(observed.shifted(covariance.shift * moments.within_degrees), moments, scatter=gram)


def _head(
    shrinkage: Shrinkage,
    system: Scatter,
    first: Any,
    spread: Spread,
    *,
    function: Callable[[Scatter, Moments], Head],
) -> Head:
    return function(system, moments_of(first))


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
    return Method(
        params=as_shrinkage(shrinkage),
        name=name,
        summary=summary,
        rounds=(
            Round(bound(_first_phase, within=within), fixed=True),
            Round(bound(_spread_phase, within=within), fixed=True),
        ),
        system=bound(_system, within=within, gram=scatter if head == "ridge" else None),
        head=bound(_head, function=function),
    )


def with_inner(scatter: Scatter, inner: jax.Array | None) -> Scatter:
    """Add to ``scatter`` the variances that clients sent beside their class means, if any.

    ``inner`` is a vector with one variance for each feature, one number for all features, or None.
    """
    if inner is None:
        return scatter
    return scatter.shifted(inner) if inner.ndim == 0 else scatter.with_diagonal(inner)


def shared_covariance(method: Method[Any]) -> Callable[..., Scatter] | None:
    """Return the function by which the server of a method like `fedcof` computes the shrunk covariance.

    The function returns the covariance even if the method's head is a ridge head, which is solved with a Gram
    matrix.

    Returns:
        ``(params, *state) -> Scatter``, from the method's ``params`` and the server's state after all
        rounds; None if the method is not FedCOF-like.
    """
    linear = option(method.system, "system") or method.system
    within = option(linear, "within")
    if within is None:
        return None
    # A ridge head is solved with a Gram matrix; all others with the covariance.
    return method.system if option(linear, "gram") is None else bound(_system, within=within, gram=None)


def refinable_head(method: Method) -> tuple[ScatterChoice | None, Callable[..., Head] | None]:
    """Return two settings with which `refined` makes the head of a FedCOF-like method again.

    Returns:
        First, for a ridge head, the terms of its Gram matrix: the option ``scatter`` of `total_gram`; None
        for other heads. Second, for a Student head, the function ``method.head``; None for other heads.

    Raises:
        ValueError: if the method is not FedCOF-like, or has another head than LDA, ridge or Student, or an
            intercept or a temperature.
    """
    student = option(method.system, "system")
    system = student or method.system
    within, gram = option(system, "within"), option(system, "gram")
    linear = lda_head if gram is None else ridge_head
    if within is not None and (student or option(method.head, "function") is linear):
        return gram, method.head if student else None
    raise ValueError(
        "method: expected one with an LDA, ridge or Student head of an estimated covariance, without an "
        f"intercept or a temperature, such as covfree.fedcof(), got {method.name!r}"
    )


def linear_system(method: Method) -> ScatterChoice | None:
    """Return which terms a ridge head's Gram matrix has; None for an LDA head.

    The terms are the option ``scatter`` of `total_gram`: "within", "between" or "both".

    Raises:
        ValueError: if the method is not FedCOF-like, or its head is neither ridge nor LDA.
    """
    gram, other = refinable_head(method)
    if other is None:
        return gram
    raise ValueError(f"method: expected one with an LDA or ridge head, got {method.name!r}")
