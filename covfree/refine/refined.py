"""A FedCOF head made exact over a few rounds: which system it solves, and what is asked of clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.checks import check_positive
from covfree.estimators import ScatterChoice, Shrinkage, pseudo_observations, total_gram
from covfree.estimators.moments import centred_means
from covfree.estimators.shrinkage import as_shrinkage, check_loading, is_loading, loading
from covfree.heads.lda import lda_head_of
from covfree.heads.mapped import MappedHead
from covfree.heads.ridge import ridge_head_of
from covfree.linalg import Scatter, factorise
from covfree.methods.fedcof import linear_system
from covfree.methods.method import Method, check_method
from covfree.methods.summaries import Examples
from covfree.refine.search import Search, advance, begin
from covfree.transforms import Transform
from covfree.types import H, LinearHead, Moments, Scalar


class Progress(NamedTuple):
    """What the server holds between rounds.

    Attributes:
        moments: counts and sums of each class.
        search: of the weights.
    """

    moments: Moments
    search: Search


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Refined(Generic[H]):
    """A method whose head is made exact over some rounds; see `refined`.

    Attributes:
        method: what the first round is.
        shrinkage: of the exact covariance.
        rounds: m, of products after the first round.
        directions: q, asked for in a round at most; None for as many as the head has independent columns.
    """

    method: Method[H]
    shrinkage: Shrinkage
    rounds: int = field(metadata={"static": True})
    directions: int | None = field(default=None, metadata={"static": True})

    @property
    def name(self) -> str:
        """Of the method, and what becomes of it."""
        return f"{self.method.name}-refined"

    def with_transforms(self, *transforms: Transform) -> Refined[H]:
        """With transforms of the rows that clients send in the first round; see `Method.with_transforms`."""
        return replace(self, method=self.method.with_transforms(*transforms))

    def asked(self, dim: int, num_classes: int) -> list[int]:
        """How many directions each round asks for: q, until d of them are known."""
        ridge = linear_system(self.method)[1] is not None
        # Centred means of C classes span C − 1 dimensions.
        most = max(1, num_classes - (not ridge)) if self.directions is None else self.directions
        most = min(most, num_classes)
        return [min(most, dim - done) for done in range(0, dim, most)][: self.rounds]

    def begin(self, *totals: Any) -> Progress:
        """Start from the head of the method's totals."""
        within, gram = linear_system(self.method)
        moments = within.moments(totals[0])
        system = self.method.system(self.method.params, *totals)  # pyright: ignore[reportOptionalCall]
        right = (centred_means(moments) if gram is None else moments.total).T
        return Progress(moments, begin(factorise(system), right, self._most(right)))

    def advance(
        self, progress: Progress, product: Float[Array, "dim asked"], trace: Float[Array, ""]
    ) -> Progress:
        """Take what was asked for.

        Args:
            progress: so far.
            product: W Q, of the within-class scatter W of all examples and the directions
                ``progress.search.directions``.
            trace: tr W.
        """
        moments, search = progress
        gram = linear_system(self.method)[1]
        degrees = jnp.maximum(moments.within_degrees, 1)
        dim = search.right.shape[0]
        gamma = loading(self.shrinkage, trace / degrees / dim, dim, degrees)
        if gram is None:
            images = product / degrees + gamma * search.directions
        else:
            images = _gram_images(gram, moments, search.directions, product, gamma * degrees)
        return Progress(moments, advance(search, images, self._most(search.right)))

    def head(self, progress: Progress) -> H:
        """The head as it stands."""
        gram = linear_system(self.method)[1]
        finish = lda_head_of if gram is None else ridge_head_of
        head: LinearHead = finish(progress.search.weight, progress.moments)
        mapping = self.method.feature_map
        return cast(H, head if mapping is None else MappedHead(mapping, head))

    def _most(self, right: Float[Array, "dim classes"]) -> int:
        return self.asked(*right.shape)[0]


def _gram_images(
    gram: ScatterChoice, moments: Moments, directions: jax.Array, product: jax.Array, shift: jax.Array
) -> jax.Array:
    """(Gram matrix + λI) Q from W Q: the parts beside W are known."""
    rest = total_gram(Scatter.from_factor(jnp.zeros_like(directions[:, :1].T)), moments, scatter=gram)
    return product + rest.times(directions) + shift * directions


def refined(
    method: Method[H],
    rounds: int = 3,
    directions: int | None = None,
    *,
    shrinkage: Scalar | Shrinkage | None = None,
) -> Refined[H]:
    """Make the head of a method exact, or nearly so, over a few rounds of small messages.

    FedCOF estimates the covariance from class means. After its round the server sends q directions, and each
    client answers with its own scatter times them: d·q numbers, which add up over clients. From these, with
    the estimate as a preconditioner, the server comes nearer in each round to the head of the exact
    covariance: that of `fedcof_oracle`, or of Fed3R, which take d² numbers from each client.

    Derivatives take the directions as given: they are whole where all d are known.

    Taken by `covfree.fit`, which simulates it in one call, by ``covfree.rounds.as_algorithm``, and by
    `sent_bytes` and `client_flops`.

    Args:
        method: `fedcof`, with an LDA or a ridge head and one mean for each class of a client, or one of its
            kin.
        rounds: m, of products. Three come near to the exact head wherever we have tried; d/q are exact.
        directions: q, of a round, at most; by default C − 1 for LDA and C for ridge heads: all directions
            that the head's columns span. With fewer the leading ones are taken, and progress is slower and
            less even.
        shrinkage: of the exact covariance S: γ of S + γI, ``covfree.relative(…)`` or
            `pseudo_observations`. By default the method's own if it is one of these, else
            `pseudo_observations`: γ = t·min(1, d/ν) with t = tr(S)/d and ν = N − C degrees of freedom. Where
            features have very unequal variances that may be too much; try ``covfree.relative(0.001)``.

    Returns:
        What runs: a pytree whose leaves are the method's numbers and the shrinkage's.

    Raises:
        TypeError: if ``method`` is none.
        ValueError: if the method has no such head or sends other than class means, or a number is out of
            range.

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
    _, gram = linear_system(method)
    if isinstance(method.summary, Examples):
        raise ValueError(
            f"method: expected one whose covariance is estimated, got {method.name!r}, which is exact"
        )
    if getattr(method.summary, "num_subsets", None) != 1:
        raise ValueError(
            "method: expected one whose clients send one mean for each class, num_subsets=1; got "
            f"{method.name!r}"
        )
    if gram == "between":
        raise ValueError(
            "method: expected scatter 'within' or 'both', got 'between': it leaves nothing to refine"
        )
    if shrinkage is None:
        shrinkage = method.params if is_loading(method.params) else pseudo_observations()
    exact = as_shrinkage(shrinkage)  # pyright: ignore[reportArgumentType]
    check_loading(exact)
    return Refined(method, exact, rounds, directions)
