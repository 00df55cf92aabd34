"""Images made from nothing but networks: a generator that is trained for each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxtyping import Array, Float

from covfree.backbones import convolve
from covfree.core.checks import check_positive
from covfree.core.types import PRNGKey

_SPREAD = 0.02
# Adam's, of the generator and of what it is given.
LEARNING_RATE, BETAS = 1e-3, (0.5, 0.999)


def _around_one(key: Any, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    return 1 + _SPREAD * jax.random.normal(key, shape, dtype)


class Generator(nn.Module):
    """Latent vectors to images, as DENSE and Co-Boosting have it.

    A linear layer to a quarter of the size and 2w channels, batch norm; twice as large, a convolution to 2w
    channels, batch norm, leaky ReLU; twice as large, one to w channels, batch norm, leaky ReLU; one to the
    image's channels, sigmoid. Batch norms use the batch's statistics. Kernels are drawn from N(0, 0.02²),
    scales from N(1, 0.02²).

    Attributes:
        size: height and width, a multiple of 4.
        channels: of the image.
        width: w; 64 in both papers.

    Raises:
        ValueError: when it is used, if the size is no multiple of 4.
    """

    size: int = 28
    channels: int = 1
    width: int = 64

    @nn.compact
    def __call__(self, latent: Float[Array, "batch latent"]) -> Float[Array, "batch size size channels"]:
        """Images in (0, 1)."""
        if self.size < 4 or self.size % 4:
            raise ValueError(f"size: expected a multiple of 4, at least 4, got {self.size}")
        drawn = nn.initializers.normal(_SPREAD)

        def norm(x: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=False, scale_init=_around_one)(x)

        def conv(x: jax.Array, width: int, bias: bool = False) -> jax.Array:
            return nn.Conv(width, (3, 3), use_bias=bias, kernel_init=drawn, conv_general_dilated=convolve)(x)

        quarter = self.size // 4
        x = nn.Dense(2 * self.width * quarter**2, kernel_init=drawn)(latent)
        x = norm(x.reshape(-1, quarter, quarter, 2 * self.width))
        for width in (2 * self.width, self.width):
            x = x.repeat(2, 1).repeat(2, 2)
            x = nn.leaky_relu(norm(conv(x, width)), 0.2)
        return nn.sigmoid(conv(x, self.channels, bias=True))


def synthesise(
    generator: Generator,
    loss: Callable[[jax.Array, PRNGKey], jax.Array],
    *,
    key: PRNGKey,
    batch_size: int,
    latent: int,
    steps: int,
) -> Float[Array, "batch size size channels"]:
    """Make one batch: draw a generator and latent vectors, train both, keep the images of least loss.

    Args:
        generator: of the images.
        loss: ``(images, key) -> scalar``.
        key: of the draws.
        batch_size: how many images.
        latent: length of a latent vector.
        steps: of Adam, at 1e-3 with β = (0.5, 0.999); at least 1.

    Returns:
        The images, of the step whose loss was the least; nan if no loss was finite.
    """
    check_positive("steps", steps)
    of_latent, of_generator, of_loss = jax.random.split(key, 3)
    start = jax.random.normal(of_latent, (batch_size, latent))
    params = generator.init(of_generator, start)["params"]
    adam = optax.adam(LEARNING_RATE, *BETAS)

    def objective(parts: Any, key: PRNGKey) -> tuple[jax.Array, jax.Array]:
        # Nothing reads the running statistics.
        images, _ = generator.apply({"params": parts[0]}, parts[1], mutable=["batch_stats"])
        return loss(images, key), images

    def step(carry: Any, key: PRNGKey) -> tuple[Any, None]:
        parts, state, least, best = carry
        (value, images), slope = jax.value_and_grad(objective, has_aux=True)(parts, key)
        best = jnp.where(value < least, images, best)
        updates, state = adam.update(slope, state, parts)
        return (optax.apply_updates(parts, updates), state, jnp.minimum(value, least), best), None

    parts = params, start
    # What no loss is below is not taken for images.
    blank = jnp.full((batch_size, generator.size, generator.size, generator.channels), jnp.nan)
    carry = parts, adam.init(parts), jnp.inf, blank
    return jax.lax.scan(step, carry, jax.random.split(of_loss, steps))[0][3]
