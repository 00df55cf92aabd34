"""BERT for sentence encoders, which maps the tokens of a text to the mean of the last layer's vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from covfree.backbones.layers import Style
from covfree.backbones.sentence import BertSizes


class Bert(nn.Module):
    """BERT without its pooler; parameters have the names of Hugging Face's tensors."""

    sizes: BertSizes

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "batch length"], counts: Int[Array, " batch"]
    ) -> Float[Array, "batch features"]:
        """Return the mean of the last layer's vectors over each row's first ``counts`` tokens.

        Later tokens are padding.
        """
        sizes, style = self.sizes, Style(jnp.float32, epsilon=self.sizes.layer_norm_eps)
        batch, length = tokens.shape
        held = jnp.arange(length)[None] < counts[:, None]
        embedded = {
            name: nn.Embed(size, sizes.hidden_size, name=f"embeddings.{name}_embeddings")
            for name, size in (
                ("word", sizes.vocab_size),
                ("position", sizes.max_position_embeddings),
                ("token_type", sizes.type_vocab_size),
            )
        }
        positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
        x = embedded["word"](tokens) + embedded["position"](positions)
        # A single sentence has token type 0.
        x = style.layer_norm("embeddings.LayerNorm")(x + embedded["token_type"](jnp.zeros_like(tokens)))
        for index in range(sizes.num_hidden_layers):
            name = f"encoder.layer.{index}"
            seen = self._attention(f"{name}.attention", x, held)
            x = style.layer_norm(f"{name}.attention.output.LayerNorm")(x + seen)
            inner = style.dense(f"{name}.intermediate.dense", sizes.intermediate_size)(x)
            inner = style.dense(f"{name}.output.dense", sizes.hidden_size)(nn.gelu(inner, approximate=False))
            x = style.layer_norm(f"{name}.output.LayerNorm")(x + inner)
        return jnp.where(held[..., None], x, 0).sum(1) / counts[:, None].astype(x.dtype)

    def _attention(self, name: str, x: jax.Array, held: jax.Array) -> jax.Array:
        sizes, style = self.sizes, Style(jnp.float32)
        shape = (*x.shape[:2], sizes.num_attention_heads, sizes.hidden_size // sizes.num_attention_heads)
        query, key, value = (
            style.dense(f"{name}.self.{part}", sizes.hidden_size)(x).reshape(shape)
            for part in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=style.precision) / shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(held[:, None, None], scores, -jnp.inf))
        x = jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision=style.precision)
        return style.dense(f"{name}.output.dense", sizes.hidden_size)(x.reshape(*shape[:2], -1))
