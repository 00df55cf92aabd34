"""The head chosen by its foretold error: no data, no tuning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.estimators.foretold import deterministic_equivalents, mistake_chance, sampled_classes
from covfree.estimators.scatter import Freedom, class_weights, total_gram
from covfree.heads.columns import fitting
from covfree.heads.lda import lda_head
from covfree.heads.ncm import ncm_head
from covfree.heads.ridge import ridge_head
from covfree.linalg import Scatter
from covfree.products import product
from covfree.types import AnyArray, LinearHead, Moments

# Another head than LDA must be foretold to make at most this share of LDA's mistakes. A foretold error is
# an estimate, and LDA is the best of the three wherever classes are about Gaussian with one covariance.
_HANDICAP = 0.8


def auto_head(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> LinearHead:
    """The head of three that is foretold to make the fewest mistakes: LDA, ridge regression or nearest mean.

    See `foretold_errors` for how, and `choose_head` for which. LDA is kept unless another head is foretold
    to make at least a fifth fewer mistakes. That is rare where the covariance is well shrunk
    (``shrinkage="auto"``), so that this is LDA with a guard: against a covariance that was shrunk too little,
    which ruins LDA and ridge regression alike, and against means of rare classes that are so noisy that LDA
    never predicts them.

    Args:
        covariance: Σ̃, a shrunk within-class covariance.
        moments: phase one of all rows.

    Returns:
        The chosen head: `lda_head` of Σ̃; `ridge_head` of the Gram matrix (N − C)·Σ̃ + N μ_g μ_gᵀ; or
        `ncm_head`. Derivatives are those of the chosen head.

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
    heads = _heads(scatter, moments)
    index = _choice(scatter, moments, heads)
    return jax.tree.map(lambda *leaves: jax.lax.select_n(index, *leaves), *heads)


