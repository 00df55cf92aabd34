"""The Fisher subspace, and a head in it: LDA plus a low-rank residual that is trained on virtual features."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.compiling import jit
from covfree.core.lapack import eigh
from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.products import product
from covfree.core.types import LinearHead, Moments, Scalar
from covfree.estimators.moments import centred_means
from covfree.heads.columns import head_for_present, log_priors
from covfree.heads.lbfgs import minimise

# The class means span at most C − 1 dimensions, so some eigenvalues are 0 up to rounding: those below
# _ROUNDINGS·eps times the largest. The bound C·eps would be too high: with 1,000 classes it would drop
# directions in which the class means differ 90 times less than in the strongest.
_ROUNDINGS = 16
# The largest number of L-BFGS steps.
_STEPS = 100


def fisher_directions(
    covariance: Scatter, moments: Moments, *, apart: float = float("inf")
) -> Float[Array, "dim classes"]:
    """Compute directions V in which the classes differ most, relative to their common covariance.

    Let S_W be the covariance within classes, and S_B = M Mᵀ the covariance between them. M has a column
    √(N_c/N) (μ_c − μ_g) for each class c, with N_c of the N examples, the class mean μ_c, and the mean μ_g of
    all examples. The result is V = S_W⁻¹M (MᵀS_W⁻¹M)^{−½}. Its columns span the Fisher subspace, as do the
    eigenvectors of S_W⁻¹S_B with positive eigenvalues; Vᵀ S_W V is a projector of rank C − 1 or less.
    Computing V takes a solve and the root of a C × C matrix, but no root of a d × d matrix. Unlike
    eigenvectors, V is unique, so samples drawn in its span do not depend on arbitrary signs.

    The strength of a direction is the standard deviation between classes over the standard deviation within
    classes. MᵀS_W⁻¹M squares the strength, so in float32 a direction 700 times weaker than the strongest
    would be lost. Therefore the strong directions are removed from M, and M is decomposed again. Then only
    directions over 500,000/√C times weaker are lost.

    Args:
        covariance: S_W, usually shrunk.
        moments: `first_moments` of all rows.
        apart: the cap a on strengths: a direction of strength s > a is scaled by a/s. Otherwise a class far
            from all others would dominate the training of a softmax head on projections.

    Returns:
        V, with a column for each class (not a column for each eigenvector).
    """
    count = moments.count.astype(moments.total.dtype)
    share = count / jnp.maximum(count.sum(), 1)
    means = (jnp.sqrt(share)[:, None] * centred_means(moments)).T
    solved = solve(factorise(covariance), means)
    rounding = _ROUNDINGS * jnp.finfo(means.dtype).eps
    found, floor = jnp.zeros_like(means), jnp.zeros((), means.dtype)
    # Σ_c N_c (μ_c − μ_g) is 0, so the product of ``means`` and this vector is only rounding: each pass
    # removes it.
    nothing = jnp.sqrt(share)[:, None]
    for _ in range(2):
        means, solved = (x - product(product(x, nothing), nothing.T) for x in (means, solved))
        inner = product(means.T, solved)
        values, vectors = eigh((inner + inner.T) / 2)
        kept = values > jnp.maximum(rounding * values.max(), floor)
        root = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)
        # ``values`` are the directions' squared strengths: the eigenvalues of S_B in coordinates in which S_W
        # is the identity. A direction that is stronger than ``apart`` is shortened.
        root = root / jnp.maximum(jnp.sqrt(jnp.where(kept, values, 0)) / apart, 1)
        found = found + product(solved, product(vectors * root[None, :], vectors.T))
        # In the next pass, eigenvalues up to ``floor`` are rounding. Removing the strong directions leaves in
        # each of C columns an error of ``rounding`` times the largest length, √C times that in all;
        # eigenvalues are squared lengths.
        floor = jnp.maximum(floor, len(values) * jnp.square(rounding) * values.max())
        strong = jnp.where(kept[None, :], vectors, 0)
        means, solved = (x - product(product(x, strong), strong.T) for x in (means, solved))
    return found


class Residual(NamedTuple):
    """The residual z U R + b, which is added to LDA's scores of projected features z.

    Attributes:
        down: U.
        up: R.
        bias: b.
    """

    down: Float[Array, "directions rank"]
    up: Float[Array, "rank classes"]
    bias: Float[Array, " classes"]


@partial(jit, static_argnames="rank")
def residual_head(
    means: Float[Array, "classes directions"],
    features: Float[Array, "samples directions"],
    labels: Integer[Array, " samples"],
    moments: Moments,
    *,
    distilled: Scalar,
    temperature: Scalar,
    l2: Scalar,
    rank: int,
) -> LinearHead:
    """Train a linear head whose scores s are LDA's scores t plus a correction of rank r: s = t + z U R + b.

    LDA's score of class c for features z is t_c = zᵀm_c − ½‖m_c‖² + log π_c. U, R and b minimise the mean,
    over features z with labels y, of α T² KL(softmax(t/T) ‖ softmax(s/T)) + (1 − α) CE(s, y), plus
    (l2/2)(‖U‖² + ‖R‖²). U starts as the r leading right singular vectors of ``means``, R and b as 0.

    Args:
        means: m_c, the class means of features whose common covariance is the identity.
        features: z, a sample in each row.
        labels: classes of the features; −1 is padding.
        moments: `first_moments` of all rows, whose counts give the priors π_c.
        distilled: α, the weight of the divergence from LDA, in [0, 1].
        temperature: T, of the softmax in the divergence.
        l2: weight of the penalty.
        rank: r.

    Returns:
        The head, whose scores are s. Absent classes are marked.
    """
    dtype, present = features.dtype, moments.present
    kept, chosen = labels >= 0, jnp.maximum(labels, 0)
    weight = kept.astype(dtype)
    weight = weight / jnp.maximum(weight.sum(), 1)
    offset = log_priors(moments) - 0.5 * jnp.square(means).sum(1)
    teacher = product(features, means.T) + offset[None, :]
    shown = present | ~present.any()  # if no class is present, include all: avoids NaN

    taught = _log_softmax(teacher / temperature, shown)
    numbers = features, teacher, taught, chosen, jnp.where(kept, weight, 0), shown, distilled, temperature, l2

    rank = min(rank, means.shape[1])
    leading = eigh(product(means.T, means))[1][:, ::-1][:, :rank]
    start = Residual(leading, jnp.zeros((rank, means.shape[0]), dtype), jnp.zeros(means.shape[0], dtype))
    residual = minimise(_loss, start, _STEPS, *numbers)
    slopes = means.T + product(residual.down, residual.up)
    return head_for_present(slopes, offset + residual.bias, present)


def _log_softmax(scores: jax.Array, shown: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(jnp.where(shown[None, :], scores, -jnp.inf), axis=1)


def _loss(
    residual: Residual,
    features: jax.Array,
    teacher: jax.Array,
    taught: jax.Array,
    chosen: jax.Array,
    weight: jax.Array,
    shown: jax.Array,
    distilled: Scalar,
    temperature: Scalar,
    l2: Scalar,
) -> jax.Array:
    scores = teacher + product(product(features, residual.down), residual.up) + residual.bias[None, :]
    gap = jnp.where(shown[None, :], taught - _log_softmax(scores / temperature, shown), 0)
    divergence = temperature**2 * (jnp.exp(taught) * gap).sum(1)
    entropy = -jnp.take_along_axis(_log_softmax(scores, shown), chosen[:, None], axis=1)[:, 0]
    each = distilled * divergence + (1 - distilled) * entropy
    penalty = jnp.square(residual.down).sum() + jnp.square(residual.up).sum()
    return jnp.where(weight > 0, weight * each, 0).sum() + 0.5 * l2 * penalty


def unprojected(head: LinearHead, directions: Float[Array, "dim classes"], moments: Moments) -> LinearHead:
    """Convert a head of projections z = Vᵀ(x − μ_g) to a head of the features x, with V = ``directions``."""
    weight = product(directions, head.weight)
    bias = head.bias - product(moments.grand_mean[None, :], weight)[0]
    return head_for_present(weight, bias, moments.present)
