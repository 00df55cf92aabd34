"""Vision transformers (ViT), which turn images into features."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from covfree.backbones.layers import Renaming, Style


class VisionTransformer(nn.Module):
    """A vision transformer; the feature is the class token after the last norm. Tensors have timm's names."""

    style: Style
    patch: int
    size: int
    dim: int
    depth: int
    heads: int

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *,
        train: bool = False,
        prompts: jax.Array | None = None,
        kept: jax.Array | None = None,
    ) -> jax.Array:
        """Compute the features of images.

        ``prompts`` [batch, prompts, dim] are additional tokens between the class token and the patches. No
        token attends to prompts that are not ``kept`` [batch, prompts].
        """
        style, dim = self.style, self.dim
        patches = nn.Conv(
            dim,
            (self.patch, self.patch),
            strides=self.patch,
            padding="VALID",
            dtype=style.dtype,
            precision=style.precision,
            name="patch_embed.proj",
        )(x)
        tokens = patches.reshape(x.shape[0], (self.size // self.patch) ** 2, dim)
        token = self.param("cls_token", nn.initializers.zeros, (1, 1, dim))
        positions = self.param(
            "pos_embed", nn.initializers.normal(0.02), (1, tokens.shape[1] + 1, dim)
        ).astype(tokens.dtype)
        token = jnp.broadcast_to(token.astype(tokens.dtype), (x.shape[0], 1, dim))
        x = jnp.concatenate([token, tokens], axis=1)
        x = x + jnp.broadcast_to(positions, x.shape)
        seen = None
        if prompts is not None:
            if kept is not None:
                images = jnp.ones(x.shape[:2], bool)
                seen = jnp.concatenate([images[:, :1], kept, images[:, 1:]], axis=1)
            x = jnp.concatenate([x[:, :1], prompts.astype(x.dtype), x[:, 1:]], axis=1)
        for index in range(self.depth):
            name = f"blocks.{index}"
            x = x + self._attention(f"{name}.attn", style.layer_norm(f"{name}.norm1")(x), seen)
            x = x + self._perceptron(f"{name}.mlp", style.layer_norm(f"{name}.norm2")(x))
        return style.layer_norm("norm")(x[:, 0])

    def _attention(self, name: str, x: jax.Array, seen: jax.Array | None) -> jax.Array:
        style, heads = self.style, self.heads
        batch, length, dim = x.shape
        x = style.dense(f"{name}.qkv", 3 * dim)(x)
        query, key, value = jnp.moveaxis(x.reshape(batch, length, 3, heads, dim // heads), 2, 0)
        query = query / (dim // heads) ** 0.5
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=style.precision)
        accurate = jnp.promote_types(scores.dtype, jnp.float32)
        where = None if seen is None else jnp.broadcast_to(seen[:, None, None, :], scores.shape)
        weights = jax.nn.softmax(scores.astype(accurate), where=where).astype(x.dtype)
        x = jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision=style.precision)
        return style.dense(f"{name}.proj", dim)(x.reshape(batch, length, dim))

    def _perceptron(self, name: str, x: jax.Array) -> jax.Array:
        x = nn.gelu(self.style.dense(f"{name}.fc1", 4 * self.dim)(x), approximate=False)
        return self.style.dense(f"{name}.fc2", self.dim)(x)


def build(dtype: Any, *, patch: int, size: int, dim: int, depth: int, heads: int) -> VisionTransformer:
    """Build a vision transformer for images of side ``size``, cut into patches of side ``patch``."""
    return VisionTransformer(Style(dtype, epsilon=1e-6), patch, size, dim, depth, heads)


CLASSIFIER = "head"

_TORCHVISION = (
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^norm\.", "encoder.ln."),
    (r"^head\.", "heads.head."),
    (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
)
# torchvision before 0.14, and torchvision's published files, use the second pair of names.
_PERCEPTRON = ((".mlp.0.", ".mlp.3."), (".mlp.linear_1.", ".mlp.linear_2."))


def renamings(**_: Any) -> tuple[Renaming, ...]:
    """Return the renamings for files of a newer torchvision and of an older one, in this order."""

    def torchvision(first: str, second: str) -> Renaming:
        def rename(name: str) -> str:
            for pattern, replacement in _TORCHVISION:
                name = re.sub(pattern, replacement, name)
            return name.replace(".mlp.fc1.", first).replace(".mlp.fc2.", second)

        return rename

    return tuple(torchvision(*pair) for pair in _PERCEPTRON)
