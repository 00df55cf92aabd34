"""Laws of functions that make a head from a covariance and the class moments; `check_head` tests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from covfree.core.linalg import Scatter
from covfree.core.types import Head, Moments
from covfree.testing.case import Case, gradients, jit, pure, reference, relation, single, trace
from covfree.testing.federations import CLASSES, corners, federation
from covfree.testing.laws import SINGLE, Law, assert_close, assert_numbers, assert_same, centred, hold, turn

# Function from (covariance, counts, means) to a function from features to scores, in float64 NumPy.
Reference: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[[np.ndarray], Any]]


class Given(NamedTuple):
    """A head's inputs and some features to score, all in float64 NumPy.

    Attributes:
        covariance: the covariance matrix.
        counts: the number of examples of each class.
        total: the sum of each class's features.
        probes: the features to score.
    """

    covariance: Any
    counts: Any
    total: Any
    probes: Any

    @property
    def means(self) -> np.ndarray:
        """The class means; 0 for classes without an example."""
        return self.total / np.maximum(self.counts, 1)[:, None]

    @property
    def held(self) -> np.ndarray:
        """[classes] bool: whether the class has an example."""
        return self.counts > 0

    def times(self, matrix: np.ndarray) -> Given:
        """Return the inputs for the features F M in place of F (examples as rows), with M = ``matrix``."""
        covariance = matrix.T @ self.covariance @ matrix
        return Given(covariance, self.counts, self.total @ matrix, self.probes @ matrix)

    def plus(self, away: np.ndarray) -> Given:
        """Return the inputs for features to which the vector ``away`` is added."""
        total = self.total + self.counts[:, None] * away[None, :]
        return self._replace(total=total, probes=self.probes + away[None, :])

    def of(self, counts: np.ndarray) -> Given:
        """Return these inputs with the class counts ``counts``; the class means stay the same."""
        return self._replace(counts=counts, total=counts[:, None] * self.means)


def _odd(dim: int) -> dict[str, Given]:
    """Return inputs in which some or all classes have no example, by name."""
    example, alone = _given(dim), np.arange(CLASSES) == 2
    one, none = (example.of(np.where(kept, example.counts, 0)) for kept in (alone, alone & False))
    return {"an absent class": example, "one class": one, "no class": none}


def _given(dim: int, seed: int = 0, absent: int = 3) -> Given:
    """Make the inputs from a small federation in which the class ``absent`` has no example."""
    examples = federation(dim, seed, absent).clean
    count = np.bincount(examples.labels, minlength=CLASSES)
    total = np.stack([examples.features[examples.labels == c].sum(0) for c in range(CLASSES)])
    away = examples.features - (total / np.maximum(count, 1)[:, None])[examples.labels]
    covariance = away.T @ away / len(away) + 0.1 * np.eye(dim)
    probes = 2 * np.random.default_rng(1).normal(size=(16, dim)).astype(np.float32)
    return Given(covariance, count, total, probes.astype(np.float64))


def _arguments(given: Given) -> tuple[Scatter, Moments]:
    """Convert NumPy inputs to what a method passes to a head: the covariance and the class moments."""
    count, total = jnp.asarray(given.counts, jnp.int32), jnp.asarray(given.total)
    covariance = jnp.asarray(given.covariance)
    # Symmetrise, as a covariance is symmetric, but derivatives are taken by single entries.
    covariance = (covariance + covariance.T) / 2
    return Scatter.from_matrix(covariance), Moments(count, jnp.minimum(count, 4), total)


def pytree(case: Case) -> None:
    """The head is a pytree of finite numbers."""
    assert_numbers(case.made, "the head")


def scores(case: Case) -> None:
    """Features [*batch, dim] give scores [*batch, classes] in the features' precision, for any batch."""
    head, features = case.made, case.example.probes.astype(np.float32)
    try:
        together = np.asarray(head(features))
    # A head may raise any exception.
    except Exception as error:
        raise AssertionError(
            f"the head raised {type(error).__name__} when it was called with features "
            f"{list(features.shape)} of the data: {error}"
        ) from error
    assert together.dtype == np.float32, f"scores of float32 features are {together.dtype}"
    assert together.shape == (16, CLASSES), f"scores of features [16, dim] have shape {together.shape}"
    for shape in ((2, 8), ()):
        batch, expected = (x[: max(1, 16 * len(shape))].reshape(*shape, -1) for x in (features, together))
        assert_close(np.asarray(head(batch)), expected, SINGLE, f"scores of features {batch.shape}")


def finite(case: Case) -> None:
    """Scores are −∞ for classes without an example and finite for all others, even for degenerate inputs."""
    for name, given in case.odd.items():
        (found,) = case.compiled(given)
        expected = np.broadcast_to(np.where(given.held, 0, -np.inf), found.seen.shape)
        assert_same(np.where(np.isfinite(found.seen), 0, found.seen), expected, f"{name}: scores")


def scaling(case: Case) -> None:
    """Predictions do not depend on the unit of the features."""
    for given in case.drawn:
        units = [given.times(scale * np.eye(given.probes.shape[1])) for scale in (1.0, 2.0**-12, 2.0**12)]
        first, *others = (found.seen.argmax(-1) for found in case.compiled(*units))
        for other in others:
            assert_same(other, first, "classes predicted with features scaled by 2^±12, and without")


