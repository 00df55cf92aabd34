"""The network of all clients, of the student and of the frozen backbone: a small one, or a backbone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from covfree.backbones import Backbone, Preprocessing, convolve, max_pool
from covfree.core.types import AnyArray, PRNGKey
from covfree.finetune import Model, random_head

# Flax's moving averages keep nine tenths at each step, as PyTorch's do.
_KEPT = 0.9


class CNN(nn.Module):
    """Two convolutions, each with batch norm, ReLU and a maximum over 2 × 2, and a linear layer.

    With ``kernel=5`` it is the network that DENSE's authors train on Fashion-MNIST.

    Attributes:
        num_classes: C.
        widths: channels of the two convolutions.
        kernel: height and width of both.
    """

    num_classes: int = 10
    widths: tuple[int, ...] = (16, 32)
    kernel: int = 3

    def setup(self) -> None:
        """Make the layers."""
        size = (self.kernel, self.kernel)
        self.convolutions = [nn.Conv(width, size, conv_general_dilated=convolve) for width in self.widths]
        self.norms = [nn.BatchNorm(momentum=_KEPT) for _ in self.widths]
        self.head = nn.Dense(self.num_classes)

    def features(self, images: AnyArray, train: bool = False) -> Float[Array, "batch dim"]:
        """What the linear layer is given.

        Args:
            images: [batch, height, width, channels], uint8 grey levels, or floats in [0, 1].
            train: whether batch norms use the batch's statistics and update the running ones.
        """
        x = jnp.asarray(images)
        x = x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution(x)
            x = max_pool(nn.relu(norm(x, use_running_average=not train)), (2, 2), (2, 2))
        return x.reshape(x.shape[0], -1)

    def __call__(self, images: AnyArray, train: bool = False) -> Float[Array, "batch classes"]:
        """Scores of each class."""
        return self.head(self.features(images, train))


class Pretrained(nn.Module):
    """A backbone of `covfree.backbones` with a linear layer, called as `CNN` is.

    Attributes:
        backbone: without a classifier.
        preprocessing: normalises images, which come as `CNN` takes them.
        num_classes: C.
    """

    backbone: Backbone
    preprocessing: Preprocessing
    num_classes: int

    def setup(self) -> None:
        """Make the layers."""
        self.network = self.backbone.module
        self.head = nn.Dense(self.num_classes)

    def features(self, images: AnyArray, train: bool = False) -> Float[Array, "batch dim"]:
        """What the linear layer is given; see `CNN.features`."""
        x = jnp.asarray(images)
        levels = x.astype(jnp.float32) if x.dtype == jnp.uint8 else 255 * x
        own = self.preprocessing
        mean, std = (jnp.asarray(each).reshape(1, 1, 1, 3) for each in (own.mean, own.std))
        return self.network((levels - mean) / std, train=train)

    def __call__(self, images: AnyArray, train: bool = False) -> Float[Array, "batch classes"]:
        """Scores of each class."""
        return self.head(self.features(images, train))

    def variables_of(self, params: Any, key: PRNGKey) -> Any:
        """Variables from the backbone's parameters and a random linear layer, as `new_variables` has them."""
        head = random_head(self.backbone.num_features, self.num_classes, key=key)
        own = {"network": params["params"], "head": {"kernel": head.weight, "bias": head.bias}}
        # A backbone without batch norms has no running statistics.
        statistics = {"network": params["batch_stats"]} if "batch_stats" in params else {}
        return {"params": own, "batch_stats": statistics}


Network: TypeAlias = CNN | Pretrained


def new_variables(cnn: Network, image_shape: tuple[int, ...], key: PRNGKey) -> Any:
    """Draw parameters and fresh running statistics: ``{"params", "batch_stats"}``."""
    variables = jax.jit(cnn.init)(key, jnp.zeros((1, *image_shape)))
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


@dataclass(frozen=True)
class _Features:
    """A function that is compared by value, so that another model of the network compiles nothing anew."""

    cnn: Network

    def __call__(
        self, trained: Any, frozen: Any, statistics: Any, inputs: Any, train: bool, key: Any
    ) -> tuple[jax.Array, Any]:
        variables = {"params": trained, "batch_stats": statistics}
        if not train:
            same: Any = self.cnn.apply(variables, inputs, method="features")
            return same, statistics
        features, new = self.cnn.apply(variables, inputs, True, method="features", mutable=["batch_stats"])
        return features, new.get("batch_stats", statistics)


def _scores(trained: Any, frozen: Any, features: jax.Array) -> jax.Array:
    return features @ trained["head"]["kernel"] + trained["head"]["bias"][None, :]


def _variables(trained: Any, frozen: Any, statistics: Any) -> Any:
    return {"params": trained, "batch_stats": statistics}


def cnn_model(cnn: Network, variables: Any) -> Model:
    """The network as `covfree.finetune` trains it; a run's result are variables like the ones given here.

    Batch norms use the batch's statistics in training; servers average the running ones over clients.
    """
    return Model(
        variables["params"],
        (),
        variables["batch_stats"],
        _Features(cnn),
        _scores,
        _variables,
        num_classes=cnn.num_classes,
    )


@partial(jax.jit, static_argnames=("cnn", "method"))
def _applied(cnn: Network, variables: Any, batches: jax.Array, method: str) -> jax.Array:
    return jax.lax.map(lambda batch: cnn.apply(variables, batch, method=method), batches)


def applied(
    cnn: Network, variables: Any, images: AnyArray, *, method: str = "__call__", batch_size: int = 500
) -> Float[np.ndarray, "examples outputs"]:
    """Apply the network, as in evaluation, to any number of images; ``method="features"`` for features."""
    count = len(images)
    size = min(batch_size, count)
    padded = np.zeros((-(-count // size) * size, *np.shape(images)[1:]), images.dtype)
    padded[:count] = images
    batches = padded.reshape(-1, size, *padded.shape[1:])
    outputs = np.asarray(_applied(cnn, variables, batches, method))
    return outputs.reshape(-1, outputs.shape[-1])[:count]
