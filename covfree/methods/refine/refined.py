"""Refine a FedCOF head in more rounds, towards the head of the exact covariance.

In each of these rounds, the server sends a few directions, the columns of V. Clients answer with S V, where S
is the scatter of their examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_positive
from covfree.core.linalg import Scatter, factorise
from covfree.core.products import divide_or_zero, product
from covfree.core.types import H, Moments, Rows, Scalar
from covfree.estimators import Shrinkage, first_moments, pseudo_observations, total_gram
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.moments import centred_means
from covfree.estimators.scatter import centred_rows
from covfree.estimators.shrinkage import check_loading, is_loading, loading
from covfree.heads.columns import resolved_sums
from covfree.heads.lda import lda_head_of
from covfree.heads.ridge import ridge_head_of
from covfree.methods.fedcof_like import plain_head
from covfree.methods.method import Method, check_method
from covfree.methods.refine.answer import Answer, answer
from covfree.methods.refine.search import Search, advance, begin, known_matrix
from covfree.methods.rounds import Round, bound, moments_of, of_first, option
from covfree.methods.within import Estimate


class RefineProgress(NamedTuple):
    """The server's state while `refined` improves a head, starting from the method's own.

    Attributes:
        moments: counts and sums of each class.
        search: the state of the iterative solver of the head's weights.
        rows: the class means that clients sent; None if they sent only sums. The server computes the scatter
            between these means itself.
        own: the totals of the method's third and later rounds; only a Student head needs them.
        covariance: for a ridge head, the shrunk covariance (if features are far from zero, it cannot be
            recovered from the Gram matrix); None for other heads.
    """

    moments: Moments
    search: Search
    rows: Rows | None = None
    own: tuple[Any, ...] = ()
    covariance: Scatter | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RefinedNumbers:
    """A refined method's ``params``, which ``vmap`` may sweep.

    Attributes:
        first: the ``params`` of the method that is refined.
        shrinkage: how the exact covariance of the examples, which the rounds approach, is shrunk.
    """

    first: Any
    shrinkage: Shrinkage


@dataclass(frozen=True)
class RefinePlan:
    """The static settings of `refined`.

    Attributes:
        estimate: how the method estimates the covariance, which is refined.
        directions: q, see `refined`.
        head: None for a linear head. Otherwise the method's function ``head``, which is called with the
            result of `known_matrix` as the covariance.
    """

    estimate: Estimate
    directions: int | None
    head: Callable[..., Any] | None = None

    def most(self, shape: tuple[int, ...]) -> int:
        """Return how many directions the server sends in a round at most; ``shape`` is [dim, classes]."""
        dim, num_classes = shape
        # Means of C classes about their overall mean span C − 1 dimensions; a ridge head has means about 0.
        most = (
            max(1, num_classes - (self.estimate.gram is None)) if self.directions is None else self.directions
        )
        return min(most, num_classes, dim)


def _begin(first: Any, state: tuple[Any, ...], total: Any, *, plan: RefinePlan) -> RefineProgress:
    """Return the server's state before the first refinement, from the totals of the method's own rounds."""
    totals = (*state, total)
    moments = moments_of(totals[0])
    estimate, linear = plan.estimate, plan.estimate.gram is None
    right = (centred_means(moments) if linear else resolved_sums(moments)).T
    covariance = estimate.covariance(first, *totals)
    system = covariance if linear else estimate.gram_of(covariance, totals[0])
    search = begin(factorise(system), right, plan.most(right.shape))
    return RefineProgress(moments, search, None, totals[2:], None if linear else covariance)


def _estimated(numbers: RefinedNumbers, *state: Any) -> Scatter:
    """Return the method's shrunk covariance as estimated before the refinement."""
    progress = RefineProgress(*state)
    return progress.search.inverse.scatter if progress.covariance is None else progress.covariance


def _ask(numbers: RefinedNumbers, progress: RefineProgress) -> tuple[jax.Array, jax.Array | None]:
    """Return what the server sends in a round, directions V and class means or None: see `answer`."""
    return progress.search.directions, progress.moments.mean if progress.rows is None else None


