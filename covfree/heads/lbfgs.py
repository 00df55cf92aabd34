"""Minimising a smooth loss over a pytree by L-BFGS: what trains the heads that have no closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from covfree.optional import optional

Start = TypeVar("Start")


def minimise(loss: Callable[[Start], jax.Array], start: Start, num_steps: int) -> Start:
    """Minimise a loss from a start, in the start's precision. Call it under ``jit``.

    The steps end early when no entry of the gradient is above √eps.

    Args:
        loss: from the pytree to a number.
        start: a pytree of arrays of one floating-point type.
        num_steps: most steps of L-BFGS.
    """
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