def choose_head(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Integer[Array, ""]:
    """Which head `auto_head` takes: 0 for LDA, 1 for ridge regression, 2 for the nearest class mean.

    Args:
        covariance: see `auto_head`.
        moments: see `auto_head`.
    """
    scatter = fitting("covariance", covariance, moments)
    return _choice(scatter, moments, _heads(scatter, moments))


def foretold_errors(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Float[Array, "3"]:
    r"""Share of examples that each head is foretold to get wrong: LDA, ridge regression, nearest mean.

    For Gaussian classes of one covariance Σ, and as many examples of each class as there were in training. A
    head (w_c, b_c) then has class i beat class j by a Gaussian margin of mean
    (w_i − w_j)ᵀμ_i + b_i − b_j − o_i/N_i and variance (w_i − w_j)ᵀΣ(w_i − w_j); `mistake_chance` makes the
    error of them. o_i/N_i with o_i = tr(∂w_i/∂μ_i Σ) is what the margin owes to the class's own examples:
    tr(Σ̃⁻¹Σ) for LDA, tr(G⁻¹Σ)/‖G⁻¹μ_i‖ for ridge regression, tr(Σ)/‖μ_i‖ for the nearest mean (for the
    latter two leaving out what the norm of the column takes back, one direction of d).

    Σ is unknown. Σ̃ = A + bI says of it: A, what was observed, brought to the trace of Σ̃, as rules that keep
    the trace shrink it. The heads that were made with A see too little variance; `deterministic_equivalents`
    corrects it, with the degrees of freedom of FedCOF's estimate (`Weighting` ``"per_class"``). Where nothing
    was observed, Σ̃ stands for Σ. Errors are meant for a comparison: non-Gaussian features make them too low.

    Args:
        covariance: see `auto_head`.
        moments: see `auto_head`.

    Source: covfree.
    """
    scatter = fitting("covariance", covariance, moments)
    return _errors(scatter, moments, _heads(scatter, moments))


def _heads(covariance: Scatter, moments: Moments) -> tuple[LinearHead, LinearHead, LinearHead]:
    gram = total_gram(covariance.scaled(moments.within_degrees), moments, scatter="within")
    return lda_head(covariance, moments), ridge_head(gram, moments), ncm_head(moments)


def _choice(covariance: Scatter, moments: Moments, heads: tuple[LinearHead, ...]) -> Integer[Array, ""]:
    errors = _errors(covariance, moments, heads)
    # The first of equals, LDA, where all foretell the same.
    return (errors * jnp.array([_HANDICAP, 1, 1], errors.dtype)).argmin()


def _errors(covariance: Scatter, moments: Moments, heads: tuple[LinearHead, ...]) -> Float[Array, "3"]:
    # A choice has no derivative.
    covariance, moments, heads = jax.lax.stop_gradient((covariance, moments, heads))
    dim = covariance.dim
    weights = class_weights(moments, "per_class") / jnp.maximum(moments.within_degrees, 1)
    freedom = Freedom.of_classes(moments, weights)
    values = jnp.maximum(jnp.linalg.eigvalsh(covariance.core()), 0)
    seen = (values.sum() > 0) & (freedom.degrees.sum() > 0)
    trace = values.sum() + dim * covariance.shift
    raised = jnp.where(seen, trace / jnp.where(seen, values.sum(), 1), 1)
    # Σ̃ = A + bI = (A·raised + b·raised·I)/raised: HΣ̂ has these eigenvalues, whatever the scale.
    shifted = values + covariance.shift
    ratio = jnp.where(shifted > 0, values / jnp.where(shifted > 0, shifted, 1), 0)
    equivalent, kindness = deterministic_equivalents(ratio.sum(), freedom)
    inner = jnp.where(seen, equivalent * raised, dim)  # tr(Σ̃⁻¹Σ)
    unbiased = (freedom.degrees * freedom.weight).sum()  # E[Σ̂] = Σ times this
    kind = jnp.where(seen, jnp.stack([kindness, kindness, unbiased]), 1)
    total = trace / kind[2]

    count = jnp.maximum(moments.count.astype(values.dtype), 1)
    mean = jnp.where(moments.present[:, None], moments.mean, 0)
    ridge = heads[1].weight
    gram = total_gram(covariance.scaled(moments.within_degrees), moments, scatter="within")
    # G w = N_c μ_c/‖G⁻¹ N_c μ_c‖ gives that norm: N_c wᵀμ_c / wᵀGw.
    quadratic = (ridge * gram.times(ridge)).sum(0)
    norm = count * (ridge * mean.T).sum(0) / jnp.where(quadratic > 0, quadratic, 1)
    degrees = jnp.maximum(moments.within_degrees, 1)
    optimism = (
        jnp.broadcast_to(inner, count.shape),
        _over(count * inner / degrees, norm),
        _over(total, jnp.linalg.norm(mean, axis=1)),
    )

    chosen, share = sampled_classes(moments)
    rival = moments.present[None, :] & (jnp.arange(count.shape[0])[None, :] != chosen[:, None])
    unshrunk = Scatter(covariance.value, jnp.zeros_like(covariance.shift), covariance.factored)
    truth = jax.tree.map(lambda a, b: jnp.where(seen, a, b), unshrunk.scaled(raised), covariance)

    def error(head: LinearHead, owed: jax.Array, kind: jax.Array) -> Float[Array, ""]:
        bias = jnp.where(moments.present, head.bias, 0)
        scores = product(mean, head.weight) + bias[None, :]
        margin = jnp.diagonal(scores)[:, None] - scores - (owed / count)[:, None]
        spread = product(head.weight.T, truth.times(head.weight))
        own = jnp.diagonal(spread)
        variance = jnp.maximum(own[:, None] + own[None, :] - 2 * spread, 0) / kind
        return (share * mistake_chance(margin[chosen], variance[chosen], rival)).sum()

    return jnp.stack([error(*parts) for parts in zip(heads, optimism, kind, strict=True)])


def _over(numerator: Float[Array, " classes"] | Float[Array, ""], denominator: Float[Array, " classes"]):
    """Quotient; 0 where the denominator is not above 0."""
    known = denominator > 0
    return jnp.where(known, numerator / jnp.where(known, denominator, 1), 0)
