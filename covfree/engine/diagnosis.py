"""Measure how well rows (class means) determine a head's covariance, and say what would improve it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from covfree.core import linalg
from covfree.core.checks import check_row_structure
from covfree.core.doors import compiled
from covfree.core.lapack import eigh
from covfree.core.linalg import Scatter
from covfree.core.types import Rows
from covfree.engine.batch import accumulate
from covfree.estimators import first_moments
from covfree.estimators.shift import ShiftTest, shift_test
from covfree.estimators.shrinkage import in_scale, mean_variance, trace_and_square
from covfree.methods import Method, fedcof
from covfree.methods.fedcof_like import with_inner
from covfree.methods.method import check_method
from covfree.methods.within import Within

# Clients are said to differ if the p-value of the shift test is below this.
_LEVEL = 0.01
# A standard normal variable exceeds this with probability `_LEVEL`.
_SEEN = 2.33
# Warn if the rounding of features exceeds this share of their standard deviation within classes.
ROUNDING = 0.01
# Fed3R and AFL fail if rounding of squares exceeds this share of the variance, as they need directions of
# small variance. They failed at a `Diagnosis.offset` of 40 to 200 on the digits, and of 80 on Caltech-101's
# 1280 features.
OF_SQUARES = 1e-4
# Above this relative error of Σ̂ the verdict recommends methods that estimate no covariance.
_UNRELIABLE = 0.5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Diagnosis:
    """How well the rows determine the covariance; ``print`` it for the verdict in words.

    Attributes:
        num_rows: K_c, rows of each class.
        count: N_c, examples of each class.
        absent: number of classes without rows; they are never predicted.
        without_spread: number of classes with a single row; FedCOF cannot estimate their covariance.
        class_degrees: K_c − 1, degrees of freedom behind Σ̂_c, the covariance of class c estimated from its
            own rows.
        degrees: ν, effective degrees of freedom behind Σ̂, the estimate of the covariance Σ that all classes
            share (`Freedom.effective`).
        effective_rank: r = (tr Σ)²/tr Σ², estimated.
        class_error: expected relative error of each Σ̂_c, √((1 + r)/(K_c − 1)); infinite if K_c < 2.
        error: expected relative error of Σ̂ in the Frobenius norm, √((1 + r)/ν), for Gaussian features.
        condition_before: condition number of Σ̂ before shrinkage; infinite if Σ̂ is singular.
        system: how the regularised system is solved, and its condition number; None without a system.
        shift: the test of whether clients' features differ.
        offset: ‖μ_g‖/√tr Σ̂, the distance of the grand mean μ_g from zero in units of the spread within
            classes; infinite if no covariance could be estimated. In float32 rounding harms Fed3R and AFL
            above 29, other heads that are not centred (nearest mean, ridge) above 290 = 1/√(100 eps), and
            the features themselves above 1/(100 eps).
    """

    num_rows: Integer[Array, " classes"]
    count: Num[Array, " classes"]
    absent: Integer[Array, ""]
    without_spread: Integer[Array, ""]
    class_degrees: Integer[Array, " classes"]
    degrees: Float[Array, ""]
    effective_rank: Float[Array, ""]
    class_error: Float[Array, " classes"]
    error: Float[Array, ""]
    condition_before: Float[Array, ""]
    system: linalg.Diagnostics | None
    shift: ShiftTest
    offset: Float[Array, ""]

    def __str__(self) -> str:
        """Return the verdict in plain words."""
        parts = [_of_classes, _of_covariance, _of_system]
        # If all means are equal, there is no variance with which to compare the offset or the shift.
        if not _means_are_equal(self):
            parts += [_of_offset, _of_shift]
        return "\n".join(text for text in (part(self) for part in parts) if text)


def _check_rows(rows: Any, *, num_classes: int, method: Any = None) -> None:
    check_row_structure(rows)
    if method is not None:
        check_method(method)


@compiled(("num_classes",), check=_check_rows)
def diagnose(rows: Rows, *, num_classes: int, method: Method | None = None) -> Diagnosis:
    """Report how well the rows determine the covariance, how it is conditioned, and whether clients differ.

    It works under ``jit``, where bad values cannot raise errors but show in the diagnosis. It takes the time
    of several solves.

    Args:
        rows: all rows.
        num_classes: C, static.
        method: the method whose covariance and regularised system are reported; `fedcof` by default. If it
            estimates no covariance, FedCOF's covariance is reported.

    Returns:
        The diagnosis; ``print`` it for the verdict.

    Source: the expected error follows from the Wishart distribution; see docs/derivation.md, section 3.

    >>> import jax, jax.numpy as jnp
    >>> means = jax.random.normal(jax.random.key(0), (60, 4))
    >>> rows = Rows(means, jnp.full(60, 9), jnp.arange(60) % 2, jnp.arange(60) // 2)
    >>> diagnosis = diagnose(rows, num_classes=2)
    >>> float(diagnosis.degrees), diagnosis.class_degrees.tolist()
    (58.0, [29, 29])
    """
    method = fedcof() if method is None else method
    moments = first_moments(rows, num_classes)
    # If the method estimates no covariance, diagnose that of FedCOF.
    estimate, within = estimating(method)
    totals = accumulate(estimate, rows, num_classes=num_classes)
    first, spread, *_ = totals
    covariance = with_inner(spread.scatter, spread.inner)
    degrees = within.freedom(first).effective
    rank = _effective_rank(covariance, degrees)
    class_degrees = jnp.maximum(moments.num_rows - 1, 0)
    system = None
    if method.system is not None:
        if estimate is not method:
            totals = accumulate(method, rows, num_classes=num_classes)
        system = linalg.diagnostics(linalg.factorise(method.system(method.params, *totals)))
    return Diagnosis(
        num_rows=moments.num_rows,
        count=moments.count,
        absent=(moments.num_rows == 0).sum(),
        without_spread=(moments.num_rows == 1).sum(),
        class_degrees=class_degrees,
        degrees=degrees,
        effective_rank=rank,
        class_error=jnp.sqrt((1 + rank) / class_degrees.astype(rank.dtype)),
        error=jnp.sqrt((1 + rank) / degrees),
        condition_before=_condition(covariance),
        system=system,
        shift=shift_test(rows, num_classes),
        offset=_offset(moments.grand_mean, covariance),
    )


def _effective_rank(covariance: Scatter, degrees: Float[Array, ""]) -> Float[Array, ""]:
    """Estimate the effective rank (tr Σ)²/tr Σ² of a covariance Σ, from 1 to d, from its estimate Σ̂.

    Σ̂ is ``covariance``, and ν is ``degrees``, its degrees of freedom. On average over Σ̂,
    tr Σ̂² = (1 + 1/ν) tr Σ² + (tr Σ)²/ν and (tr Σ̂)² = (tr Σ)² + 2 tr Σ²/ν. These two equations are solved
    for tr Σ² and (tr Σ)², with the values of Σ̂ in place of the averages.
    """
    trace, square = trace_and_square(in_scale(covariance)[0])
    trace, degrees, dim = jnp.square(trace), jnp.maximum(degrees, 1), covariance.dim
    square = (square - trace / degrees) / (1 + 1 / degrees - 2 / jnp.square(degrees))
    trace = trace - 2 * square / degrees
    known = (square > 0) & (trace > 0)
    return jnp.clip(jnp.where(known, trace / jnp.where(known, square, 1), dim), 1, dim)


def _offset(mean: Float[Array, " dim"], covariance: Scatter) -> Float[Array, ""]:
    trace = mean_variance(covariance) * covariance.dim
    return jnp.where(trace > 0, jnp.linalg.norm(mean) / jnp.sqrt(jnp.where(trace > 0, trace, 1)), jnp.inf)


def _condition(covariance: Scatter) -> Float[Array, ""]:
    values = eigh(covariance.core())[0] + covariance.shift
    # If Σ̂ is stored as a factor, its core has only some of the eigenvalues; all others equal the shift.
    smallest = covariance.shift if covariance.factored else values[0]
    regular = smallest > linalg.rank_cut(values)
    return jnp.where(regular, values[-1] / jnp.where(regular, smallest, 1), jnp.inf)


def _of_classes(found: Diagnosis) -> str:
    classes, rows = len(np.asarray(found.num_rows)), int(np.asarray(found.num_rows).sum())
    text = f"{classes} classes, {rows} means of {np.asarray(found.count).sum():.0f} examples."
    if found.absent:
        text += f" {found.absent} have no example: they are never predicted."
    if found.without_spread:
        text += f" {found.without_spread} have a single mean, which shows nothing of their covariance."
    return text


def _means_are_equal(found: Diagnosis) -> bool:
    return bool(found.degrees > 0 and np.isinf(found.offset))


def _of_covariance(found: Diagnosis) -> str:
    if _means_are_equal(found):
        return (
            f"The means of each class are equal in {found.offset.dtype}, so that no covariance is seen. If "
            "features lie far from zero, they hold too few digits for any method: subtract one vector, the "
            "same at all clients, before features are rounded."
        )
    if not found.degrees > 0:
        return (
            "No covariance is seen: no class has two means. The head is a nearest-mean classifier. "
            "Let clients send means of subsets, or residual directions."
        )
    more = math.ceil(3 * float(found.degrees))
    exact = " Fed3R and refinement (covfree.refined) need no estimate." if found.error > _UNRELIABLE else ""
    return (
        f"The covariance rests on {found.degrees:.0f} degrees of freedom, for an effective rank of "
        f"{found.effective_rank:.0f}: its expected relative error is {100 * found.error:.0f} %. Halving "
        f"the error needs four times the degrees of freedom, about {more} more: from four times the clients, "
        f"or from more subset means of each client.{exact}"
    )


def _of_system(found: Diagnosis) -> str:
    before = f"{found.condition_before:.0f}" if np.isfinite(found.condition_before) else "infinite"
    text = f"Condition number {before} as estimated"
    if found.system is None:
        return text + "."
    solved = f"{found.system.condition:.0f} in the system that is solved"
    regular = found.system.route in (linalg.Route.CHOLESKY, linalg.Route.DUAL_CHOLESKY)
    if regular and not np.isfinite(found.condition_before):
        return text + f", but {solved}, as shrinkage (or a ridge) is added."
    return text + f", {solved}."


def _of_offset(found: Diagnosis) -> str:
    offset, eps = float(found.offset), float(np.finfo(found.offset.dtype).eps)
    if not np.isfinite(offset):
        return ""
    text = f"Features lie {offset:.2g} times their spread within classes from zero."
    if offset * eps > ROUNDING:
        return (
            f"{text} In {found.offset.dtype} they hold too few digits for any method: subtract one vector, "
            "the same at all clients, before features are rounded."
        )
    if offset**2 * eps > OF_SQUARES:
        others = "FedNCM, FedCOF with a ridge head, " if offset**2 * eps > ROUNDING else ""
        return (
            f"{text} In {found.offset.dtype} do not trust heads about the origin there ({others}Fed3R, AFL): "
            "subtract one vector, the same at all clients, or take another head."
        )
    return text


def _of_shift(found: Diagnosis) -> str:
    if not found.shift.informative:
        return (
            "Whether clients' features differ cannot be told from these means. Two subset means a class "
            "would tell."
        )
    share, z = float(found.shift.relative_shift), float(found.shift.statistic)
    if not found.shift.p_value < _LEVEL:
        text = f"No sign that clients' features differ (p = {found.shift.p_value:.2g})"
        # The standard error of ``share`` is share/z. A share below 2.33 standard errors would not be
        # significant: ``hidden`` is the largest that may go unseen.
        hidden = _SEEN * abs(share / z) if z else np.inf
        if hidden <= _UNRELIABLE:
            return text + "."
        amount = f"about {100 * hidden:.0f} %" if np.isfinite(hidden) else "many times"
        return (
            f"{text}, but these means are too few to show it even if differences between clients made the "
            f"estimated variances {amount} too large; the expected error above does not include this. Two "
            "subset means of each client and class would tell; Fed3R and refinement (covfree.refined) are "
            "not affected."
        )
    amount = f"about {100 * share:.0f} %" if np.isfinite(share) else "mostly the differences of clients, and"
    return (
        f"Clients' features differ (p = {found.shift.p_value:.2g}): estimated from one mean a class, the "
        f"variances are {amount} too large. fedcof_residuals and fedcof_components estimate variances "
        "without these differences."
    )


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
    if method.estimate is None or method.rounds_over_rows < len(method.rounds):
        return estimating(fedcof())
    return method, method.estimate.within
