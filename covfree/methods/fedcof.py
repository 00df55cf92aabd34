"""FedCOF, which estimates covariances from class means, and its oracle, whose clients send covariances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args, overload

import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import H, LinearHead, Message, Moments, Scalar
from covfree.estimators import ScatterChoice, Weighting
from covfree.estimators.automatic import as_matrix_shrinkage, numbered
from covfree.estimators.class_scatter import row_scatter
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.composed import MappedHead
from covfree.heads.student import StudentHead
from covfree.methods.fedcof_like import HeadChoice, Spread, fedcof_like
from covfree.methods.method import Method, sent_matrix
from covfree.methods.rounds import option
from covfree.methods.student import Student
from covfree.methods.summaries import send_class_means
from covfree.methods.summary import class_covariance_matrices
from covfree.methods.within import Within, from_means, from_variances
from covfree.statistics.feature_maps import FeatureMap

# The form of the covariance that clients send for each class.
RowForm: TypeAlias = Literal["full", "diagonal", "spherical"]


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
    """Make FedCOF: clients send class means and counts; the server estimates a covariance from the means.

    The defaults, LDA with automatic shrinkage, are covfree's. The paper's method is a ridge head with γ = 1:
    ``fedcof(shrinkage=1.0, head="ridge")``. Bytes up: 4·M·d for M client-class pairs and d features, as
    FedNCM's.

    Heads other than ridge use the covariance Σ̂ = Ŵ / (Σ_c w_c (K_c − 1)). Ŵ is the `within_scatter` with
    class weights w_c, and K_c is the number of means of class c. Σ̂ is unbiased if the classes share one
    covariance, even if some classes have a single mean. (For N examples of C classes, Ŵ/(N − C) would then be
    too small.)

    Args:
        shrinkage: a number γ adds γI to the covariance; with ``"10%"`` γ is 10 % of its mean variance;
            ``"auto"`` or another rule needs no tuning. Derivatives treat the result of ``"auto"`` as
            constant; pass a number for the full derivative.
        num_subsets: the largest number of random subsets into which a client divides its examples of a class.
            It sends the mean of each, so more subsets take more bytes. None for as many as ``subset_size``
            allows.
        weighting: how the classes' scatters are weighted, see `within_scatter`.
        head: ``"lda"``; ``"ridge"``, which solves with a Gram matrix, the shrunk Ŵ plus N μ_g μ_gᵀ for the
            mean μ_g of all N examples; ``"student"`` or `student`, with a covariance for each class; or a
            function of the shrunk within-class covariance (a `Scatter`; ``.dense()`` is the matrix) and the
            `Moments`.
        subset_size: the smallest number of examples in a random subset; a client with fewer examples of the
            class sends the mean of them all.
        scatter: what the ridge head's Gram matrix contains, see `total_gram`; for the ridge head alone.
        bias: whether the ridge head has an intercept, see `ridge_head`. The paper has none.
        feature_map: a map of features that all parties share, e.g. ``relu_features(5000)``. Clients send the
            class means of D mapped features, 4·M·D bytes. If the server has fewer than D means, it solves a
            system whose size is the number of means.

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
    """Make FedCOF's oracle: clients also send their class covariances, so that the covariance is exact.

    The covariances combine (`aggregate_covariances`) to the within-class scatter of the pooled examples. A
    simulation computes that scatter directly. Clients may send only the diagonal of each covariance, or one
    variance: that is cheaper and less exact, but the scatter between the clients' means is still exact.

    As with `fedcof`, the paper's settings are ``shrinkage=1.0, head="ridge"``.

    Bytes up: 4·M·(d² + d) for M client-class pairs and d features; diagonal 8·M·d; spherical 4·M·(d + 1).

    Args:
        shrinkage: see `fedcof`. With clients' messages, or another ``covariance`` than ``"full"``, not a rule
            that needs the rows themselves, such as `ledoit_wolf`.
        head: see `fedcof`.
        covariance: what clients send of each class's covariance.
        bias: see `fedcof`.

    Source: FedCOF (Goswami et al. 2024), section 5 and eq. 24; diagonal and spherical: its Fig. 9.
    """
    check_choice("covariance", covariance, ("full", "diagonal", "spherical"))
    if covariance == "full":
        return fedcof_like(
            "fedcof-oracle",
            class_covariance_matrices(_oracle_merge, pooled=True),
            from_means("per_class"),
            shrinkage,
            head,
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
    as_matrix_shrinkage(shrinkage)
    return method


def estimating(method: Method) -> tuple[Method, Within]:
    """Return a method that estimates the within-class scatter from `Rows`, and its estimator, a `Within`.

    The method is the given one if it has such an estimator, or else FedCOF.

    Raises:
        ValueError: if the method's clients send heads.
    """
    if method.summary.name == "LocalHeads":
        raise ValueError(
            f"method: expected one whose clients send means, got {method.name!r}, which sends heads"
        )
    found = [option(each.client, "within") for each in method.rounds]
    over_rows = method.rounds_over_rows == len(method.rounds)
    return (method, found[0]) if over_rows and isinstance(found[0], Within) else estimating(fedcof())


def _oracle_merge(shrinkage: Shrinkage, message: Message, num_classes: int) -> tuple[Moments, Spread]:
    """Compute the class moments and the unshrunk covariance of `fedcof_oracle` from all clients' messages.

    ``message`` is all these messages merged into one. It has every client's class means. The covariance
    matrix of each is in ``message.rows``; or ``message.matrix`` is the sum of all clients' scatter matrices.
    """
    if message.matrix is None:
        sent_matrix(message.rows.covariance, "covariance with each of")
    as_matrix_shrinkage(shrinkage)
    rows = numbered(message.rows)
    moments = example_moments(rows, num_classes)
    degrees = jnp.maximum(moments.within_degrees, 1)
    weight = jnp.full(num_classes, 1 / degrees)
    inner = row_scatter(rows, num_classes) if message.matrix is None else jnp.asarray(message.matrix)
    # For its statistics the shrinkage rule needs, of each client and class, only the sum of the centred
    # examples. The class means suffice: the sum is the number of examples times the centred mean.
    between = centred_rows(rows, moments, weight)
    statistics = shrinkage.statistics(between, rows, moments, weight)
    scatter = Scatter.from_matrix(inner / degrees).with_factor(between)
    return moments, Spread(scatter, None, statistics)
