"""FedCOF by variance components, for clients whose features differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args, overload

from covfree.core.checks import check_choice
from covfree.core.types import LinearHead, Scalar
from covfree.estimators import Weighting
from covfree.estimators.components import component_factor, component_freedom, component_moments
from covfree.estimators.shrinkage import Shrinkage
from covfree.methods.fedcof_like import HeadChoice, fedcof_like
from covfree.methods.method import Method
from covfree.methods.rounds import bound
from covfree.methods.summaries import send_class_means
from covfree.methods.within import Within


@overload
def fedcof_components(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 2,
    weighting: Weighting = "per_class",
    head: Literal["lda", "ridge"] = "lda",
    *,
    subset_size: int = 2,
    bias: bool = False,
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
) -> Method[Any]: ...
def fedcof_components(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 2,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    bias: bool = False,
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

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: covfree; the derivation is in docs/shift.md.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    summary = send_class_means(num_subsets, subset_size)
    if num_subsets == 1:
        raise ValueError("num_subsets: expected 2 or more, as one mean a class shows no spread; got 1")
    within = Within(
        component_moments,
        bound(component_factor, weighting=weighting),
        bound(component_freedom, weighting=weighting),
    )
    method = fedcof_like("fedcof-components", summary, within, shrinkage, head, bias=bias)
    return replace(method, whole_clients=True)
