"""Laws that every estimator of a covariance or scatter matrix must satisfy; `check_estimator` tests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.row_types import double
from covfree.core.types import Rows
from covfree.protocol.messages import select_rows
from covfree.testing.case import Case, gradients, jit, padding, pure, reference, relation, single, trace
from covfree.testing.federations import CLASSES, paired, table, used
from covfree.testing.laws import Law, assert_close, assert_numbers, hold, turn

# Function from (means, counts, labels, num_classes) of rows without padding to the estimate, in float64
# NumPy.
Reference: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Any]
# The expected estimate: a name, or a function of the covariance that all classes share and of the rows.
Expectation: TypeAlias = Literal["covariance", "scatter"] | Callable[[np.ndarray, Rows], Any]


def _dim(case: Case) -> int:
    return case.example.mean.shape[1]


def _clean(rows: Rows) -> Rows:
    return select_rows(rows, used(rows))


def _mapped(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Rows], Rows]:
    return lambda rows: replace(rows, mean=function(np.asarray(rows.mean)))


def _shape(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return R/‖R‖ and ‖R‖ (Frobenius) for ``matrix`` A, R = A − (tr A / dim)·I; 0 if R is only rounding."""
    matrix = np.asarray(matrix)
    mean = np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / matrix.shape[-1]
    rest = matrix - mean * np.eye(matrix.shape[-1])
    length = np.sqrt(np.square(rest).sum((-2, -1), keepdims=True))
    known = length > 1e-9 * np.abs(matrix).max(initial=1e-300)
    return np.where(known, rest / np.where(known, length, 1), 0), np.where(known, length, 0)


def pytree(case: Case) -> None:
    """The estimate is an array of finite numbers, [dim, dim] or one such matrix for each class."""
    matrix, dim = case.made, _dim(case)
    assert_numbers(matrix, "the estimate")
    assert jnp.shape(matrix) in ((dim, dim), (CLASSES, dim, dim)), (
        f"the estimate has shape {jnp.shape(matrix)}"
    )


def positive(case: Case) -> None:
    """The estimate is symmetric, and no eigenvalue is below 0."""
    for rows in case.drawn:
        (found,) = case.compiled(rows)
        assert_close(np.swapaxes(found.seen, -1, -2), found.seen, 1e-9, "the estimate, transposed")
        values = np.linalg.eigvalsh(found.seen)
        least, most = values.min(), np.abs(values).max()
        assert least >= -1e-9 * most, f"the least eigenvalue is {least}, the largest {most}"


def finite(case: Case) -> None:
    """The estimate is finite for few rows, for no rows, and for equal rows."""
    rows = _mapped(np.nan_to_num)(case.example)
    first = np.unique(rows.label, return_index=True)[1][1:]
    kept = {"one row": first[:1], "no row": first[:0], "one row of each class": first}
    cases = {
        name: replace(rows, count=np.where(np.isin(np.arange(len(rows.count)), some), rows.count, 0))
        for name, some in kept.items()
    }
    cases["rows that are all equal"] = _mapped(np.ones_like)(rows)
    for name, found in zip(cases, case.compiled(*cases.values()), strict=True):
        assert_numbers(found.seen, name)


def centring(case: Case) -> None:
    """In float32, two digits of an estimate are correct even for features 1000 standard deviations from 0."""
    rows = single(_mapped(lambda mean: mean + 1000)(case.example))
    (found,) = case.compiled(_mapped(lambda mean: mean.astype(np.float64))(rows))
    assert_close(case.seen(rows), found.seen, 1e-2, "the estimate in float32, and in float64")


def doubling(case: Case) -> None:
    """If all counts double, the estimate A grows: A − tr(A)/d·I is multiplied by a number of at least 2."""
    rows = paired(_dim(case))
    once, twice = (found.seen for found in case.compiled(rows, replace(rows, count=2 * rows.count)))
    (shape, length), (other, doubled) = _shape(once), _shape(twice)
    assert_close(other, shape, case.tolerance, "the estimate with all counts doubled, in its scale")
    ratio = (doubled / np.where(length > 0, length, np.inf)).max()
    assert (doubled >= 2 * (1 - case.tolerance) * length).all(), f"the estimate grows {ratio:.6g} times"


def merging(case: Case) -> None:
    """Joining two rows of a class with equal means changes an estimate A to aA + bI, with numbers a and b."""
    rows = paired(_dim(case))
    first = np.flatnonzero((rows.label >= 0) & (np.arange(len(rows.label)) % 5 == 0))
    count, label = rows.count.copy(), rows.label.copy()
    count[first] += count[first + 1]
    count[first + 1], label[first + 1] = 0, -1
    apart, merged = case.compiled(rows, replace(rows, count=count, label=label))
    assert_close(_shape(merged.seen)[0], _shape(apart.seen)[0], case.tolerance, "rows merged")


