"""FedCOF: covariances from class means, and its oracle with the clients' true covariances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import H, Head, LinearHead, Message, Moments, Rows, Scalar
from covfree.estimators import ScatterChoice, Weighting, total_gram
from covfree.estimators.automatic import numbered
from covfree.estimators.covariance import covariance_scatter
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows
from covfree.estimators.shrinkage import as_shrinkage
from covfree.estimators.shrinkage_rule import Shrinkage
from covfree.heads import lda_head, ridge_head
from covfree.heads.mapped import MappedHead
from covfree.heads.student import StudentHead
from covfree.methods.message_form import MessageForm, class_covariance_matrices
from covfree.methods.method import Method, sent_matrix
from covfree.methods.rounds import Factor, Round, bound, option
from covfree.methods.student import Student, with_student
from covfree.methods.summaries import Summary, keep_examples, send_class_means
from covfree.methods.within import Within, from_means, from_variances, moments_of
from covfree.statistics.feature_maps import FeatureMap

# A function takes the shrunk within-class covariance and the moments.
HeadChoice: TypeAlias = Literal["lda", "ridge", "student"] | Student | Callable[[Scatter, Moments], Head]

# What clients send of a class's covariance.
RowForm: TypeAlias = Literal["full", "diagonal", "spherical"]

_HEADS: dict[str, Callable[[Scatter, Moments], LinearHead]] = {
    "lda": lda_head,
    "ridge": ridge_head,
}


class _Spread(NamedTuple):
    """The second phase, of Σ̂ = Ŵ/A; scatters are terms of `Factor` until they are added up.

    Attributes:
        scatter: of the rows.
        inner: what clients sent of that inside them.
        statistics: what the shrinkage rule must know of single rows.
    """

    scatter: Any
    inner: jax.Array | None
    statistics: Any


def _degrees(within: Within, first: Any) -> jax.Array:
    """A in Σ̂ = Ŵ/A that makes Σ̂ unbiased where classes share Σ: N − C if every class shows its spread."""
    return jnp.maximum(moments_of(first).within_degrees, 1) * within.freedom(first).expected


def _first_phase(
    shrinkage: Shrinkage, state: tuple[()], rows: Rows, num_classes: int, *, within: Within
) -> Any:
    return within.first(rows, num_classes)


def _spread_phase(
    shrinkage: Shrinkage, state: tuple[Any], rows: Rows, num_classes: int, *, within: Within
) -> _Spread:
    """Rows y_r with Σ̂ = Σ_r y_r y_rᵀ, and what the shrinkage rule must know of them."""
    (first,) = state
    degrees = _degrees(within, first)
    factor = within.factor(rows, first) / jnp.sqrt(degrees)
    inner = None if within.inner is None else within.inner(rows, first) / degrees
    weight = None
    if within.class_weight is not None:
        weight = within.class_weight(first) / within.freedom(first).expected
    statistics = shrinkage.statistics(factor, rows, moments_of(first), weight)
    return _Spread(Factor(factor), inner, statistics)


def _system(
    shrinkage: Shrinkage, first: Any, spread: _Spread, *, within: Within, gram: ScatterChoice | None
) -> Scatter:
    """Shrunk covariance, or the Gram matrix made from it where the head is ridge regression."""
    moments = moments_of(first)
    scatter = spread.scatter if spread.inner is None else with_inner(spread.scatter, spread.inner)
    freedom = within.freedom(first)
    freedom = freedom.scaled(1 / freedom.expected)
    covariance = shrinkage.apply(scatter, moments, freedom, spread.statistics)
    if gram is None:
        return covariance
    # Ŵ itself, as in the paper: where classes of a single row show no spread, nothing makes up for it.
    observed = covariance.unshifted.scaled(_degrees(within, first))
    return total_gram(observed.shifted(covariance.shift * moments.within_degrees), moments, scatter=gram)


def _head(
    shrinkage: Shrinkage,
    system: Scatter,
    first: Any,
    spread: _Spread,
    *,
    function: Callable[[Scatter, Moments], Head],
) -> Head:
    return function(system, moments_of(first))


@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: Literal["lda", "ridge"] = "lda",
    *,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    bias: bool = False,
    feature_map: None = None,
) -> Method[LinearHead]: ...
@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    *,
    head: Literal["student"] | Student,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    feature_map: None = None,
) -> Method[StudentHead]: ...
@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: Callable[[Scatter, Moments], H] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
    *,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    bias: bool = False,
    feature_map: None = None,
) -> Method[H]: ...
@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    bias: bool = False,
    feature_map: FeatureMap,
) -> Method[MappedHead]: ...
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    bias: bool = False,
    feature_map: FeatureMap | None = None,
) -> Method[Any]:
    """Make FedCOF: clients send class means and counts, whose spread gives the covariance for a head.

    The defaults, LDA with automatic shrinkage, are covfree's. The paper's method is a ridge head with γ = 1:
    ``fedcof(shrinkage=1.0, head="ridge")``. Bytes up: 4·M·d for M client-class pairs, as FedNCM's.

    Heads other than ridge are given Σ̂ = Ŵ/Σ_c w_c (K_c − 1), where w_c are the weights of `within_scatter`.
    It is unbiased if the classes share one covariance, also if some of them have a single row. Divided by
    N − C, Ŵ would then be too small.

    Args:
        shrinkage: a number γ adds γI to the covariance; ``"auto"`` or another rule needs no tuning.
            Derivatives take what ``"auto"`` chose as given; pass a number for the whole derivative.
        num_subsets: most random subsets of a client's class. Each sends its mean: more rows, more bytes. None
            for as many as ``subset_size`` allows, so that their number grows with n_kc.
        weighting: how the classes' scatters are weighted, see `within_scatter`.
        head: ``"lda"``; ``"ridge"``, which solves with the Gram matrix (N − C)·Σ̃ + N μ_g μ_gᵀ;
            ``"student"``, a covariance for each class, or `student` with other numbers; or a function of the
            shrunk within-class covariance (a `Scatter`; ``.dense()`` is the matrix) and the `Moments`.
        subset_size: examples of a random subset, at least, unless the client's class has fewer.
        scatter: the parts of the ridge head's Gram matrix, see `total_gram`; for the ridge head alone.
        bias: whether the ridge head has an intercept, see `ridge_head`. The paper has none.
        feature_map: a map of features that all parties share, e.g. ``relu_features(5000)``. Clients send the
            class means of D mapped features, 4·M·D bytes. With fewer rows than D, the server solves a system
            of the size of the rows.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: Goswami, Magistri, Wang, Twardowski, Bagdanov and van de Weijer (2024), Alg. 1.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    summary = send_class_means(num_subsets, subset_size)
    return fedcof_like(
        "fedcof", summary, from_means(weighting), shrinkage, head, scatter, feature_map, bias=bias
    )


