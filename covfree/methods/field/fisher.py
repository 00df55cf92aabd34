"""GH-OFL's trained heads: the server draws features in the Fisher subspace, and trains on them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_above_zero, check_positive, check_seed, check_share, check_strength
from covfree.core.linalg import Scatter
from covfree.core.products import product
from covfree.core.types import LinearHead, Moments, Rows, Scalar
from covfree.estimators import Shrinkage, relative
from covfree.estimators.automatic import as_matrix_shrinkage
from covfree.estimators.moments import centred_means
from covfree.heads.fisher import fisher_directions, residual_head, unprojected
from covfree.heads.softmax import softmax_head
from covfree.heads.virtual import sample_rows
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.field.gaussian import CLASS_SCATTERS, pooled_covariance, scatters_merge
from covfree.methods.method import Method
from covfree.methods.rounds import Bound, bound
from covfree.methods.summary import class_covariance_matrices

# The paper shrinks Σ to (1 − a)Σ + a·t·I, with a = 0.05 and t = tr(Σ)/d. This is 0.95·(Σ + γI) with the γ/t
# below; the factor 0.95 changes no direction.
_PAPER = 0.05 / 0.95
# Distances between classes are capped at this many standard deviations within classes.
_APART = 30.0


class _Numbers(NamedTuple):
    """The numbers among the arguments of `fishermix` and `proto_hyper`, which ``vmap`` may sweep.

    `fishermix` has no ``distilled`` and no ``temperature``.
    """

    shrinkage: Shrinkage
    spread: Scalar
    seed: Scalar
    l2: Scalar
    distilled: Scalar | None = None
    temperature: Scalar | None = None


def _system(numbers: _Numbers, moments: Moments, scatters: jax.Array) -> Scatter:
    covariance = pooled_covariance(numbers.shrinkage, moments, scatters)
    # If the scatter within classes is 0, use I: no direction is known to vary more than another.
    return covariance.shifted(jnp.where(jnp.trace(scatters.sum(0)) > 0, 0, 1).astype(scatters.dtype))


def _drawn(
    numbers: _Numbers,
    directions: jax.Array,
    system: Scatter,
    moments: Moments,
    scatters: jax.Array,
    num_samples: int,
) -> tuple[jax.Array, jax.Array]:
    """Draw equally many features of each class in the Fisher subspace (`fishermix`), with their labels.

    A class of one example gets the common covariance. Samples are drawn in all d dimensions and then
    projected: after a projection, the matrix root of a covariance would depend on rounding.
    """
    count = moments.count.astype(scatters.dtype)
    own = scatters / jnp.maximum(count - 1, 1)[:, None, None]
    covariance = jnp.where((count > 1)[:, None, None], own, system.dense()[None])
    rows = Rows(
        centred_means(moments),
        moments.present.astype(jnp.int32),
        jnp.arange(len(count), dtype=jnp.int32),
        covariance=jnp.square(jnp.asarray(numbers.spread, scatters.dtype)) * covariance,
    )
    features, labels = sample_rows(rows, num_samples, key=jax.random.key(numbers.seed))
    return product(features, directions), labels


def _drawn_head(
    numbers: _Numbers,
    system: Scatter,
    moments: Moments,
    scatters: jax.Array,
    *,
    num_samples: int,
    rank: int | None = None,
) -> LinearHead:
    """Train a linear head on features that the server draws, see `_drawn`.

    Without ``rank`` it is a softmax head. With ``rank`` its scores are LDA's plus a trained linear map of at
    most this rank, see `residual_head`.
    """
    classes = moments.count.shape[0]
    if rank is None and num_samples < classes:
        raise ValueError(f"num_samples: expected at least {classes}, one of each class, got {num_samples}")
    # A class far from all others would dominate penalty and training, so distances are capped for the softmax
    # head. LDA's scores need the true distances.
    directions = fisher_directions(system, moments, apart=_APART if rank is None else float("inf"))
    features, labels = _drawn(numbers, directions, system, moments, scatters, num_samples)
    if rank is None or numbers.distilled is None or numbers.temperature is None:
        head = softmax_head(features, labels, classes, l2=numbers.l2)
    else:
        head = residual_head(
            product(centred_means(moments), directions),
            features,
            labels,
            moments,
            distilled=numbers.distilled,
            temperature=numbers.temperature,
            l2=numbers.l2,
            rank=rank,
        )
    return unprojected(head, directions, moments)


def _method(name: str, numbers: _Numbers, head: Bound) -> Method[LinearHead]:
    rounds = CLASS_SUMS, CLASS_SCATTERS
    return Method(numbers, name, class_covariance_matrices(scatters_merge), rounds, _system, head)


def fishermix(
    num_samples: int = 10_000,
    *,
    shrinkage: Scalar | str | Shrinkage | None = None,
    spread: Scalar = 0.75,
    l2: Scalar = 1e-3,
    seed: Scalar = 0,
) -> Method[LinearHead]:
    """Make FisherMix: a softmax head, trained on draws from the classes' Gaussians in the Fisher subspace.

    Clients send class means μ_c and covariances Σ_c. The columns of V span the Fisher subspace, which
    contains S_W⁻¹(μ_c − μ_g) for every class c, with the common covariance S_W and the grand mean μ_g. The
    server draws equally many features of each class from N(Vᵀμ_c, τ²VᵀΣ_cV), and trains on them. With τ = 1
    and equal covariances, this is linear discriminant analysis with equal priors, up to the randomness of the
    draws. With τ < 1 the classes overlap less, so the head depends less on draws near their borders. Bytes
    up: 4·M·(d² + d) for M client-class pairs and d features.

    Args:
        num_samples: number of draws for all classes together; use at least ten for each class.
        shrinkage: shrinkage of the common covariance S_W, see `qda`; by default the paper's (1 − a)Σ +
            a·tr(Σ)/d·I with a = 0.05, up to a factor that changes no direction.
        spread: τ, above 0.
        l2: weight of the penalty, see `softmax_head`.
        seed: the seed of the draws.

    Raises:
        ValueError: if a number is out of range, or the shrinkage rule needs the rows themselves, as
            `ledoit_wolf` does; in ``fit``, if there are more classes than draws.

    Source: Turazza, Picone and Mamei (2026), GH-OFL, section on FisherMix. The paper trains by AdamW and
    keeps leading directions with a share of the eigenvalues' sum; here L-BFGS trains on all C − 1. The
    paper's settings differ in whether they draw with Σ_c or the common covariance; here it is Σ_c.
    """
    check_positive("num_samples", num_samples)
    numbers = _Numbers(
        _rule(shrinkage),
        check_above_zero("spread", spread),
        check_seed("seed", seed),
        check_strength("l2", l2),
    )
    return _method("fishermix", numbers, bound(_drawn_head, num_samples=num_samples))


def proto_hyper(
    num_samples: int = 10_000,
    rank: int = 128,
    *,
    shrinkage: Scalar | str | Shrinkage | None = None,
    spread: Scalar = 0.75,
    distilled: Scalar = 0.85,
    temperature: Scalar = 4.0,
    l2: Scalar = 1e-3,
    seed: Scalar = 0,
) -> Method[LinearHead]:
    """Make Proto-Hyper: linear discriminant analysis plus a low-rank residual that is trained on draws.

    As in `fishermix`, clients send class means and covariances, and the server draws features z of each class
    in the Fisher subspace. For features x, z = Vᵀ(x − μ_g), with V a basis of the subspace and μ_g the mean
    of all examples. With LDA's scores t(z), the head's scores are s = t(z) + zᵀU R + b. U, R and b are
    trained by the loss α T² KL(softmax(t/T) ‖ softmax(s/T)) + (1 − α) CE, where CE is the cross-entropy of s
    on the draws' labels. With α = 1 the head is LDA.

    In the paper the teacher t is 0.7 LDA + 0.3 NB, and the student s starts from NB: naive Bayes with one
    variance, the mean of VᵀS_WV's diagonal, where S_W is the classes' common covariance. With a basis V in
    which VᵀS_WV = I, NB, LDA and all mixtures have the same scores t. Bytes up: 4·M·(d² + d) for M
    client-class pairs and d features.

    Args:
        num_samples: number of draws for all classes together.
        rank: r, the largest rank of the residual U R; C − 1 or more is no restriction.
        shrinkage: see `fishermix`.
        spread: τ, above 0.
        distilled: α, in [0, 1].
        temperature: T, above 0.
        l2: weight of the penalty on U and R.
        seed: the seed of the draws.

    Raises:
        ValueError: if a number is out of range, or the shrinkage rule needs the rows themselves, as
            `ledoit_wolf` does.

    Source: Turazza, Picone and Mamei (2026), GH-OFL, section on Proto-Hyper; defaults from its published
    code.
    """
    check_positive("num_samples", num_samples)
    check_positive("rank", rank)
    numbers = _Numbers(
        _rule(shrinkage),
        check_above_zero("spread", spread),
        check_seed("seed", seed),
        check_strength("l2", l2),
        check_share("distilled", distilled),
        check_above_zero("temperature", temperature),
    )
    return _method("proto-hyper", numbers, bound(_drawn_head, num_samples=num_samples, rank=rank))


def _rule(shrinkage: Scalar | str | Shrinkage | None) -> Shrinkage:
    return relative(_PAPER) if shrinkage is None else as_matrix_shrinkage(shrinkage)
