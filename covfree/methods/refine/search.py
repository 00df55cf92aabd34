"""Solve A W = M where A is known by its products alone, in a few rounds of many directions each.

Block conjugate gradients, and a block BFGS step from an approximate inverse: see ``docs/refinement.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.core.lapack import eigh, orthonormal
from covfree.core.linalg import Factorisation, factorise, solve
from covfree.core.products import product


class Search(NamedTuple):
    """How far the solution of A W = M has come.

    Attributes:
        inverse: P ≈ A⁻¹.
        right: M.
        span: V, orthonormal directions whose products with A are known.
        images: A V.
        directions: Q, orthonormal and orthogonal to V: of these the products are asked for next.
        step: Z, what the directions were made of, by ``Z = Π P residual``.
        residual: of the columns that the step was made for.
        weight: W as it stands.
        error: of W before its last step, the predicted error: ‖W − A⁻¹M‖ over ‖A⁻¹M‖ in the norm of A.
    """

    inverse: Factorisation
    right: Float[Array, "dim columns"]
    span: Float[Array, "dim known"]
    images: Float[Array, "dim known"]
    directions: Float[Array, "dim asked"]
    step: Float[Array, "dim asked"]
    residual: Float[Array, "dim asked"]
    weight: Float[Array, "dim columns"]
    error: Float[Array, ""]


def begin(inverse: Factorisation, right: Float[Array, "dim columns"], most: int) -> Search:
    """Start from W = P M.

    Args:
        inverse: of the approximation to A.
        right: M.
        most: directions of a round, at most.
    """
    nothing = right[:, :0]
    # NaN where Cholesky broke down, which a run would take for a state that is not finite.
    inverse = inverse._replace(smallest_pivot=jnp.zeros_like(inverse.smallest_pivot))
    weight = solve(inverse, right)
    asked = _next(nothing, weight, right, most)
    return Search(inverse, right, nothing, nothing, *asked, weight, jnp.ones((), right.dtype))


def advance(search: Search, images: Float[Array, "dim asked"], most: int) -> Search:
    """Take the products with A that were asked for.

    1. The best W in the span of all directions so far: W = V G⁻¹ VᵀM with G = VᵀAV. What it leaves, the
       residual R = M − A W, is known.
    2. A step H = Π P R beyond the span, Π = I − V G⁻¹ (AV)ᵀ, as long as was best for the step before:
       α = tr(ZᵀR′) / tr(ZᵀAZ).
    3. The leading directions of H are asked for next.

    Args:
        search: so far.
        images: A times ``search.directions``.
        most: directions of a round, at most.
    """
    inverse, right = search.inverse, search.right
    span = jnp.concatenate([search.span, search.directions], axis=1)
    images = jnp.concatenate([search.images, images], axis=1)
    gram = product(span.T, images)
    gram = factorise((gram + gram.T) / 2)
    best = solve(gram, product(span.T, right))
    weight, residual = product(span, best), right - product(images, best)
    ahead = solve(inverse, residual)
    ahead = ahead - product(span, solve(gram, product(images.T, ahead)))
    length = _length(search, span, images)
    energy = jnp.sum(weight * right)
    left = jnp.maximum(length * jnp.sum(ahead * residual), 0)
    error = jnp.sqrt(left / jnp.maximum(energy + left, jnp.finfo(right.dtype).tiny))
    # What is left may be rounding.
    eps = jnp.finfo(right.dtype).eps
    settled = jnp.sum(jnp.square(residual)) <= 1e4 * eps**2 * jnp.sum(jnp.square(right))
    weight = weight + jnp.where(error > jnp.sqrt(eps), length, 0) * ahead
    # Without a length nothing is known of what is left.
    error = jnp.where(settled, 0, jnp.where(length > 0, error, 1))
    asked = _next(span, ahead, residual, most)
    return Search(inverse, right, span, images, *asked, weight, error)


def _length(search: Search, span: jax.Array, images: jax.Array) -> jax.Array:
    """The step length that would have been best for the last step."""
    step, residual = search.step, search.residual
    along, curvature = jnp.sum(step * residual), jnp.sum(step * product(images, product(span.T, step)))
    known = (along > 0) & (curvature > 0)
    return jnp.where(known, along / jnp.where(known, curvature, 1), 0)


def _next(
    span: jax.Array, step: jax.Array, residual: jax.Array, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Directions of a round: the leading ones of a step, orthonormal, and orthogonal to the span."""
    most = min(most, step.shape[1], step.shape[0] - span.shape[1])
    turn = jax.lax.stop_gradient(eigh(product(step.T, step))[1])[:, ::-1][:, :most]
    step, residual = product(step, turn), product(residual, turn)
    return _outside(span, step, residual), step, residual


def _outside(span: jax.Array, step: jax.Array, residual: jax.Array) -> jax.Array:
    """Orthonormal directions of a step, orthogonal to the span; where it has none left, of the residual's.

    Where that has none either any others serve: once the span is everything, the solution is exact.
    """

    def beyond(columns: jax.Array) -> jax.Array:
        return columns - product(span, product(span.T, columns))

    def unit(columns: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = jnp.sqrt(jnp.square(columns).sum(0, keepdims=True))
        return columns / jnp.where(size > 0, size, 1), size

    any_others = np.random.default_rng(0).normal(size=step.shape)
    directions = jnp.asarray(any_others, step.dtype)
    # Of a unit column so much is rounding.
    rounding = jnp.sqrt(jnp.finfo(step.dtype).eps)
    for columns in (residual, step):
        found, size = unit(beyond(unit(columns)[0]))
        directions = jnp.where(size > rounding, found, directions)
    # The first time leaves rounding of the span, the second none; the third is for columns that were alike.
    for _ in range(3):
        directions = orthonormal(beyond(directions))
    return directions