@overload
def fedcof_oracle(
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: Literal["lda", "ridge"] = "lda",
    *,
    covariance: RowForm = "full",
    bias: bool = False,
) -> Method[LinearHead]: ...
@overload
def fedcof_oracle(
    shrinkage: Scalar | str | Shrinkage = "auto",
    *,
    head: Literal["student"] | Student,
    covariance: RowForm = "full",
) -> Method[StudentHead]: ...
@overload
def fedcof_oracle(
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: Callable[[Scatter, Moments], H] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
    *,
    covariance: RowForm = "full",
    bias: bool = False,
) -> Method[H]: ...
def fedcof_oracle(
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: HeadChoice = "lda",
    *,
    covariance: RowForm = "full",
    bias: bool = False,
) -> Method[Any]:
    """Make FedCOF's oracle: clients also send their class covariances, so that nothing need be estimated.

    The covariances aggregate (`aggregate_covariances`) to the within-class scatter of the pooled examples. A
    simulation computes that scatter directly. Diagonals of the clients' covariances, or one variance each,
    are cheaper and cruder: the scatter between the clients' means is still known in every direction.

    As with `fedcof`, the paper's settings are ``shrinkage=1.0, head="ridge"``.

    Bytes up: 4·M·(d² + d); diagonal 8·M·d; spherical 4·M·(d + 1).

    Args:
        shrinkage: see `fedcof`.
        head: see `fedcof`.
        covariance: what clients send of each class's covariance.
        bias: see `fedcof`.

    Source: FedCOF (Goswami et al. 2024), section 5 and eq. 24; diagonal and spherical: its Fig. 9.
    """
    check_choice("covariance", covariance, ("full", "diagonal", "spherical"))
    if covariance == "full":
        return fedcof_like(
            "fedcof-oracle",
            keep_examples(),
            from_means("per_class"),
            shrinkage,
            head,
            message=class_covariance_matrices(_oracle_merge),
            bias=bias,
        )
    method = fedcof_like(
        f"fedcof-{covariance}",
        send_class_means(covariance=covariance),
        from_variances(),
        shrinkage,
        head,
        bias=bias,
    )
    _check_rule(as_shrinkage(shrinkage))
    return method