def _take(
    numbers: RefinedNumbers, progress: RefineProgress, answer: Answer, *, plan: RefinePlan
) -> RefineProgress:
    """Improve the head's weights by the sum of the clients' answers; return the server's next state.

    If clients are missing, the sum is scaled up by degrees of freedom, as if the missing clients had the same
    scatter per degree of freedom as the others. If nobody answered, the round changes nothing.
    """
    moments, search, rows, *_ = progress
    known = None if rows is None else first_moments(rows, moments.count.shape[0])
    expected = moments.num_examples if known is None else known.hidden_degrees
    expected = expected.astype(answer.degrees.dtype)
    came = answer.degrees > 0
    scale = divide_or_zero(expected, answer.degrees)
    image, trace = scale * answer.product, scale * answer.trace
    if rows is not None and known is not None:
        between = centred_rows(rows, known)
        image += product(between.T, product(between, search.directions))
        trace += jnp.square(between).sum()
    came |= expected == 0
    asked = search._replace(directions=jnp.where(came, search.directions, 0))
    image, trace = jnp.where(came, image, 0), jnp.where(came, trace, 0)
    images = _images(numbers, moments, asked, image, trace, plan.estimate)
    new = advance(asked, images, plan.most(search.right.shape))
    kept = ("weight", "error", "length")
    kept = {name: jnp.where(came, getattr(new, name), getattr(search, name)) for name in kept}
    return progress._replace(search=new._replace(**kept))


def _images(
    numbers: RefinedNumbers,
    moments: Moments,
    search: Search,
    image: jax.Array,
    trace: jax.Array,
    estimate: Estimate,
) -> jax.Array:
    """Multiply ``search.directions`` by A, the exact matrix of the linear system A W = M of the head.

    ``image`` is the exact within-class scatter S times the directions, and ``trace`` is tr S.
    """
    degrees = jnp.maximum(moments.within_degrees, 1)
    dim = search.right.shape[0]
    gamma = loading(numbers.shrinkage, trace / degrees / dim, dim, degrees)
    if estimate.gram is None:
        return image / degrees + gamma * search.directions
    # The system is the Gram matrix plus λI. The Gram matrix is the scatter within classes, of which only the
    # product with the directions is known (``image``), plus terms of the class means (``rest``).
    none = Scatter.from_factor(jnp.zeros_like(search.directions[:, :1].T))
    rest = total_gram(none, moments, scatter=estimate.gram)
    return image + rest.times(search.directions) + gamma * degrees * search.directions


def _finish(numbers: RefinedNumbers, system: None, *state: Any, plan: RefinePlan) -> Any:
    """Make the head from the server's state, after any number of rounds of the refinement.

    LDA and ridge heads are made from the refined weights; a Student head from `known_matrix`, a covariance
    that agrees with all products that clients computed.
    """
    moments, search, _, own, _ = RefineProgress(*state)
    if plan.head is not None:
        return plan.head(numbers.first, known_matrix(search), moments, None, *own)
    return (lda_head_of if plan.estimate.gram is None else ridge_head_of)(search.weight, moments)


def _keep(progress: RefineProgress, rows: Rows) -> RefineProgress:
    return progress._replace(rows=rows)


def _report(numbers: RefinedNumbers, progress: RefineProgress) -> dict[str, Any]:
    """Report the predicted error of the head's weights, as ``{"error": …}``; {} before the first answers."""
    return {"error": progress.search.error} if progress.search.span.shape[1] else {}


def _flops(
    numbers: RefinedNumbers, num_examples: int, dim: int, num_classes: int, *, plan: RefinePlan, rounds: int
) -> int:
    return 2 * num_examples * dim * min(dim, rounds * plan.most((dim, num_classes)))