def priors(case: Case) -> None:
    """If a class gets more examples with the same mean, its scores do not fall relative to other classes'."""
    for given in case.drawn:
        held = np.flatnonzero(given.counts)
        more = given.of(np.where(np.arange(CLASSES) == held[0], 3 * given.counts, given.counts))
        gaps = [found.seen[:, held[:1]] - found.seen[:, held] for found in case.compiled(given, more)]
        fall = (gaps[0] - gaps[1]).max()
        assert fall <= case.tolerance * np.abs(gaps[0]).max(), (
            f"with three times as many examples, class {held[0]} loses {fall:.6g} against another"
        )


def means(case: Case) -> None:
    """For well separated classes of equal size, the head assigns each class mean to its own class."""
    probes = case.example.probes
    dim = probes.shape[1]
    given = Given(np.eye(dim), np.full(CLASSES, 7), 7 * corners(dim), probes)
    probes = np.zeros_like(given.probes)
    probes[:CLASSES] = given.means
    (found,) = case.compiled(given._replace(probes=probes))
    assert_same(found.seen[:CLASSES].argmax(-1), np.arange(CLASSES), "classes predicted at the means")


def variances(case: Case) -> None:
    """More variance in one direction does not raise its weight in the scores relative to other directions."""
    dim = case.example.probes.shape[1]
    apart = np.zeros((CLASSES, dim))
    apart[:2, :2] = [[1, 1], [-1, -1]]
    counts = np.where(np.arange(CLASSES) < 2, 7, 0)
    given = Given(np.eye(dim), counts, 7 * apart, np.eye(16, dim) * (np.arange(16) < 2)[:, None])
    wider = given._replace(covariance=np.diag(np.where(np.arange(dim) == 1, 9.0, 1.0)))
    shares = []
    for found in case.compiled(given, wider):
        gap = found.seen[:3, 0] - found.seen[:3, 1]
        shares.append((gap[1] - gap[2]) / (gap[0] - gap[2]))
    assert shares[1] <= shares[0] * (1 + case.tolerance), (
        f"with nine times its variance, it counts for {shares[1]:.6g} of another, and before {shares[0]:.6g}"
    )


def factor(case: Case) -> None:
    """A covariance that is stored as a factor, YᵀY + γI, gives the same head as the full matrix."""
    _, moments = _arguments(single(case.example))
    dim = case.example.probes.shape[1]
    rows = np.random.default_rng(0).normal(size=(dim - 2, dim)).astype(np.float32)
    factored = Scatter.from_factor(jnp.asarray(rows)).shifted(0.5)
    features = case.example.probes.astype(np.float32)
    full = Scatter.from_matrix(factored.dense())
    found, expected = (np.asarray(case.about(each, moments)(features)) for each in (factored, full))
    assert_close(found, expected, 10 * SINGLE, "scores with a factor, and with the matrix")


HEAD_LAWS: tuple[Law, ...] = (
    pytree,
    scores,
    pure,
    jit,
    trace,
    finite,
    relation(
        "classes",
        "If the classes are renumbered, the scores change their order likewise, and nothing else.",
        lambda given: given._replace(counts=given.counts[::-1], total=given.total[::-1]),
        lambda scores: scores[:, ::-1],
    ),
    scaling,
    relation(
        "translation",
        "Features that are all moved alike have the same scores, up to a constant a row.",
        lambda given: given.plus(np.linspace(1, 3, given.probes.shape[1])),
        to=centred,
    ),
    relation(
        "rotation",
        "Directions do not matter: rotated features have the scores of the features.",
        lambda given: given.times(turn(given.probes.shape[1])),
    ),
    priors,
    means,
    variances,
    factor,
    reference,
    gradients,
)


def check_head(
    make: Callable[[Scatter, Moments], Head],
    *,
    dim: int = 5,
    reference: Reference | None = None,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Check the laws that every head must satisfy.

    The laws: ``pytree``, ``scores``, ``pure``, ``jit``, ``trace``, ``finite``, ``classes``, ``scaling``,
    ``translation``, ``rotation``, ``priors``, ``means``, ``variances``, ``factor``, ``reference``,
    ``gradients``.

    Args:
        make: what `fedcof` takes as ``head=``: a function of the within-class covariance (a `Scatter`) and
            the `Moments` that returns a head.
        dim: size of the features.
        reference: the formula in float64 NumPy: function of the covariance, the classes' counts and their
            means that returns a function from features to scores. Scores may differ by a constant in each
            row.
        exclude: laws that do not apply to this head, each with the reason: ``translation`` if it is not
            centred, ``scaling`` if a parameter has the features' unit, ``rotation`` if directions are treated
            differently, ``gradients`` if there is no derivative.

    Raises:
        AssertionError: if laws are broken, with the name and statement of each, and the numbers.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.

    >>> import covfree
    >>> check_head(covfree.lda_head)
    """

    def formula(reference: Reference, given: Given) -> Any:
        scores = np.asarray(reference(given.covariance, given.counts, given.means)(given.probes))
        # Set the reference's scores of classes without an example to −∞, as heads do.
        return np.where(given.held, scores, -np.inf)

    case = Case(
        shared=None,
        make=lambda _, given: make(*_arguments(given)),
        see=lambda head, given: head(given.probes),
        draw=partial(_given, dim),
        moving=("covariance", "total"),
        reference=reference,
        formula=formula,
        to=centred,
        odd=_odd(dim),
        about=make,
    )
    hold(HEAD_LAWS, f"head {getattr(make, '__name__', repr(make))!r}", case, exclude)