def fedcof_like(
    name: str,
    summary: Summary,
    within: Within,
    shrinkage: Scalar | str | Shrinkage,
    head: HeadChoice,
    scatter: ScatterChoice = "within",
    feature_map: FeatureMap | None = None,
    message: MessageForm | None = None,
    *,
    bias: bool = False,
) -> Method[Any]:
    """A method that makes a head of a shrunk within-class covariance, wherever that is from."""
    check_choice("scatter", scatter, get_args(ScatterChoice))
    if scatter != "within" and head != "ridge":
        raise ValueError(f"scatter: expected 'within' unless the head is 'ridge', got {scatter!r}")
    if bias and head != "ridge":
        raise ValueError(f"bias: expected False unless the head is 'ridge', got {bias!r}")
    if isinstance(head, Student) or head == "student":
        choice = head if isinstance(head, Student) else Student()
        linear = fedcof_like(name, summary, within, shrinkage, "lda", scatter, feature_map, message)
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
        rounds=(Round(bound(_first_phase, within=within)), Round(bound(_spread_phase, within=within))),
        system=bound(_system, within=within, gram=scatter if head == "ridge" else None),
        head=bound(_head, function=function),
        message=message,
        feature_map=feature_map,
    )


def with_inner(scatter: Scatter, inner: jax.Array | None) -> Scatter:
    """Add what clients sent of the scatter inside the rows: a diagonal, or one number for every direction."""
    if inner is None:
        return scatter
    return scatter.shifted(inner) if inner.ndim == 0 else scatter.with_diagonal(inner)


def estimating(method: Method) -> tuple[Method, Within]:
    """A method with an estimate of the within-class scatter, and the estimator.

    The given one if it has such an estimate, else FedCOF.

    Raises:
        ValueError: if the method's rows are no means of features.
    """
    if method.summary.name == "LocalHeads":
        raise ValueError(
            f"method: expected one whose clients send means, got {method.name!r}, which sends heads"
        )
    found = [option(each.client, "within") for each in method.rounds]
    over_rows = method.rounds_over_rows == len(method.rounds)
    return (method, found[0]) if over_rows and isinstance(found[0], Within) else estimating(fedcof())


def linear_system(method: Method) -> tuple[Within, ScatterChoice | None]:
    """How a method of FedCOF's kind makes the matrix of its linear head.

    Returns:
        Its estimate of the within-class scatter, and the parts of a ridge head's Gram matrix; None for LDA.

    Raises:
        ValueError: if the method has no such head.
    """
    within, gram = option(method.system, "within"), option(method.system, "gram")
    if within is not None and option(method.head, "function") is (lda_head if gram is None else ridge_head):
        return within, gram
    raise ValueError(
        "method: expected one with an LDA or ridge head of an estimated covariance, such as "
        f"covfree.fedcof(), got {method.name!r}"
    )


def _check_rule(shrinkage: Shrinkage) -> None:
    if shrinkage.needs_rows:
        raise ValueError("shrinkage: the rule looks at single rows, which class covariances do not hold")


def _oracle_merge(shrinkage: Shrinkage, message: Message, num_classes: int) -> tuple[Moments, _Spread]:
    """The totals of the oracle's rounds, from clients' covariances."""
    covariances = sent_matrix(message.rows.covariance, "covariance with each of")
    _check_rule(shrinkage)
    rows = numbered(message.rows)
    moments = example_moments(rows, num_classes)
    weight = jnp.full(num_classes, 1 / jnp.maximum(moments.within_degrees, 1))
    # Sums over a client's examples are those over its class means, each as often as it has examples.
    statistics = shrinkage.statistics(centred_rows(rows, moments, weight), rows, moments, weight)
    return moments, _Spread(covariance_scatter(rows, covariances, moments, weight), None, statistics)