def refined(
    method: Method[H],
    rounds: int = 3,
    directions: int | None = None,
    *,
    shrinkage: Scalar | Shrinkage | None = None,
) -> Method[H]:
    """Make the head of a method exact, or nearly so, over a few rounds of small messages.

    FedCOF estimates the covariance from class means. After its round the server sends q directions, and each
    client answers with its own scatter times them: d·q numbers, which add up over clients. The server solves
    iteratively, with the estimate as a preconditioner, for the head of the exact covariance: that of
    `fedcof_oracle` or Fed3R, for which each client sends at least d² numbers.

    Derivatives treat the directions as constants, so they are exact only after d directions in all.

    Args:
        method: `fedcof` with an LDA, ridge or Student head and one mean for each class of a client, or a
            similar method: `fedcof_residuals` starts nearer to the exact head. For a Student head only the
            shared covariance is refined; the scatter of each class is still that of its class means.
        rounds: m, rounds of products. Three came near to the exact head in all our trials; d/q rounds give
            it exactly.
        directions: q, the largest number of directions of a round; by default C − 1 for LDA and C for ridge
            heads, which span all of the head's columns. With fewer, the leading ones are used, and progress
            is slower and less even.
        shrinkage: shrinkage of the exact covariance S: a number γ for S + γI, ``covfree.relative(…)`` or
            `pseudo_observations`. By default the method's own if it is one of these, else
            `pseudo_observations`: γ = t·min(1, d/ν) with t = tr(S)/d and ν = N − C degrees of freedom of N
            examples. For features with very unequal variances that may be too much; try
            ``covfree.relative(0.001)``.

    Returns:
        The method with rounds of products after its own. Its hyperparameters are ``params.first``, those of
        the given method, and ``params.shrinkage``.

    Raises:
        TypeError: if ``method`` is not a method.
        ValueError: if the method has another head or an exact covariance, its clients send several means for
            a class, or a number is out of range.

    Source: covfree; the derivation is in docs/refinement.md.

    >>> import covfree, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> features = (rng.normal(size=(300, 8)) @ rng.normal(size=(8, 8)) + labels[:, None]).astype(np.float32)
    >>> clients = rng.integers(0, 4, 300)
    >>> exact = covfree.fit(covfree.fedcof_oracle(0.1), features, labels, clients)
    >>> for rounds in (1, 2, 4):
    ...     head = covfree.fit(covfree.refined(covfree.fedcof(0.1), rounds), features, labels, clients)
    ...     print(round(float(abs(head.weight - exact.weight).max() / abs(exact.weight).max()), 2))
    0.37
    0.14
    0.0
    """
    check_method(method)
    check_positive("rounds", rounds)
    if directions is not None:
        check_positive("directions", directions)
    estimate, kind = method.estimate, plain_head(method)
    if estimate is None or kind is None:
        raise ValueError(
            "method: expected one with an LDA, ridge or Student head of an estimated covariance, without an "
            f"intercept or a temperature, such as covfree.fedcof(), got {method.name!r}"
        )
    if method.summary.merge is not None:
        raise ValueError(
            f"method: expected one whose covariance is estimated, got {method.name!r}, which is exact"
        )
    # Refinement needs one mean of each class from each client. Residual directions, which some methods send
    # too, do no harm: their rows have no class (label −2), and do not enter the scatter between these means.
    with_directions = option(method.summary.make, "num_directions") is not None
    if not with_directions and option(method.summary.make, "num_subsets") != 1:
        raise ValueError(
            "method: expected one whose clients send one mean for each class, num_subsets=1; got "
            f"{method.name!r}"
        )
    if estimate.gram == "between":
        raise ValueError(
            "method: expected scatter 'within' or 'both', got 'between': it leaves nothing to refine"
        )
    if shrinkage is None:
        rule = method.rounds[0].own(method.params)
        shrinkage = rule if is_loading(rule) else pseudo_observations()
    exact = as_shrinkage(shrinkage)  # pyright: ignore[reportArgumentType]
    check_loading(exact)
    plan = RefinePlan(estimate, directions, method.head if kind == "student" else None)
    own = [replace(each, numbers=bound(of_first, inner=each.numbers)) for each in method.rounds]
    # `_begin` needs all numbers (``inner=None``); the client function of the method's last round uses none.
    start, numbers = bound(_begin, plan=plan), bound(of_first, inner=None)
    own[-1] = replace(own[-1], server=start, numbers=numbers, head=True)
    products = Round(answer, bound(_take, plan=plan), _ask, examples=True, head=True)
    every = *own, *(products,) * rounds
    made: Any = replace(
        method,
        params=RefinedNumbers(method.params, exact),
        name=f"{method.name}-refined",
        rounds=every,
        system=None,
        head=bound(_finish, plan=plan),
        estimate=replace(estimate, covariance=_estimated, made=(None, every)),
        received=_keep,
        report=_report,
        flops=bound(_flops, plan=plan, rounds=rounds),
    )
    return made
