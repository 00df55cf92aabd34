"""ResNets of basic or bottleneck blocks."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn

from covfree.backbones.convolution import max_pool
from covfree.backbones.layers import Style, pooled


class ResNet(nn.Module):
    """A ResNet without its classifier, with ``blocks[i]`` residual blocks in stage i.

    In a bottleneck block, the 3 × 3 convolution has the stride.
    """

    style: Style
    blocks: tuple[int, ...]
    bottleneck: bool

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Compute the features of images."""
        style = self.style
        x = nn.relu(style.norm("bn1", train)(style.conv("conv1", 64, 7, 2)(x)))
        x = max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, count in enumerate(self.blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                x = self._block(x, f"layer{stage + 1}.{index}", 64 * 2**stage, stride, train)
        return pooled(x)

    def _block(self, x: jax.Array, name: str, width: int, stride: int, train: bool) -> jax.Array:
        style = self.style
        out = 4 * width if self.bottleneck else width
        convolutions = [(width, 3, stride), (width, 3, 1)]
        if self.bottleneck:
            convolutions = [(width, 1, 1), (width, 3, stride), (out, 1, 1)]
        branch = x
        for index, (channels, kernel, step) in enumerate(convolutions, start=1):
            if index > 1:
                branch = nn.relu(branch)
            branch = style.conv(f"{name}.conv{index}", channels, kernel, step)(branch)
            branch = style.norm(f"{name}.bn{index}", train)(branch)
        if stride != 1 or x.shape[-1] != out:
            x = style.conv(f"{name}.downsample.0", out, 1, stride)(x)
            x = style.norm(f"{name}.downsample.1", train)(x)
        return nn.relu(branch + x)


def build(dtype: Any, *, blocks: tuple[int, ...], bottleneck: bool) -> ResNet:
    """Build a ResNet that computes in ``dtype``, with ``blocks[i]`` residual blocks in stage i."""
    return ResNet(Style(dtype), blocks, bottleneck)


CLASSIFIER = "fc"
