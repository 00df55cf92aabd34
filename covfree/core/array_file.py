"""Arrays by name in a ``.safetensors`` file: numbers as its tensors, texts as its metadata, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from covfree.core.optional import optional


def write_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a file of these arrays. Needs the ``safetensors`` extra, as `read_safetensors` does."""
    texts = {name: json.dumps(array.tolist()) for name, array in arrays.items() if array.dtype.kind == "U"}
    tensors = {name: array.copy(order="C") for name, array in arrays.items() if name not in texts}
    return optional("safetensors.numpy", "safetensors").save(tensors, metadata=texts)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file.

    Raises:
        ValueError: if the file is cut short or of another kind; it names the path.
        FileNotFoundError: if there is no such file.
    """
    safetensors = optional("safetensors", "safetensors")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names, texts = file.keys(), file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in names}
        return arrays | {name: np.asarray(json.loads(text)) for name, text in texts.items()}
    # The second, of metadata that are no JSON.
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: expected a safetensors file of arrays ({error})") from error
