"""SqueezeNet 1.1, a small network that turns images into features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from covfree.backbones.convolution import max_pool
from covfree.backbones.layers import Dropout, Style, pooled

# Squeezed and expanded channels of each fire module; None stands for max pooling.
_FIRES = (
    *(None, (16, 64), (16, 64)),
    *(None, (32, 128), (32, 128)),
    *(None, (48, 192), (48, 192), (64, 256), (64, 256)),
)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 without its classifier."""

    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Compute the features of images."""
        style = self.style
        x = nn.relu(style.conv("features.0", 64, 3, 2, bias=True, padded=False)(x))
        for index, fire in enumerate(_FIRES, start=2):
            if fire is None:
                # As with torchvision's ``ceil_mode``, the last window may extend past the edge.
                height, width = x.shape[1:3]
                x = max_pool(x, (3, 3), (2, 2), ((0, (height - 3) % 2), (0, (width - 3) % 2)))
                continue
            squeezed, expanded = fire
            name = f"features.{index}"
            x = nn.relu(style.conv(f"{name}.squeeze", squeezed, 1, bias=True)(x))
            x = jnp.concatenate(
                [
                    nn.relu(style.conv(f"{name}.expand1x1", expanded, 1, bias=True)(x)),
                    nn.relu(style.conv(f"{name}.expand3x3", expanded, 3, bias=True)(x)),
                ],
                axis=-1,
            )
        return pooled(Dropout(0.5)(x))


def build(dtype: Any) -> SqueezeNet:
    """Build a SqueezeNet 1.1 that computes in the data type ``dtype``."""
    return SqueezeNet(Style(dtype))


CLASSIFIER = "classifier.1"
