"""The feature map of DeepAFL: a residual network in which half of the weights are drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.keys import derive
from covfree.core.products import product
from covfree.core.types import AnyArray, Scalar, accumulation_dtype, at_once


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeepFeatures:
    """The feature map x ↦ Φ_T of `deepafl`, a residual network of T layers.

        Φ₀ = tanh([x̂, 1] A),    Φ_t = Φ_{t−1} + gelu([Φ_{t−1}, 1] B_t) Ω_t.

    Only the Ω_t are fitted. A [d + 1, h] and B_t [h + 1, f] have independent normal entries, of variance 1/d
    and 1/h. They are drawn each time they are needed, from a seed that all parties share. Their last rows are
    biases. Without biases Φ₀ would be odd in x: for classes symmetric about 0, ΦᵀY (Y: one-hot labels) would
    be 0, and no layer would learn. x̂ is x, of d features, scaled to norm √d, so that tanh is neither linear
    nor saturated, whatever the features' unit.

    Attributes:
        layers: Ω_1, …, Ω_T, each [inner, width].
        seed: the seed of A and B_t.
        num_features: h, the width.
        inner: f, the number of random features in a layer.
    """

    layers: tuple[Float[AnyArray, "inner width"], ...]
    seed: Scalar
    num_features: int = field(metadata={"static": True})
    inner: int = field(metadata={"static": True})

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch width"]:
        """Compute Φ_T, the features after the last layer, for each feature vector."""
        features = jnp.asarray(features, accumulation_dtype(features))
        dim = features.shape[-1]
        # Divide by the largest entry, so that squares neither overflow nor underflow; the scaling below
        # undoes it.
        largest = jax.lax.stop_gradient(jnp.abs(features).max(-1, keepdims=True))
        features = features / jnp.where(largest > 0, largest, 1)
        square = jnp.square(features).sum(-1, keepdims=True)
        scaled = features * jnp.sqrt(dim / jnp.where(square > 0, square, 1))
        mapped = jnp.tanh(_affine(scaled, self._weights("input", dim, self.num_features)))
        for index, layer in enumerate(self.layers):
            mapped = mapped + product(self.random(mapped, index), jnp.asarray(layer, mapped.dtype))
        return mapped

    def random(self, mapped: Float[Array, "*batch width"], index: int) -> Float[Array, "*batch inner"]:
        """Compute gelu([Φ, 1] B), with Φ = ``mapped`` and B the random matrix of layer ``index`` (from 0)."""
        return jax.nn.gelu(_affine(mapped, self._layer(index)), approximate=False)

    def drawn(self, dim: int) -> dict[str, jax.Array]:
        """Draw the random weights from the seed: A [dim + 1, h], and B_1 … B_T as an array [T, h + 1, f]."""
        every = [self._layer(index) for index in range(len(self.layers))]
        return {"input": self._weights("input", dim, self.num_features), "random": jnp.stack(every)}

    def _layer(self, index: int) -> Float[Array, "rows inner"]:
        return self._weights(f"layer {index}", self.num_features, self.inner)

    def _weights(self, stream: str, rows: int, columns: int) -> Float[Array, "rows columns"]:
        """Draw [rows + 1, columns] normal numbers of variance 1/rows; the last row contains the biases.

        ``stream`` is a text; each text gives another draw from the seed.
        """
        key = derive(jax.random.key(self.seed), stream)
        return jax.random.normal(key, (rows + 1, columns), jnp.float32) / math.sqrt(rows)


def _affine(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Return [x, 1] W for x = ``values`` and W = ``weights``, whose last row contains the biases."""
    weights = weights.astype(values.dtype)
    found = product(values, weights[:-1])
    return found + jnp.broadcast_to(weights[-1], found.shape)
