"""What the architectures are made of: convolutions, norms, stochastic depth.

A part's name is that of the tensors in the reference (``"layer1.0.conv1"``), so that a path in the tree of
parameters, joined with dots, is the name that a file of weights uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from covfree.backbones.convolution import convolve

# The names of the reference's tensors, as functions of the names in the tree of parameters.
Renaming = Callable[[str], str]


@dataclass(frozen=True)
class Style:
    """What all parts of one network have in common.

    Attributes:
        dtype: in which it computes; parameters are float32.
        epsilon: added to a norm's variance.
        momentum: share of a batch norm's running statistics that an update keeps.
        same: whether convolutions pad as TensorFlow does, at the end first, or alike on both sides.
    """

    dtype: Any
    epsilon: float = 1e-5
    momentum: float = 0.9
    same: bool = False

    @property
    def precision(self) -> jax.lax.Precision | None:
        """Float32 means float32 on accelerators too; bfloat16 is there for speed."""
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
        """A square convolution; padded so that stride 1 keeps the size."""
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
        """Batch norm: by the batch's statistics in training, by the running ones otherwise."""
        return nn.BatchNorm(
            use_running_average=not train,
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype,
            use_fast_variance=False,  # centres before it squares
            name=name,
        )

    def dense(self, name: str, features: int) -> nn.Dense:
        """A linear map with a bias."""
        return nn.Dense(features, dtype=self.dtype, precision=self.precision, name=name)


class Dropout(nn.Module):
    """Dropout, of single numbers or of whole examples; does nothing without a key.

    Attributes:
        rate: chance to be dropped.
        whole: drop a whole example's branch: stochastic depth.
    """

    rate: float
    whole: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Drop where a key is given; what is kept is scaled so that the mean stays."""
        if not (self.rate > 0 and self.has_rng("dropout")):
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1) if self.whole else x.shape
        kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, shape)
        return jnp.where(kept, x / (1 - self.rate), jnp.zeros_like(x))


def pooled(x: jax.Array) -> jax.Array:
    """Mean over the positions of ``[batch, height, width, channels]``, summed in float32 at least."""
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    return x.mean((1, 2), dtype=accurate).astype(x.dtype)
