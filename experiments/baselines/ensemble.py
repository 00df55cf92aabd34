"""Several networks as one classifier: the weighted mean of their logits."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any

import jax
import jax.numpy as jnp
import optax
from baselines.cnn import Network
from flax import linen as nn
from jaxtyping import Array, Float, Int

from covfree.core.types import Scalar


def outputs(
    cnn: Network, members: Any, images: Float[Array, "batch height width channels"]
) -> tuple[Float[Array, "members batch classes"], Float[Array, " members"]]:
    """What each network makes of images, one network after the other.

    Returns: The logits, and for each network how far the images are from those that it was trained on: the
        sum over its batch norms of ‖μ − μ_BN‖ + ‖σ² − σ²_BN‖, where μ and σ² are the mean and the variance by
        channel of what enters the norm, over the batch and all positions, and those with BN the norm's
        running statistics; 0 of a network without batch norms.
    """

    def one(variables: Any) -> tuple[jax.Array, jax.Array]:
        moments: dict[tuple[str, ...], tuple[jax.Array, jax.Array]] = {}

        def noting(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__":
                moments[context.module.path] = args[0].mean((0, 1, 2)), args[0].var((0, 1, 2))
            return call(*args, **kwargs)

        with nn.intercept_methods(noting):
            logits: Any = cnn.apply(variables, images)
        distance = jnp.zeros(())
        for path, (mean, variance) in moments.items():
            running = reduce(getitem, path, variables["batch_stats"])
            distance += jnp.linalg.norm(mean - running["mean"]) + jnp.linalg.norm(variance - running["var"])
        return logits, distance

    return jax.lax.map(one, members)


def combine(
    logits: Float[Array, "members batch classes"], weights: Float[Array, " members"]
) -> Float[Array, "batch classes"]:
    """The ensemble's logits: Σ w_i f_i / Σ w_i."""
    return jnp.einsum("m,mbc->bc", weights, logits) / weights.sum()


def reweighted(
    weights: Float[Array, " members"],
    logits: Float[Array, "members batch classes"],
    labels: Int[Array, " batch"],
    step: Scalar,
) -> Float[Array, " members"]:
    """One step of Co-Boosting's ensemble: w ← clip(w − step · sign ∇_w CE(Σ w_i f_i / Σ w_i, y), 0, 1).

    The ensemble does not change with the scale of w, so Σ w_i ∂CE/∂w_i = 0: the gradients of weights above 0
    have both signs, or all are 0. In float32 the sum is only about 0, a single weight above 0 may still go
    down, and if ``step`` is as large as the weights are, all may reach 0. Weights of which none would be
    above 0 stay as they are: there would be no ensemble.

    Args:
        weights: w, in [0, 1].
        logits: f_i of each member.
        labels: y, what the images were made to be.
        step: how far each weight moves.

    Source: Dai et al. (2024), "Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting".
    """

    def loss(weights: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(combine(logits, weights), labels).mean()

    new = jnp.clip(weights - step * jnp.sign(jax.grad(loss)(weights)), 0, 1)
    return jnp.where((new > 0).any(), new, weights)
