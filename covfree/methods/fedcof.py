"""FedCOF, which estimates the covariance within classes from clients' class means.

`fedcof_like` makes the method of three parts: what clients send (`send_class_means`), how the server
estimates the scatter within classes from it (`from_means`), and the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args, overload

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import H, LinearHead, Moments, Scalar
from covfree.estimators import ScatterChoice, Weighting
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.student import StudentHead
from covfree.methods.fedcof_like import HeadChoice, fedcof_like
from covfree.methods.method import Method
from covfree.methods.student import Student
from covfree.methods.summaries import send_class_means
from covfree.methods.within import from_means


# The overloads tell type checkers which class of head the method makes.
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
) -> Method[LinearHead]: ...
@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    *,
    head: Literal["student"] | Student,
    subset_size: int = 2,
) -> Method[StudentHead]: ...
@overload
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: Callable[[Scatter, Moments], H] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
    *,
    subset_size: int = 2,
) -> Method[H]: ...
def fedcof(
    shrinkage: Scalar | str | Shrinkage = "auto",
    num_subsets: int | None = 1,
    weighting: Weighting = "per_class",
    head: HeadChoice = "lda",
    *,
    subset_size: int = 2,
    scatter: ScatterChoice = "within",
    bias: bool = False,
) -> Method[Any]:
    """Make FedCOF: clients send class means and counts; the server estimates a covariance from the means.

    The defaults, LDA with automatic shrinkage, are covfree's. The paper's method is a ridge head with γ = 1:
    ``fedcof(shrinkage=1.0, head="ridge")``. Bytes up: 4·M·d for M client-class pairs and d features, as
    FedNCM's.

    Heads other than ridge use the covariance Σ̂ = Ŵ / (Σ_c w_c (K_c − 1)). Ŵ = Σ_c w_c S_c is the
    `within_scatter`, with S_c the scatter of the K_c means of class c about their mean, and weights w_c. This
    divisor makes Σ̂ unbiased if the classes share one covariance. N − C, for N examples of C classes, would
    be too large a divisor if a class has a single mean, which shows no scatter.

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

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: Goswami, Magistri, Wang, Twardowski, Bagdanov and van de Weijer (2024), Alg. 1.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    summary = send_class_means(num_subsets, subset_size)
    return fedcof_like("fedcof", summary, from_means(weighting), shrinkage, head, scatter, bias=bias)
