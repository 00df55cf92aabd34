"""Optax transformations for federated optimisation: the server's adaptive ones, the clients' corrections."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import Scalar


class AdaptiveState(NamedTuple):
    """State of `adaptive`.

    Attributes:
        first: m.
        second: v.
    """

    first: Any
    second: Any


def adaptive(
    rule: Literal["adam", "yogi", "adagrad"],
    learning_rate: Scalar,
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    tau: Scalar = 1e-3,
) -> optax.GradientTransformation:
    """The servers' adaptive optimisers as their paper has them, without correction of the start.

    m ← β₁m + (1 − β₁)g;  v ← v + g² (Adagrad), β₂v + (1 − β₂)g² (Adam), v − (1 − β₂)g² sign(v − g²) (Yogi);
    x ← x − η m/(√v + τ), from m = 0 and v = τ². It differs from optax's own: ``optax.adam`` corrects for the
    start, ``optax.yogi`` also starts m and v elsewhere, ``optax.adagrad`` has no m and its ε inside the root.

    Args:
        rule: how v is made.
        learning_rate: η.
        b1: β₁ in [0, 1).
        b2: β₂ in [0, 1); Adagrad has none.
        tau: τ above 0, how adaptive: small is more.

    Source: Reddi et al. (2021), "Adaptive Federated Optimization", Algorithm 2.
    """
    check_choice("rule", rule, ("adam", "yogi", "adagrad"))
    for name, number in (("learning_rate", learning_rate), ("b1", b1), ("b2", b2), ("tau", tau)):
        check_strength(name, number)

    def init(params: Any) -> AdaptiveState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdaptiveState(zeros, jax.tree.map(lambda x: x + jnp.square(tau).astype(x.dtype), zeros))

    def second(v: jax.Array, g: jax.Array) -> jax.Array:
        square = jnp.square(g)
        if rule == "adagrad":
            return v + square
        if rule == "adam":
            return b2 * v + (1 - b2) * square
        return v - (1 - b2) * square * jnp.sign(v - square)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AdaptiveState]:
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, updates)
        seconds = jax.tree.map(second, state.second, updates)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + tau), first, seconds)
        return step, AdaptiveState(first, seconds)

    return optax.GradientTransformation(init, update)


def add_proximal(mu: Scalar) -> optax.GradientTransformationExtraArgs:
    """Add μ(y − x) to the gradient at y, with x the extra argument ``anchor``: FedProx's proximal term.

    Args:
        mu: μ, at least 0.

    Source: Li et al. (2020), "Federated Optimization in Heterogeneous Networks", equation 2.
    """
    check_strength("mu", mu)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda g, y, x: g + mu * (y - x), updates, params, extra["anchor"]), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def add_correction() -> optax.GradientTransformationExtraArgs:
    """Add the extra argument ``correction`` to the gradient: SCAFFOLD's c − c_i.

    Source: Karimireddy et al. (2020), "SCAFFOLD", equation 3.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return jax.tree.map(jnp.add, updates, extra["correction"]), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
