"""FedCOF's oracle: clients send class covariances too, from which the server computes the exact one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, overload

import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.linalg import Scatter
from covfree.core.types import H, LinearHead, Message, Moments, Scalar
from covfree.estimators.automatic import as_matrix_shrinkage, numbered
from covfree.estimators.class_scatter import row_scatter
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.student import StudentHead
from covfree.methods.fedcof_like import HeadChoice, Spread, fedcof_like
from covfree.methods.method import Method
from covfree.methods.student import Student
from covfree.methods.summaries import send_class_means
from covfree.methods.summary import class_covariance_matrices
from covfree.methods.within import from_means, from_variances

# The form of the covariance that clients send for each class.
RowForm: TypeAlias = Literal["full", "diagonal", "spherical"]


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


def _oracle_merge(shrinkage: Shrinkage, message: Message, num_classes: int) -> tuple[Moments, Spread]:
    """Compute the class moments and the unshrunk covariance of `fedcof_oracle` from all clients' messages.

    ``message`` is all these messages merged into one. It has every client's class means. The covariance
    matrix of each is in ``message.rows``; or ``message.matrix`` is the sum of all clients' scatter matrices.
    """
    as_matrix_shrinkage(shrinkage)
    rows = numbered(message.rows)
    moments = example_moments(rows, num_classes)
    degrees = jnp.maximum(moments.within_degrees, 1)
    weight = jnp.full(num_classes, 1 / degrees)
    inner = row_scatter(rows, num_classes) if message.matrix is None else jnp.asarray(message.matrix)
    # The shrinkage rule's statistics need only the sum of the centred examples of each client and class. The
    # class means suffice: the sum is the number of examples times the centred mean.
    between = centred_rows(rows, moments, weight)
    statistics = shrinkage.statistics(between, rows, moments, weight)
    scatter = Scatter.from_matrix(inner / degrees).with_factor(between)
    return moments, Spread(scatter, None, statistics)
