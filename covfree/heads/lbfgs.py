"""Minimising a smooth loss over a pytree by L-BFGS: what trains the heads that have no closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

from covfree.optional import optional

Start = TypeVar("Start")


def minimise(loss: Callable[[Start], jax.Array], start: Start, num_steps: int) -> Start:
    """Minimise a loss from a start, in the start's precision. Call it under ``jit``.

    The steps end early when no entry of the gradient is above √eps. Derivatives are implicit, those of the
    minimum: with H the loss's second derivatives there, dx = −H⁻¹ d(gradient), by conjugate gradients.

    Args:
        loss: from the pytree to a number; convex near the minimum for derivatives.
        start: a pytree of arrays of one floating-point type.
        num_steps: most steps of L-BFGS; of conjugate gradients ten times as many.
    """
    # The numbers that the loss is made of, as arguments: the descent is given them without their derivatives.
    loss_of, numbers = jax.closure_convert(loss, start)
    fixed = jax.lax.stop_gradient(numbers)
    slope_of = jax.grad(loss_of)

    def fixed_loss(x: Start) -> jax.Array:
        # optax's line search comes with points of the default type, which may be wider.
        return loss_of(jax.tree.map(lambda own, like: own.astype(like.dtype), x, start), *fixed)

    point = _descend(fixed_loss, start, num_steps)

    def second(direction: Start) -> Start:
        return jax.jvp(lambda x: slope_of(x, *fixed), (point,), (direction,))[1]

    # 0, for which conjugate gradients take no step; its derivatives are those of the gradient.
    slope = slope_of(point, *numbers)
    zero = jax.tree.map(lambda x: x - jax.lax.stop_gradient(x), slope)
    tolerance = float(jnp.finfo(jax.tree.leaves(start)[0].dtype).eps)
    moved = cg(second, zero, tol=tolerance, maxiter=10 * num_steps)[0]
    return jax.tree.map(jnp.subtract, point, moved)


def _descend(loss: Callable[[Start], jax.Array], start: Start, num_steps: int) -> Start:
    optax = optional("optax", "finetune")
    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)
    tolerance = jnp.sqrt(jnp.finfo(jax.tree.leaves(start)[0].dtype).eps)

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        _, _, _, slope, step = carry
        largest = jnp.stack([jnp.abs(x).max() for x in jax.tree.leaves(slope)]).max()
        return (step < num_steps) & (largest > tolerance)

    def one_step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        point, state, value, slope, step = carry
        updates, after = optimiser.update(slope, state, point, value=value, grad=slope, value_fn=loss)
        # optax holds some of its numbers in the default type, which may be wider than the features'.
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)
        moved = jax.tree.map(lambda x, change: x + change.astype(x.dtype), point, updates)
        # The line search has been there: this takes what it saw.
        return moved, after, *value_and_grad(moved, state=after), step + 1

    state = optimiser.init(start)
    carry = (start, state, *value_and_grad(start, state=state), jnp.int32(0))
    return jax.lax.while_loop(unfinished, one_step, carry)[0]
