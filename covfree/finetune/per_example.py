"""Gradients of single examples, clipped and summed with noise: the steps of DP-SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.products import shortened
from covfree.core.types import PRNGKey, Scalar


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerExample:
    """The settings of a DP-SGD step; a call computes a batch's mean gradient, clipped and with noise.

    See `covfree.privacy.private_training`.

    Attributes:
        clip: bound on the norm of an example's gradient.
        deviation: standard deviation of the Gaussian noise in each entry of the sum.
    """

    clip: Scalar
    deviation: Scalar

    def __call__(
        self, value_and_gradient: Callable[..., Any], examples: Any, weight: jax.Array, key: PRNGKey
    ) -> tuple[jax.Array, Any]:
        """Return the mean loss, and (Σ_i g_i min(1, clip/‖g_i‖) + noise)/batch for examples' gradients g_i.

        The divisor is the batch size, padding included, so that only the sum depends on the data.

        Args:
            value_and_gradient: ``(example, key) -> (loss, gradient)`` for one example.
            examples: a pytree of arrays [batch, …].
            weight: [batch], 0 for padding.
            key: PRNG key of the noise and of the examples' own draws.
        """
        draws, noise = jax.random.split(key)
        losses, gradients = jax.vmap(value_and_gradient)(examples, jax.random.split(draws, len(weight)))
        # A gradient that is not finite becomes 0.
        clipped = jax.vmap(shortened, (0, None))(gradients, self.clip)

        def noisy(leaf: jax.Array, terms: jax.Array, own: PRNGKey) -> jax.Array:
            used = (weight > 0).reshape(-1, *(1,) * (leaf.ndim - 1))
            total = jnp.where(used, terms, 0).sum(0)
            drawn = jax.random.normal(own, total.shape, total.dtype)
            return ((total + self.deviation * drawn) / len(weight)).astype(leaf.dtype)

        leaves, structure = jax.tree.flatten(gradients)
        keys = jax.random.split(noise, len(leaves))
        summed = [noisy(*each) for each in zip(leaves, jax.tree.leaves(clipped), keys, strict=True)]
        loss = jnp.where(weight > 0, losses, 0).sum() / jnp.maximum(weight.sum(), 1)
        return loss, structure.unflatten(summed)
