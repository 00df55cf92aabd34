"""L-BFGS for a smooth loss over a pytree, to train heads that have no closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

from covfree.core.optional import optional

Start = TypeVar("Start")


def minimise(loss: Callable[..., jax.Array], start: Start, num_steps: int, *numbers: Any) -> Start:
    """Minimise a loss by L-BFGS from ``start``; return the last point. Call this function under ``jit``.

    The steps end early when no entry of the gradient g exceeds √eps in size. The implicit function theorem
    gives the derivatives of the minimum x: dx = −H⁻¹ dg with the Hessian H, solved by conjugate gradients.

    Args:
        loss: a function ``loss(pytree, *numbers)`` that returns a number and closes over no traced values.
            For derivatives it must be convex near the minimum.
        start: a pytree of arrays of one floating-point type.
        num_steps: maximum number of L-BFGS steps; conjugate gradients may take ten times as many.
        numbers: further arguments of the loss, pytrees of arrays.
    """
    slope_of = jax.grad(loss)

    @jax.custom_jvp
    def minimum(start: Start, numbers: tuple[Any, ...]) -> Start:
        return _descend(lambda point: loss(point, *numbers), start, num_steps)

    @minimum.defjvp
    def _(primals: tuple[Start, Any], tangents: tuple[Start, Any]) -> tuple[Start, Start]:
        point = minimum(*primals)

        def newton(*numbers: Any) -> Start:
            """Return the minimum x in a form that jax can differentiate: x minus a Newton step of value 0.

            With g and H the loss's gradient and Hessian at x, the step's derivative is H⁻¹ dg. So the
            result's derivative is dx = −H⁻¹ dg.
            """

            def second(direction: Start) -> Start:
                return jax.jvp(lambda x: slope_of(x, *primals[1]), (point,), (direction,))[1]

            slope = jax.tree.map(lambda x: x - jax.lax.stop_gradient(x), slope_of(point, *numbers))
            tolerance = float(jnp.finfo(jax.tree.leaves(point)[0].dtype).eps)
            step = cg(second, slope, tol=tolerance, maxiter=10 * num_steps)[0]
            return jax.tree.map(jnp.subtract, point, step)

        return jax.jvp(newton, primals[1], tangents[1])

    return minimum(start, numbers)


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
        # optax adds int32 to integers of the default type: an error, if the user has set jax's strict
        # promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, after = optimiser.update(slope, state, point, value=value, grad=slope, value_fn=loss)
        # optax keeps some numbers in the default type, which may be wider than the features' type.
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)
        moved = jax.tree.map(lambda x, change: x + change.astype(x.dtype), point, updates)
        # This reuses the value and gradient that the line search computed at this point.
        return moved, after, *value_and_grad(moved, state=after), step + 1

    state = optimiser.init(start)
    carry = (start, state, *value_and_grad(start, state=state), jnp.int32(0))
    return jax.lax.while_loop(unfinished, one_step, carry)[0]
