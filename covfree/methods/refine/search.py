"""Solve A W = M in a few rounds, where only clients can multiply vectors by A.

In each round the server sends several vectors, and receives their products with A. The method is block
conjugate gradients, with a block BFGS step from an approximate inverse of A: see ``docs/refinement.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.core.lapack import eigh, orthonormal
from covfree.core.linalg import Factorisation, Scatter, factorise, solve
from covfree.core.products import divide_or_zero, product


class Search(NamedTuple):
    """The progress of solving A W = M for W; A is known only by its products with some directions.

    Attributes:
        inverse: P ≈ A⁻¹, the server's approximation at the start.
        right: M, the right-hand side.
        span: V, orthonormal directions whose products with A are known.
        images: A V.
        directions: Q, orthonormal and orthogonal to V; clients compute their products with A in the next
            round.
        step: Z, the step from which the directions were made, see `advance`.
        residual: R′, the residual M − A W for which that step was made.
        weight: the present W.
        error: the predicted error of W before the last step: ‖W − A⁻¹M‖ over ‖A⁻¹M‖ in the norm of A.
        length: α, the factor of the last step, see `advance`; 0 if it is unknown.
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
    length: Float[Array, ""]


def begin(inverse: Factorisation, right: Float[Array, "dim columns"], most: int) -> Search:
    """Start to solve A W = M for W: the first approximation is W = P M, with P ≈ A⁻¹ and M = ``right``.

    Only clients can multiply vectors by A, at most ``most`` vectors in a round. ``inverse`` is a factorised
    matrix near A, whose inverse is P. The result also holds the vectors for the first round.
    """
    nothing = right[:, :0]
    # The search does not use the pivot, so set it to 0. If Cholesky broke down, it is NaN, and a run would
    # reject the state as not finite.
    inverse = inverse._replace(smallest_pivot=jnp.zeros_like(inverse.smallest_pivot))
    weight = solve(inverse, right)
    asked = _next(nothing, weight, right, most)
    one = jnp.ones((), right.dtype)
    return Search(inverse, right, nothing, nothing, *asked, weight, one, one)


def advance(search: Search, images: Float[Array, "dim asked"], most: int) -> Search:
    """Improve W by the products of A with ``search.directions``, and choose the next directions.

    A W = M is the system to be solved; V are all directions so far, and P ≈ A⁻¹ (see `Search`).

    1. Compute the best W in the span of V: W = V G⁻¹ VᵀM with G = VᵀAV, and its residual R = M − A W.
    2. Add α·H to W, where H = Π P R is a step beyond the span, with Π = I − V G⁻¹ (AV)ᵀ. The best length of
       the previous step Z is used: α = tr(ZᵀR′) / tr(ZᵀAZ), with R′ the residual from which Z was made.
    3. Take the leading directions of H as the next directions.

    Args:
        search: the search so far.
        images: A times ``search.directions``.
        most: the largest number of directions of a round.
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
    # A residual this small is rounding, so the solution counts as exact.
    eps = jnp.finfo(right.dtype).eps
    settled = jnp.sum(jnp.square(residual)) <= 1e4 * eps**2 * jnp.sum(jnp.square(right))
    weight = weight + jnp.where(error > jnp.sqrt(eps), length, 0) * ahead
    # The error is estimated from the step length. If this is 0, the error is unknown: report 1, the largest.
    error = jnp.where(settled, 0, jnp.where(length > 0, error, 1))
    asked = _next(span, ahead, residual, most)
    return Search(inverse, right, span, images, *asked, weight, error, length)


def known_matrix(search: Search) -> Scatter:
    """Return A′, an approximation of the unknown matrix A of the system A W = M that the search solves.

    A′ agrees with all that the search knows: A′V = AV for the directions V, and A′W = M for the present W. It
    is positive definite. In the symbols of `Search` and `advance`, with Ã = P⁻¹ and G = VᵀAV,
    A′ = (Ã − ÃV(VᵀÃV)⁻¹VᵀÃ)/α + (AV)G⁻¹(AV)ᵀ, the inverse of αΠPΠᵀ + VG⁻¹Vᵀ. If the step length α is unknown,
    it is taken as 1, and A′W may differ from M. If Ã is 0, as with a relative shrinkage if no class has two
    rows, tI replaces it, with t = tr(VᵀAV)/q for the q columns of V.
    """
    start, span, images = search.inverse.scatter, search.span, search.images
    if not span.shape[1]:
        return start
    matrix, seen = start.dense(), jnp.square(span).sum()
    level = (span * images).sum() / jnp.where(seen > 0, seen, 1)
    matrix = jnp.where(jnp.any(matrix != 0), matrix, level * jnp.eye(len(matrix), dtype=matrix.dtype))

    def shown(image: jax.Array) -> jax.Array:
        core = product(span.T, image)
        return product(image, solve(factorise((core + core.T) / 2), image.T))

    length = jnp.where(search.length > 0, search.length, 1)
    found = (matrix - shown(product(matrix, span))) / length + shown(images)
    return Scatter.from_matrix((found + found.T) / 2)


def _length(search: Search, span: jax.Array, images: jax.Array) -> jax.Array:
    """Compute the best length α of the search's last step Z: the step αZ makes the error of W least.

    α is tr(ZᵀR′) / tr(ZᵀAZ), or 0 unless both traces are positive. Z is ``search.step``, and R′ is
    ``search.residual``, the residual before the step; both are multiplied by the vectors U of `_next`. AZ is
    computed from ``images``, the products of A with the directions in ``span``.
    """
    step, residual = search.step, search.residual
    along, curvature = jnp.sum(step * residual), jnp.sum(step * product(images, product(span.T, step)))
    return divide_or_zero(along, curvature, (along > 0) & (curvature > 0))


def _next(
    span: jax.Array, step: jax.Array, residual: jax.Array, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Choose the directions of the next round: at most ``most`` orthonormal vectors, orthogonal to ``span``.

    U are the leading right singular vectors of ``step``. `_outside` makes the columns of ``step`` U
    orthonormal: these are the directions.

    Returns:
        The directions, ``step`` U, and ``residual`` U.
    """
    most = min(most, step.shape[1], step.shape[0] - span.shape[1])
    turn = jax.lax.stop_gradient(eigh(product(step.T, step))[1])[:, ::-1][:, :most]
    step, residual = product(step, turn), product(residual, turn)
    return _outside(span, step, residual), step, residual


def _outside(span: jax.Array, step: jax.Array, residual: jax.Array) -> jax.Array:
    """Make the columns of ``step`` orthonormal, and orthogonal to the columns of ``span``; return them.

    A column that lies in the span, up to rounding, is first replaced by the same column of ``residual``; if
    this column lies in the span too, by a random vector.
    """

    def beyond(columns: jax.Array) -> jax.Array:
        return columns - product(span, product(span.T, columns))

    def unit(columns: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = jnp.sqrt(jnp.square(columns).sum(0, keepdims=True))
        return columns / jnp.where(size > 0, size, 1), size

    any_others = np.random.default_rng(0).normal(size=step.shape)
    directions = jnp.asarray(any_others, step.dtype)
    # A unit column whose part outside the span is shorter than this lies in the span up to rounding.
    rounding = jnp.sqrt(jnp.finfo(step.dtype).eps)
    for columns in (residual, step):
        found, size = unit(beyond(unit(columns)[0]))
        directions = jnp.where(size > rounding, found, directions)
    # The first pass leaves rounding errors inside ``span``, and the second removes them. If columns are
    # nearly equal, making them orthonormal enlarges the errors, so a third pass follows.
    for _ in range(3):
        directions = orthonormal(beyond(directions))
    return directions
