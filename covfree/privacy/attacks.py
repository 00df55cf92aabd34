"""Attacks that test whether an example is in a sum, and formulas of their success for Gaussian data."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.products import divide_or_zero
from covfree.core.types import AnyArray, Scalar


def membership_signal(
    eigenvalues: Float[AnyArray, " dim"], count: Scalar, deviation: Scalar = 0.0
) -> Float[Array, ""]:
    """Return d′: by how many standard deviations an example's presence moves the log-likelihood ratio.

    The attacker sees the sum of n Gaussian vectors [d] whose covariance has eigenvalues λ_j, plus noise of
    standard deviation σ in each coordinate. Then d′² = Σ_j λ_j/(n λ_j + σ²); without noise d′ = √(d/n). With
    Φ the standard normal distribution function, the attack has AUC Φ(d′/√2). For any z, it finds a share
    Φ(d′ − z) of the members at false-positive rate 1 − Φ(z).

    Args:
        eigenvalues: λ_j, at least 0.
        count: n.
        deviation: σ, the standard deviation of the noise in each coordinate of the sum.
    """
    eigenvalues = jnp.asarray(eigenvalues, jnp.result_type(float))
    count = jnp.asarray(count, eigenvalues.dtype)
    whole = count * eigenvalues + jnp.square(jnp.asarray(deviation, eigenvalues.dtype))
    return jnp.sqrt(divide_or_zero(eigenvalues, whole).sum())


def membership_scores(
    candidates: Float[AnyArray, "candidates dim"],
    total: Float[AnyArray, " dim"],
    count: Scalar,
    centre: Float[AnyArray, " dim"],
    covariance: Float[AnyArray, "dim dim"],
    deviation: Scalar = 0.0,
) -> Float[Array, " candidates"]:
    """Return for each candidate the log-likelihood ratio of being among the examples of a class sum.

    If a candidate x is in the sum S, the expectation of S moves by x − μ, and the covariance of S,
    A = nΣ + σ²I, hardly changes. So the log ratio is (x − μ)ᵀA⁻¹(S − nμ) − ½ (x − μ)ᵀA⁻¹(x − μ).

    Args:
        candidates: examples x that the attacker has.
        total: S, the observed sum.
        count: n, the number of examples in the sum.
        centre: μ, the class's mean in the population.
        covariance: Σ, the class's covariance in the population.
        deviation: σ of the noise in each coordinate of the sum.
    """
    centred = jnp.asarray(candidates) - jnp.asarray(centre)[None, :]
    dtype = centred.dtype
    count = jnp.asarray(count, dtype)
    spread = Scatter.from_matrix(jnp.asarray(covariance, dtype) * count)
    system = factorise(spread.shifted(jnp.square(jnp.asarray(deviation, dtype))))
    seen = jnp.asarray(total, dtype) - count * jnp.asarray(centre, dtype)
    both = solve(system, jnp.concatenate([seen[None, :], centred]).T)
    return (centred * both[:, 0][None, :]).sum(1) - (centred * both[:, 1:].T).sum(1) / 2


def auc(members: Float[AnyArray, " members"], others: Float[AnyArray, " others"]) -> Float[Array, ""]:
    """Return the probability that a member scores above a non-member, ties counting half: the AUC.

    >>> import jax.numpy as jnp
    >>> float(auc(jnp.array([2.0, 3.0]), jnp.array([1.0, 2.0])))
    0.875
    """
    ordered = jnp.sort(jnp.asarray(others))
    members = jnp.asarray(members)
    below = jnp.searchsorted(ordered, members, side="left") + jnp.searchsorted(ordered, members, side="right")
    return below.astype(jnp.result_type(float)).mean() / (2 * len(ordered))


def found_at(
    members: Float[AnyArray, " members"], others: Float[AnyArray, " others"], rate: float = 0.01
) -> Float[Array, ""]:
    """Return the share of members that an attack finds at a false-positive rate of at most ``rate``.

    An example counts as found if its score is above a threshold: the lowest one that ``rate`` allows.

    Args:
        members: the attack's scores of members.
        others: the attack's scores of non-members.
        rate: the largest share of non-members whose scores may be above the threshold.
    """
    ordered = jnp.sort(jnp.asarray(others))
    allowed = int(rate * len(ordered))
    return (jnp.asarray(members) > ordered[len(ordered) - 1 - allowed]).mean(dtype=jnp.result_type(float))
