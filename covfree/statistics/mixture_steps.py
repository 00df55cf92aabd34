"""The steps of EM for a Gaussian mixture, on features that are centred and scaled to unit variance."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.lapack import cholesky, triangular_solve
from covfree.core.products import product, symmetric_product
from covfree.core.types import PRNGKey

# The form of a component's covariance: full, diagonal, or one variance.
Structure: TypeAlias = Literal["diagonal", "spherical", "full"]

# This share of the mean variance of all examples is added to the variances of every component. Without it the
# density of a component that has shrunk to a few examples would leave the range of float32.
_FLOOR = 1e-4


class Mixture(NamedTuple):
    """A mixture of Gaussians: with probability ``weight[m]``, normal about ``mean[m]``.

    If ``vmap`` fitted several groups, the axes of the groups come first.

    Attributes:
        weight: weights of the components; they add up to 1, or are all 0 if there was no example. A component
            that is not used has weight 0, mean 0 and covariance 0.
        mean: means of the components.
        covariance: covariances of the components: in full, their diagonals, or one variance each.
    """

    weight: Float[Array, "*batch components"]
    mean: Float[Array, "*batch components dim"]
    covariance: (
        Float[Array, "*batch components dim dim"]
        | Float[Array, "*batch components dim"]
        | Float[Array, "*batch components"]
    )


def nearest_seeds(
    values: Float[Array, "examples dim"], kept: Bool[Array, " examples"], num_components: int, key: PRNGKey
) -> Integer[Array, " examples"]:
    """Draw seeds among the examples by greedy k-means++; return the nearest seed's number for each example.

    For each seed, a few examples are drawn with probability proportional to the squared distance from the
    nearest earlier seed. The drawn example that leaves the least sum of squared distances becomes the seed.
    """
    # scikit-learn draws the same number of candidates.
    num_draws = 2 + int(math.log(num_components))
    most = kept.sum(dtype=jnp.int32) // 2

    def draw(step: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        nearest, distance = state
        # The first seed is drawn uniformly.
        chance = jnp.where(step == 0, kept.astype(values.dtype), distance)
        level = jnp.cumsum(chance)
        # Use one random number for each draw, not for each example, so that padding does not change draws.
        uniform = jax.random.uniform(jax.random.fold_in(key, step), (num_draws,), values.dtype)
        target = level[-1] * uniform
        drawn = jnp.argmax((chance > 0)[None, :] & (level[None, :] > target[:, None]), axis=1)

        def left(seed: jax.Array) -> jax.Array:
            to_seed = jnp.where(kept, jnp.square(values - seed[None, :]).sum(1), 0)
            return jnp.where(step == 0, to_seed, jnp.minimum(to_seed, distance))

        choices = jax.lax.map(left, values[drawn])
        after = choices[choices.sum(1).argmin()]
        # Stop when all distinct examples are seeds, or there is a seed for every two examples.
        taken = (step == 0) | ((chance.max() > 0) & (step < most))
        closer = taken & ((after < distance) | (step == 0))
        return jnp.where(closer, step, nearest), jnp.where(closer, after, distance)

    start = (jnp.zeros(kept.shape, jnp.int32), jnp.zeros(kept.shape, values.dtype))
    return jax.lax.fori_loop(np.int32(0), np.int32(num_components), draw, start)[0]


def maximise(
    values: Float[Array, "examples dim"],
    share: Float[Array, "examples components"],
    count: Float[Array, ""],
    covariance: Structure,
) -> Mixture:
    """Fit each Gaussian of the mixture to its share of the examples: the M step of EM.

    ``values`` are the features, ``share`` is the weight of each example in each component, 0 for padding,
    ``count`` is the number of examples, and ``covariance`` names the form of the components' covariances.
    """
    size = share.sum(0)
    used = size > 0
    divisor = jnp.where(used, size, 1)
    mean = product(share.T, values) / divisor[:, None]
    if covariance == "full":
        eye = jnp.eye(values.shape[1], dtype=values.dtype)
        eps = jnp.finfo(values.dtype).eps

        def one(operand: tuple[jax.Array, ...]) -> jax.Array:
            share, mean, divisor = operand
            weighted = jnp.sqrt(share / divisor)[:, None] * (values - mean[None, :])
            matrix = symmetric_product(weighted)
            return matrix + (_FLOOR + eps * jnp.trace(matrix)) * eye

        spread = jax.lax.map(one, (share.T, mean, divisor))
    else:
        # Compute the mean square minus the squared mean. Its rounding error is below _FLOOR, as the group's
        # examples are centred and scaled.
        square = product(share.T, jnp.square(values)) / divisor[:, None] - jnp.square(mean)
        spread = jnp.maximum(square, 0) + _FLOOR
        if covariance == "spherical":
            spread = spread.mean(1)
    spread = jnp.where(used.reshape(-1, *[1] * (spread.ndim - 1)), spread, 0)
    return Mixture(size / count, mean, spread)


def log_densities(
    values: Float[Array, "examples dim"], mixture: Mixture, covariance: Structure
) -> Float[Array, "examples components"]:
    """Compute log (w_m p_m(x)) for each example x and component m, up to a constant that all share.

    w_m is the component's weight and p_m its Gaussian density; −∞ if w_m is 0.
    """
    used = mixture.weight > 0
    dim = values.shape[1]
    if covariance == "full":

        def one(operand: tuple[jax.Array, ...]) -> jax.Array:
            used, mean, matrix = operand
            root = cholesky(jnp.where(used, matrix, jnp.eye(dim, dtype=matrix.dtype)))
            rest = triangular_solve(root, (values - mean[None, :]).T)
            return -0.5 * jnp.square(rest).sum(0) - jnp.log(jnp.diagonal(root)).sum()

        density = jax.lax.map(one, (used, mixture.mean, mixture.covariance)).T
    else:
        spread = mixture.covariance if covariance == "diagonal" else mixture.covariance[:, None]
        variance = jnp.where(used[:, None], jnp.broadcast_to(spread, mixture.mean.shape), 1)
        scaled = mixture.mean / variance
        distance = product(jnp.square(values), (1 / variance).T) - 2 * product(values, scaled.T)
        constant = (mixture.mean * scaled + jnp.log(variance)).sum(1)
        density = -0.5 * (distance + constant[None, :])
    log_weight = jnp.where(used, jnp.log(jnp.where(used, mixture.weight, 1)), -jnp.inf)
    return density + log_weight[None, :]
