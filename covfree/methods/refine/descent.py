"""L-BFGS for federated rounds: the caller computes the loss and its gradient at one point in each round."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.linalg import Factorisation, solve
from covfree.core.products import divide_or_zero

# A step must lower the loss by this share of the decrease that the slope predicts (Armijo).
_ENOUGH = 1e-4
# A failed step is shortened to a share of its length between these two.
_LEAST, _MOST = 0.1, 0.5
# Differences of the loss below this many eps are rounding: the loss is a float32 sum over all examples.
_ROUNDING = 8


class Descent(NamedTuple):
    """The progress of a minimisation by L-BFGS (`descend`).

    A point is an array [dim + 1, classes]: the weights, and the biases in the last row.

    Attributes:
        point: the best point whose loss is known; at first the start.
        value: the loss at ``point``. Before the first evaluation it is a number that the caller has set, or
            else log C, the loss of a uniform prediction of C classes.
        slope: the gradient at ``point``; 0 before the first evaluation.
        begun: whether ``value`` and ``slope`` come from an evaluation.
        trial: the point at which the loss is evaluated next.
        steps: s_k, differences of points; the newest last, preceded by zeros until there are enough.
        changes: y_k, the differences of gradients between the same points.
    """

    point: Float[Array, "rows classes"]
    value: Float[Array, ""]
    slope: Float[Array, "rows classes"]
    begun: Bool[Array, ""]
    trial: Float[Array, "rows classes"]
    steps: Float[Array, "pairs rows classes"]
    changes: Float[Array, "pairs rows classes"]


def begin_descent(point: Float[Array, "rows classes"], pairs: int) -> Descent:
    """Return the first state of a descent that starts at ``point``, where the loss is evaluated first.

    ``pairs`` is the number of past steps that L-BFGS keeps, at least 1.
    """
    none = jnp.zeros((pairs, *point.shape), point.dtype)
    value = jnp.full((), math.log(point.shape[1]), point.dtype)
    return Descent(point, value, jnp.zeros_like(point), jnp.zeros((), bool), point, none, none)


def descend(
    descent: Descent, value: Float[Array, ""], slope: Float[Array, "rows classes"], metric: Factorisation
) -> Descent:
    """Choose the next trial point, from the loss and the gradient at the present one.

    If the loss has fallen enough, the trial becomes the point, and the next trial is one L-BFGS step away,
    −H·slope, with H ≈ the inverse Hessian. H is built on P = A⁻¹ ⊕ 1 (metric A; 1 for the bias), scaled by
    sᵀy/(yᵀPy) of the newest pair (s, y), if there is one. Products sᵀy do not depend on coordinates, so this
    is L-BFGS in coordinates in which A is the identity. If the loss has not fallen enough, the point stays.
    The next trial is then at the minimum of the parabola through both losses and the slope at the point, or
    at the nearer of 0.1 and 0.5 of the step if the minimum is not between these.

    Args:
        descent: the minimisation so far.
        value: the loss at ``descent.trial``. The step fails if the loss, the gradient or a result from them
            is not finite.
        slope: the gradient there.
        metric: A, factorised; it applies to all rows of a point except the last.

    Source: Nocedal and Wright, Numerical Optimization, alg. 7.4 and section 3.5.
    """
    move, first, known = descent.trial - descent.point, ~descent.begun, descent.value
    along = jnp.sum(descent.slope * move)
    # A finite loss whose square overflows is no loss of examples but a spoilt upload, and fails the step too.
    sound = jnp.isfinite(jnp.square(value)) & jnp.isfinite(slope).all()
    eps = jnp.finfo(value.dtype).eps
    rounding = _ROUNDING * eps * jnp.abs(known)

    change = slope - descent.slope
    # L-BFGS learns from pairs: a step and the gradient's change along it. Their product `turned` is at least
    # 0, as the loss is convex. If it is not clearly above 0, it may be rounding, and the pair is not used.
    turned = jnp.sum(move * change)
    # Take weights and bias separately: then the products of norms do not depend on the features' unit.
    size = sum(
        jnp.sqrt(jnp.sum(jnp.square(move[part]))) * jnp.sqrt(jnp.sum(jnp.square(change[part])))
        for part in (slice(None, -1), slice(-1, None))
    )
    useful = sound & ~first & (turned > eps * size)

    def push(pairs: jax.Array, pair: jax.Array) -> jax.Array:
        return jnp.where(useful, jnp.concatenate([pairs[1:], pair[None]]), pairs)

    steps, changes = push(descent.steps, move), push(descent.changes, change)
    ahead = _quasi_newton(slope, steps, changes, metric)
    # Reject a step if it, or its predicted decrease, overflows: no later step could recover.
    sound &= jnp.isfinite(ahead).all() & jnp.isfinite(jnp.sum(slope * ahead))
    steps, changes = jnp.where(sound, steps, descent.steps), jnp.where(sound, changes, descent.changes)
    better = sound & (first | (value <= known + _ENOUGH * along + rounding))

    rise = value - known - along
    shorter = jnp.where(sound & (rise > 0), -along / jnp.where(rise > 0, 2 * rise, 1), _LEAST)
    shorter = jnp.clip(shorter, _LEAST, _MOST)
    return Descent(
        jnp.where(better, descent.trial, descent.point),
        jnp.where(better, value, descent.value),
        jnp.where(better, slope, descent.slope),
        descent.begun | better,
        jnp.where(better, descent.trial - ahead, descent.point + shorter * move),
        steps,
        changes,
    )


def last_point(descent: Descent) -> Float[Array, "rows classes"]:
    """Return the result of a minimisation that is ended now: the point ``trial``, one step past ``point``.

    The loss at ``trial`` is not known. Until L-BFGS has two pairs (s, y), see `Descent`, this step may be
    many times too long. Then ``point`` is returned, the best point whose loss is known.
    """
    pairs = jnp.any(descent.steps != 0, axis=(1, 2)).sum()
    return jnp.where(pairs < 2, descent.point, descent.trial)


def _quasi_newton(slope: jax.Array, steps: jax.Array, changes: jax.Array, metric: Factorisation) -> jax.Array:
    """Multiply a gradient by L-BFGS's approximate inverse Hessian, in the usual two loops.

    Args:
        slope: the gradient; its last row is that of the biases.
        steps: differences between successive points.
        changes: the differences between the gradients at these points.
        metric: a covariance. Its inverse (and 1 for biases), scaled to fit the newest pair of differences, is
            the inverse Hessian from which L-BFGS starts.
    """
    turned = jnp.sum(steps * changes, axis=(1, 2))
    weights = divide_or_zero(1, turned)

    def back(slope: jax.Array, pair: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        step, change, weight = pair
        share = weight * jnp.sum(step * slope)
        return slope - share * change, share

    # Use `scan`: its body is compiled once, however many pairs there are.
    slope, shares = jax.lax.scan(back, slope, (steps, changes, weights), reverse=True)
    # Solve for ``slope`` and ``newest`` in one call, as each call takes long to compile.
    newest = changes[-1]
    both = jnp.concatenate([slope, newest], axis=1)
    both = jnp.concatenate([solve(metric, both[:-1]), both[-1:]])
    found, ahead = jnp.split(both, 2, axis=1)
    curved = jnp.sum(newest * ahead)
    known = (curved > 0) & (turned[-1] > 0)
    found = found * jnp.where(known, turned[-1] / jnp.where(known, curved, 1), 1)

    def forth(found: jax.Array, pair: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        step, change, weight, share = pair
        return found + step * (share - weight * jnp.sum(change * found)), None

    return jax.lax.scan(forth, found, (steps, changes, weights, shares))[0]
