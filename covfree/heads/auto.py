"""LDA with a guard: nearest class means where LDA is foretold to fail."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.estimators.foretold import deterministic_equivalents, mistake_chance, sampled_classes
from covfree.estimators.scatter import Freedom, class_weights
from covfree.heads.columns import fitting
from covfree.heads.lda import lda_head
from covfree.heads.ncm import ncm_head
from covfree.heads.threshold import Parts, unequal_cut
from covfree.lapack import eigh
from covfree.linalg import Scatter
from covfree.products import product
from covfree.types import AnyArray, LinearHead, Moments

# The guard takes over where it is foretold at most this share of LDA's mistakes: a foretold error is an
# estimate, and with shrinkage that suits the rows LDA was never much worse than another head.
_CLEARLY_FEWER = 0.5


def auto_head(
    covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments, parts: Parts | None = None
) -> LinearHead:
    """LDA, cut where two classes of different variance ask for it; or nearest class means.

    With shrinkage that suits the rows (``"auto"``) LDA is as good as any other linear head, but for one
    thing: where there are two classes, and one varies more than the other, LDA cuts in the wrong place.
    `unequal_cut` mends that, from how far each class's rows spread. With more classes one cut matters less,
    and a covariance for each is more than a server should hold.

    Where few rows met too little shrinkage, the covariance is worse than none, and nearest class means take
    over: if they are foretold to make at most half of LDA's mistakes.

    Args:
        covariance: Σ̃, a shrunk within-class covariance.
        moments: phase one of all rows.
        parts: what each of two classes adds to Σ̃, where that is known.

    Returns:
        `lda_head` of Σ̃, with another cut where there are ``parts``, or `ncm_head`; see `choose_head`.
        Derivatives are those of the chosen head.

    Raises:
        ValueError: if Σ̃ and the moments differ in size.

    Source: covfree.

    >>> import covfree, jax.numpy as jnp
    >>> from covfree.heads.auto import auto_head
    >>> rows = covfree.Rows(jnp.array([[0.0], [2.0], [5.0], [7.0]]), jnp.ones(4), jnp.array([0, 0, 1, 1]))
    >>> head = covfree.solve_rows(covfree.fedcof(head=auto_head), rows, num_classes=2)
    >>> head(rows.mean).argmax(-1).tolist()
    [0, 0, 1, 1]
    """
    scatter = fitting("covariance", covariance, moments)
    heads = lda_head(scatter, moments), ncm_head(moments)
    index = _choice(_errors(scatter, moments, heads))
    if parts is not None:
        heads = unequal_cut(scatter, moments, parts, heads[0]), heads[1]
    return jax.tree.map(lambda *leaves: jax.lax.select_n(index, *leaves), *heads)


def choose_head(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Integer[Array, ""]:
    """Which head `auto_head` takes: 0 for LDA, 1 for nearest class means.

    Args:
        covariance: see `auto_head`.
        moments: see `auto_head`.
    """
    return _choice(foretold_errors(covariance, moments))


def foretold_errors(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Float[Array, "2"]:
    r"""Share of examples that LDA and nearest class means are foretold to get wrong.

    For Gaussian classes of one covariance Σ, as frequent as in training. A head (w_c, b_c) has class i beat
    class j by a Gaussian margin of mean (w_i − w_j)ᵀμ_i + b_i − b_j − o_i/N_i and variance
    (w_i − w_j)ᵀΣ(w_i − w_j); `mistake_chance` makes the error of them. o_i/N_i with o_i = tr(∂w_i/∂μ_i Σ) is
    what the margin owes to the class's own examples: tr(Σ̃⁻¹Σ) for LDA, and (tr Σ − w_iᵀΣw_i)/‖μ_i‖ for the
    nearest mean.

    Σ is unknown. Of Σ̃ = A + bI, A was observed: brought to the trace of Σ̃, as rules that keep the trace
    shrink it, it stands for Σ. (The s of `automatic` scales Σ̃ beyond that, and so the deviations of both
    heads' margins by √s: their errors move together.) LDA, which was made with A, then sees too little
    variance: `deterministic_equivalents` correct that, with the degrees of freedom of FedCOF's estimate
    (``weighting`` ``"per_class"``). Where nothing was observed, Σ̃ stands for Σ. Errors are for a comparison:
    features that are not Gaussian, or shift from client to client, make more mistakes.

    Args:
        covariance: see `auto_head`.
        moments: see `auto_head`.

    Source: covfree.
    """
    scatter = fitting("covariance", covariance, moments)
    return _errors(scatter, moments, (lda_head(scatter, moments), ncm_head(moments)))


def _choice(errors: Float[Array, "2"]) -> Integer[Array, ""]:
    return (errors[1] < _CLEARLY_FEWER * errors[0]).astype(jnp.int32)


def _errors(covariance: Scatter, moments: Moments, heads: tuple[LinearHead, LinearHead]) -> Float[Array, "2"]:
    # A choice has no derivative.
    covariance, moments, heads = jax.lax.stop_gradient((covariance, moments, heads))
    dim = covariance.dim
    freedom = Freedom.of_classes(
        moments, class_weights(moments, "per_class") / jnp.maximum(moments.within_degrees, 1)
    )
    values = jnp.maximum(eigh(covariance.core())[0], 0)
    seen = (values.sum() > 0) & (freedom.degrees.sum() > 0)
    trace = values.sum() + dim * covariance.shift
    # A·raised has the trace of Σ̃ = (A·raised + b·raised·I)/raised.
    raised = jnp.where(seen, trace / jnp.where(seen, values.sum(), 1), 1)
    truth = jax.tree.map(lambda a, b: jnp.where(seen, a, b), covariance.unshifted.scaled(raised), covariance)

    shifted = values + covariance.shift
    ratio = jnp.where(shifted > 0, values / jnp.where(shifted > 0, shifted, 1), 0)
    equivalent, kindness = deterministic_equivalents(ratio.sum(), freedom)
    # Classes of one row add nothing to Σ̂, so that E[Σ̂] is this times Σ.
    unbiased = (freedom.degrees * freedom.weight).sum()
    kind = jnp.where(seen, jnp.stack([kindness, unbiased]), 1)

    count = jnp.maximum(moments.count.astype(values.dtype), 1)
    mean = jnp.where(moments.present[:, None], moments.mean, 0)
    length = jnp.linalg.norm(mean, axis=1)
    chosen, share = sampled_classes(moments)
    rival = moments.present[None, :] & (jnp.arange(count.shape[0])[None, :] != chosen[:, None])

    def error(head: LinearHead, kind: jax.Array, nearest: bool) -> Float[Array, ""]:
        spread = product(head.weight.T, truth.times(head.weight)) / kind
        own = jnp.diagonal(spread)
        variance = jnp.maximum(own[:, None] + own[None, :] - 2 * spread, 0)
        if nearest:
            owed = jnp.where(length > 0, (trace / kind - own) / jnp.where(length > 0, length, 1), 0)
        else:
            owed = jnp.broadcast_to(jnp.where(seen, equivalent * raised, dim), count.shape)
        scores = product(mean, head.weight) + jnp.where(moments.present, head.bias, 0)[None, :]
        margin = (jnp.diagonal(scores) - owed / count)[:, None] - scores
        return (share * mistake_chance(margin[chosen], variance[chosen], rival)).sum()

    return jnp.stack([error(heads[0], kind[0], False), error(heads[1], kind[1], True)])
