"""Two forms of FedCOF for clients whose features differ: `fedcof_components` and `fedcof_residuals`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args, overload

from covfree.core.checks import check_choice
from covfree.core.types import LinearHead, Scalar
from covfree.estimators import Weighting
from covfree.estimators.shrinkage import Shrinkage
from covfree.methods.fedcof_like import HeadChoice, fedcof_like
from covfree.methods.method import Method
from covfree.methods.summaries import send_class_means, send_directions
from covfree.methods.within import from_components, from_directions
from covfree.statistics.feature_maps import FeatureMap


@overload
def fedcof_components(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 2,
    weighting: Weighting = "per_class",
    head: Literal["lda", "ridge"] = "lda",
    *,
    subset_size: int = 2,
    bias: bool = False,
    feature_map: None = None,
) -> Method[LinearHead]: ...
@overload
def fedcof_components(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 2,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    bias: bool = False,
    feature_map: FeatureMap | None = None,
) -> Method[Any]: ...
def fedcof_components(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 2,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    bias: bool = False,
    feature_map: FeatureMap | None = None,
) -> Method[Any]:
    """Make FedCOF by variance components: its covariance is unbiased even if clients' features differ.

    Clients send the means of two or more random subsets of each class. To the scatter of all means about
    their class mean, the server adds an estimate of the scatter of examples about the means. It makes this
    estimate from the scatter of each client's own means, which differences between clients do not change.
    (The covariance of `fedcof` is too large under client shift.) Bytes up: 4·M·d for M subset means and d
    features. Defaults are LDA and automatic shrinkage, as for `fedcof`.

    Args:
        shrinkage: see `fedcof`.
        num_subsets: the largest number of random subsets of a client's class, at least 2; None for as many as
            ``subset_size`` allows.
        weighting: see `component_factor`.
        head: see `fedcof`.
        subset_size: see `fedcof`.
        bias: see `fedcof`.
        feature_map: see `fedcof`.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: covfree; the derivation is in docs/shift.md.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    summary = send_class_means(num_subsets, subset_size)
    if num_subsets == 1:
        raise ValueError("num_subsets: expected 2 or more, as one mean a class shows no spread; got 1")
    within = from_components(weighting)
    method = fedcof_like(
        "fedcof-components", summary, within, shrinkage, head, bias=bias, feature_map=feature_map
    )
    return replace(method, whole_clients=True)


@overload
def fedcof_residuals(
    num_directions: int = 8,
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: Literal["lda", "ridge"] = "lda",
    *,
    bias: bool = False,
    feature_map: None = None,
) -> Method[LinearHead]: ...
@overload
def fedcof_residuals(
    num_directions: int = 8,
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: HeadChoice = "lda",
    *,
    bias: bool = False,
    feature_map: FeatureMap | None = None,
) -> Method[Any]: ...
def fedcof_residuals(
    num_directions: int = 8,
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: HeadChoice = "lda",
    *,
    bias: bool = False,
    feature_map: FeatureMap | None = None,
) -> Method[Any]:
    """Make FedCOF with residual directions: clients also send the leading directions of their own scatter.

    A residual is an example's feature vector minus the class mean that its client sends. A client also sends
    the q leading right singular vectors of its residuals (of all its classes together), times their singular
    values. No other q directions contain more of the scatter within its classes. Nothing is estimated, so
    clients may differ in any way. If each client k has at most q + C_k examples of C_k classes, the method is
    exact and equals FedCOF's oracle. Bytes up: 4·(M + K·q)·d for K clients, M client-class pairs and d
    features. Defaults are LDA and automatic shrinkage, as for `fedcof`.

    The scatter in other directions is left out. A variant in which clients also send its trace, and the
    server spreads it over all directions, lost 0.7 points on average over 13 federations (docs/shift.md).

    Args:
        num_directions: q, the largest number of directions of a client.
        shrinkage: see `fedcof`.
        head: see `fedcof`.
        bias: see `fedcof`.
        feature_map: see `fedcof`.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: covfree; the derivation is in docs/shift.md.
    """
    summary, within = send_directions(num_directions), from_directions()
    return fedcof_like(
        "fedcof-residuals", summary, within, shrinkage, head, bias=bias, feature_map=feature_map
    )
