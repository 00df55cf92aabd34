"""Estimate means and covariances from noisy sums, corrected for the noise; derived in docs/privacy.md."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from covfree.core.lapack import eigh
from covfree.core.products import product
from covfree.core.types import AnyArray, Scalar


def debiased_reciprocal(count: Num[AnyArray, "..."], deviation: Scalar) -> Float[Array, "..."]:
    """Estimate 1/N, for a count N, from the noisy count Ñ: (1 − σ_n²/Ñ²)/Ñ, as E[1/Ñ] ≈ (1 + σ_n²/N²)/N.

    The bias is O(σ_n⁴/N⁵). A count below max(2σ_n, 1) says nothing about 1/N, and is raised to that value.

    Args:
        count: Ñ.
        deviation: σ_n, the standard deviation of the noise in Ñ.
    """
    count = jnp.asarray(count, jnp.result_type(float))
    deviation = jnp.asarray(deviation, count.dtype)
    count = jnp.maximum(count, jnp.maximum(2 * deviation, 1))
    return (1 - jnp.square(deviation / count)) / count


def debiased_within(
    second: Float[AnyArray, "dim dim"],
    sums: Float[AnyArray, "classes dim"],
    counts: Num[AnyArray, " classes"],
    sum_deviation: Scalar,
    count_deviation: Scalar,
) -> Float[Array, "dim dim"]:
    """Estimate the within-class scatter from noisy sums, as G̃ − Σ_c r_c (S̃_c S̃_cᵀ − σ²I).

    Here r_c estimates 1/N_c, by `debiased_reciprocal`. If S_c is a class's sum without noise,
    E[S̃_c S̃_cᵀ] = S_c S_cᵀ + σ²I. The noise of G̃ has mean 0. So the estimate is unbiased, except for the
    bias of r_c. It may not be positive semi-definite; see `positive_part`.

    Args:
        second: G̃, the second moment Σ x xᵀ of all examples, with noise.
        sums: S̃_c, the sum of each class's features, with noise.
        counts: Ñ_c, each class's number of examples N_c, with noise.
        sum_deviation: σ, the standard deviation of the noise in each number of the sums.
        count_deviation: σ_n, the standard deviation of the noise in each count.
    """
    second, sums = _floats(second), _floats(sums)
    share = debiased_reciprocal(counts, count_deviation).astype(sums.dtype)
    between = product((sums * share[:, None]).T, sums)
    lifted = jnp.square(jnp.asarray(sum_deviation, sums.dtype)) * share.sum()
    return second - between + lifted * jnp.eye(sums.shape[1], dtype=sums.dtype)


def _floats(values: AnyArray) -> jax.Array:
    values = jnp.asarray(values)
    return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.result_type(float))


def shrunk_means(
    sums: Float[AnyArray, "classes dim"],
    counts: Num[AnyArray, " classes"],
    sum_deviation: Scalar,
    count_deviation: Scalar,
) -> Float[Array, "classes dim"]:
    """Estimate class means from noisy sums; noisier means are moved nearer to the mean of all examples.

    Counts and class means are treated as random draws about their averages. Let N̄ be the average of the
    noisy counts Ñ_c, and t their variance minus σ_n², at least 0. A count becomes
    N_c = N̄ + t/(t + σ_n²)·(Ñ_c − N̄), but at least max(σ_n, 1). A mean becomes
    g + τ²/(τ² + v_c)·(S̃_c/N_c − g), where g is the mean of all examples and v_c = σ²/N_c² the variance of
    the noise in each coordinate. The variance τ² of the true class means [C, d] is a weighted average of
    ‖S̃_c/N_c − g‖²/d − v_c, or the error of this average, min_c v_c·√(2/(C·d)), if the error is larger.
    Without shrinkage, the noise in class means, larger for small classes, would bias predictions.

    Args:
        sums: S̃_c, the sum of each class's features, with noise.
        counts: Ñ_c, each class's number of examples, with noise.
        sum_deviation: σ above 0, the standard deviation of the noise in each number of the sums.
        count_deviation: σ_n, the standard deviation of the noise in each count.

    Source: empirical Bayes, after Efron and Morris (1973), Stein's estimation rule and its competitors.
    """
    sums = _floats(sums)
    counts = jnp.asarray(counts, sums.dtype)
    number, dim = sums.shape
    mean = sums.sum(0) / jnp.maximum(counts.sum(), 1)
    own = jnp.maximum(counts.var() - jnp.square(jnp.asarray(count_deviation, counts.dtype)), 0)
    share = own / jnp.maximum(counts.var(), jnp.finfo(counts.dtype).tiny)
    counts = counts.mean() + share * (counts - counts.mean())
    counts = jnp.maximum(counts, jnp.maximum(jnp.asarray(count_deviation, counts.dtype), 1))
    moved = sums / counts[:, None] - mean[None, :]
    noise = jnp.square(jnp.asarray(sum_deviation, counts.dtype) / counts)
    found = jnp.square(moved).sum(1) / dim - noise
    spread = jnp.zeros((), counts.dtype)
    for _ in range(2):  # twice: the weights depend on ``spread``
        weight = 1 / jnp.square(1 + spread / noise) / jnp.square(noise / noise.min())
        spread = (weight * found).sum() / weight.sum()
        spread = jnp.maximum(spread, noise.min() * jnp.sqrt(2 / jnp.asarray(number * dim, counts.dtype)))
    return mean[None, :] + (spread / (spread + noise))[:, None] * moved


def positive_part(matrix: Float[AnyArray, "dim dim"]) -> Float[Array, "dim dim"]:
    """Return the nearest positive semi-definite matrix in Frobenius norm; negative eigenvalues become 0."""
    matrix = jnp.asarray(matrix)
    values, vectors = eigh((matrix + matrix.T) / 2)
    return product(vectors * jnp.maximum(values, 0)[None, :], vectors.T)


def noise_edge(deviation: Scalar, dim: int) -> Float[Array, ""]:
    """Return σ√(2d), the largest eigenvalue of a symmetric d × d matrix of Gaussian noise, for large d.

    Such noise is added to second moments.

    Args:
        deviation: σ, the noise's standard deviation on the diagonal; off the diagonal it is σ/√2.
        dim: d.
    """
    return jnp.asarray(deviation, jnp.result_type(float)) * jnp.sqrt(jnp.asarray(2.0 * dim))