def unbiased(case: Case) -> None:
    """If all classes share a covariance Σ, the average estimate is what ``unbiased_for`` says, such as Σ."""
    expected = case.about
    if expected is None:
        return
    rows, dim = _clean(paired(_dim(case))), _dim(case)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(dim, dim))
    covariance, centres = root @ root.T, 3 * rng.normal(size=(CLASSES, dim))
    # The average of an estimate that is quadratic in the means depends only on their mean and covariance. So
    # average over few draws with this mean and covariance: in each, a single row is off its class's centre.
    number = len(rows.label)
    away = np.sqrt(number * dim) * np.einsum("rs,ij->risj", np.eye(number), root.T).reshape(-1, number, dim)
    means = np.concatenate([away, -away]) / np.sqrt(rows.count)[None, :, None]
    with double():

        def average(centre: Any, label: Any) -> Any:
            def one(mean: Any) -> Any:
                return case.make(None, Rows(mean + centre, rows.count, label, rows.client))

            return jax.vmap(one)(jnp.asarray(means)).mean(0)

        run = jax.jit(average)
        together = np.asarray(run(0 * centres[rows.label], rows.label))
        # An estimator that ignores labels treats all rows as one class; for it, all rows get one centre.
        labels_count = not np.allclose(run(0 * centres[rows.label], 0 * rows.label), together)
        found = np.asarray(run(centres[rows.label], rows.label)) if labels_count else together
    if expected == "covariance":
        goal = covariance
    elif expected == "scatter":
        each = found.ndim == 3
        goal = covariance * (rows.count.sum() / (CLASSES if each else 1) - (1 if each else CLASSES))
    else:
        goal = np.asarray(expected(covariance, rows))
    assert_close(found, np.broadcast_to(goal, found.shape), case.tolerance, "the average")


def _ordered(rows: Rows) -> Rows:
    return select_rows(rows, np.random.default_rng(0).permutation(len(rows.label)))


ESTIMATOR_LAWS: tuple[Law, ...] = (
    pytree,
    pure,
    jit,
    trace,
    relation("order", "The order of the rows does not matter.", _ordered),
    padding,
    positive,
    finite,
    centring,
    relation(
        "scaling",
        "Features times s have an estimate times s².",
        _mapped(lambda mean: 8 * mean),
        lambda matrix: 64 * matrix,
    ),
    relation(
        "translation",
        "Features that are all moved alike have the same estimate.",
        _mapped(lambda mean: mean + 5),
    ),
    relation(
        "rotation",
        "Features X R have the estimate Rᵀ Σ̂ R, for a rotation R.",
        _mapped(lambda mean: mean @ turn(mean.shape[1])),
        lambda matrix: turn(matrix.shape[-1]).T @ matrix @ turn(matrix.shape[-1]),
    ),
    doubling,
    merging,
    unbiased,
    reference,
    gradients,
)


def check_estimator(
    estimate: Callable[[Rows, int], Any],
    *,
    dim: int = 5,
    unbiased_for: Expectation | None = None,
    reference: Reference | None = None,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Check the laws of an estimator of a covariance from rows.

    The laws: ``pytree``, ``pure``, ``jit``, ``trace``, ``order``, ``padding``, ``positive``, ``finite``,
    ``centring``, ``scaling``, ``translation``, ``rotation``, ``doubling``, ``merging``, ``unbiased``,
    ``reference``, ``gradients``. Only ``unbiased`` and ``reference`` check the estimate's scale, such as
    1/(K − 1): give ``unbiased_for`` or ``reference``, or both.

    To check a shrinkage rule, check the estimate that it returns, see docs/your-own.md.

    Args:
        estimate: function of `Rows` and the number of classes to a matrix [dim, dim], or one for each class.
        dim: size of the features.
        unbiased_for: the expected estimate if all classes share a covariance Σ and each row is the mean of as
            many examples as its count: ``"covariance"`` for Σ; ``"scatter"`` for (N − C) Σ, of N examples in
            C classes; or a function of Σ and the rows. The average is exact for estimates that are quadratic
            in the means.
        reference: the formula in float64 NumPy: takes means, counts, labels (without padding) and the number
            of classes.
        exclude: laws that do not apply to this estimator, each with the reason: e.g. ``scaling`` if a
            parameter has the features' unit, ``translation`` if the estimate is not centred, ``doubling`` and
            ``merging`` if the estimate is a sum of terms that scale differently.

    Raises:
        AssertionError: if laws are broken, with the name and statement of each, and the numbers.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.

    >>> import covfree
    >>> def within(rows, num_classes):
    ...     return covfree.within_scatter(rows, covfree.first_moments(rows, num_classes))
    >>> check_estimator(within, unbiased_for="scatter")
    """

    def make(_: None, rows: Rows) -> Any:
        return estimate(replace(rows, mean=jnp.asarray(rows.mean)), CLASSES)

    def formula(reference: Reference, rows: Rows) -> Any:
        rows = _clean(rows)
        return reference(np.asarray(rows.mean), np.asarray(rows.count), np.asarray(rows.label), CLASSES)

    case = Case(
        shared=None,
        make=make,
        see=lambda matrix, _: matrix,
        draw=partial(table, dim),
        moving=("mean",),
        clean=_clean,
        reference=reference,
        formula=formula,
        about=unbiased_for,
    )
    hold(ESTIMATOR_LAWS, f"estimator {getattr(estimate, '__name__', repr(estimate))!r}", case, exclude)
