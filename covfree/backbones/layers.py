"""Layers that the architectures share: convolutions, norms, dense layers, dropout.

Layers are named as in timm or torchvision (``"layer1.0.conv1"``): a path in the tree of parameters, joined by
dots, is the tensor's name in a file of weights, perhaps after a `Renaming`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from covfree.backbones.convolution import convolve

# A function from a name in the tree of parameters to the tensor's name in a file of weights.
Renaming = Callable[[str], str]


@dataclass(frozen=True)
class Style:
    """Settings that all layers of a network share.

    Attributes:
        dtype: the data type in which the network computes; parameters are float32.
        epsilon: added to a norm's variance.
        momentum: m in a batch norm's update: running statistics ← m · running + (1 − m) · the batch's.
        same: whether convolutions pad as TensorFlow's "SAME": if the number of added positions is odd, one
            more is at the end. If False, both ends get equally many.
    """

    dtype: Any
    epsilon: float = 1e-5
    momentum: float = 0.9
    same: bool = False

    @property
    def precision(self) -> jax.lax.Precision | None:
        """Precision of products: full for float32, which accelerators would round; default for bfloat16."""
        return None if self.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST

    def conv(
        self,
        name: str,
        features: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        padded: bool = True,
    ) -> nn.Conv:
        """Build a convolution with a square kernel; if ``padded``, it keeps the image's size at stride 1."""
        side = (kernel - 1) // 2 if padded else 0
        return nn.Conv(
            features,
            (kernel, kernel),
            strides=stride,
            padding="SAME" if self.same and padded else side,
            feature_group_count=groups,
            use_bias=bias,
            dtype=self.dtype,
            precision=self.precision,
            conv_general_dilated=convolve,
            name=name,
        )

    def norm(self, name: str, train: bool) -> nn.BatchNorm:
        """Build a batch norm; it uses the batch's statistics if ``train``, else the running statistics."""
        return nn.BatchNorm(
            use_running_average=not train,
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype,
            use_fast_variance=False,  # True computes E[x²] − E[x]², which loses digits
            name=name,
        )

    def layer_norm(self, name: str) -> nn.LayerNorm:
        """Build a layer norm."""
        return nn.LayerNorm(self.epsilon, self.dtype, use_fast_variance=False, name=name)

    def dense(self, name: str, features: int) -> nn.Dense:
        """Build a linear layer with a bias."""
        return nn.Dense(features, dtype=self.dtype, precision=self.precision, name=name)


class Dropout(nn.Module):
    """Dropout of single numbers or whole examples; without a PRNG key named ``dropout`` it does nothing.

    Attributes:
        rate: the probability of dropping.
        whole: whether whole examples are dropped, as in stochastic depth.
    """

    rate: float
    whole: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Set random values to 0 and divide the others by the share that is kept; without a key, return x."""
        if not (self.rate > 0 and self.has_rng("dropout")):
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1) if self.whole else x.shape
        kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, shape)
        return jnp.where(kept, x / (1 - self.rate), jnp.zeros_like(x))


def pooled(x: jax.Array) -> jax.Array:
    """Average ``[batch, height, width, channels]`` over the positions, in float32 at least."""
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    return x.mean((1, 2), dtype=accurate).astype(x.dtype)
