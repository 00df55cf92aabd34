"""Adaptive optimisers for servers, the proximal term for clients, and how far an optimiser's steps move."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import Scalar
from covfree.finetune.local import made


def reach(optimiser: Partial, steps: Any, factor: Any = 1.0) -> jax.Array:
    """Return how far an optimiser moves a parameter that starts at 0 and always has the gradient 1.

    After K = ``steps`` steps with learning rate η this is ηK for gradient descent,
    η (K − ρ(1 − ρᴷ)/(1 − ρ))/(1 − ρ) with momentum ρ, and (1 − (1 − ημ)ᴷ)/μ with a proximal term or weight
    decay of strength μ. Each step is multiplied by ``factor``.
    """
    transformation, zero = made(optimiser), jnp.zeros(())

    def step(_: Any, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        place, state = carry
        one = jnp.ones(())
        updates, state = transformation.update(one, state, place, value=one, anchor=zero)
        return place + (factor * updates).astype(place.dtype), state

    return -jax.lax.fori_loop(0, steps, step, (zero, transformation.init(zero)))[0]


class AdaptiveState(NamedTuple):
    """The state of an optimiser from `adaptive`.

    Attributes:
        first: m, the running mean of the gradients.
        second: v, which each step updates by the squared gradients.
        steps: t, the number of steps so far.
    """

    first: Any
    second: Any
    steps: jax.Array


def adaptive(
    rule: Literal["adam", "yogi", "adagrad", "adam-flower"],
    learning_rate: Scalar,
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    tau: Scalar = 1e-3,
) -> optax.GradientTransformation:
    """Return the optax transformation of FedAdam's, FedYogi's or FedAdagrad's server.

    For parameters x and their gradient g, from m = 0 and v = τ²:

        m ← β₁m + (1 − β₁)g
        v ← v + g² (Adagrad), β₂v + (1 − β₂)g² (Adam) or v − (1 − β₂)g² sign(v − g²) (Yogi)
        x ← x − η m/(√v + τ)

    Optax's versions differ: ``optax.adam`` corrects the bias, ``optax.yogi`` does too and starts m and v at
    other values, ``optax.adagrad`` has no m and has ε inside the root.

    ``"adam-flower"`` is the Adam of Flower's strategy: v starts at 0, and the t-th step is multiplied by
    √(1 − β₂ᵗ⁺¹)/(1 − β₁ᵗ⁺¹), Adam's bias correction of step t + 1.

    Args:
        rule: the update rule of v.
        learning_rate: η.
        b1: β₁ in [0, 1).
        b2: β₂ in [0, 1); unused by Adagrad.
        tau: τ above 0; the smaller it is, the more a parameter's step depends on its own v.

    Source: Reddi et al. (2021), "Adaptive Federated Optimization", Algorithm 2.
    """
    check_choice("rule", rule, ("adam", "yogi", "adagrad", "adam-flower"))
    for name, number in (("learning_rate", learning_rate), ("b1", b1), ("b2", b2), ("tau", tau)):
        check_strength(name, number)
    corrected = rule == "adam-flower"

    def init(params: Any) -> AdaptiveState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        begun = 0 if corrected else tau
        second = jax.tree.map(lambda x: x + jnp.square(begun).astype(x.dtype), zeros)
        return AdaptiveState(zeros, second, jnp.zeros((), jnp.int32))

    def second(v: jax.Array, g: jax.Array) -> jax.Array:
        square = jnp.square(g)
        if rule == "adagrad":
            return v + square
        if rule == "yogi":
            return v - (1 - b2) * square * jnp.sign(v - square)
        return b2 * v + (1 - b2) * square

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AdaptiveState]:
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, updates)
        seconds = jax.tree.map(second, state.second, updates)
        steps, rate = state.steps + 1, jnp.asarray(learning_rate)
        if corrected:
            later = (steps + 1).astype(jnp.result_type(float))
            rate = rate * jnp.sqrt(1 - jnp.power(b2, later)) / (1 - jnp.power(b1, later))
        step = jax.tree.map(lambda m, v: (-rate * m / (jnp.sqrt(v) + tau)).astype(m.dtype), first, seconds)
        return step, AdaptiveState(first, seconds, steps)

    return optax.GradientTransformation(init, update)


def add_proximal(mu: Scalar) -> optax.GradientTransformationExtraArgs:
    """Return a transformation that adds μ(y − x), the gradient of FedProx's penalty, to a client's gradient.

    x is the server's model, and y the client's model at this step. Use the transformation for the clients of
    any algorithm: ``optax.chain(add_proximal(0.1), optax.sgd(0.01, momentum=0.9))``.

    Args:
        mu: μ, at least 0.

    Source: Li et al. (2020), "Federated Optimization in Heterogeneous Networks", equation 2.
    """
    check_strength("mu", mu)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda g, y, x: g + mu * (y - x), updates, params, extra["anchor"]), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
