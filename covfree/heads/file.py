"""Write and read heads: as ``.npz`` files, for which NumPy is enough, or as ``.safetensors`` files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.array_file import names_in, read_npz, read_safetensors, write_safetensors
from covfree.core.atomic import replacing
from covfree.core.checks import check_positive
from covfree.core.types import Head, LinearHead
from covfree.heads import CorrectedHead, EnsembleHead, GaussianHead, MappedHead, StudentHead
from covfree.heads.composed import taken
from covfree.heads.file_maps import (
    as_computed,
    check_map,
    filled,
    leaves_of,
    map_arrays,
    plain,
    read_map,
    text_in,
)

_FORMAT, _VERSION = "covfree.Head", 1
_SAFETENSORS = ".safetensors"
_ABOUT = ("format", "version", "kind", "class_names", "map", "origin", "dim")
# The kind of a user's own model, and the prefix of its leaves' names; the file stores only its leaves.
_OWN, _LEAF = "own", "leaf_"
_HEADS: dict[str, Any] = {
    "linear": LinearHead,
    "gaussian": GaussianHead,
    "student": StudentHead,
    "ensemble": EnsembleHead,
}
_INTEGERS = ("label", "client")
# The shapes of each kind's arrays (those in `_INTEGERS` are integers). Every kind may have ``present``.
_FORMS: dict[str, dict[str, tuple[str, ...]]] = {
    "linear": {"weight": ("dim classes",), "bias": ("classes",)},
    "gaussian": {"mean": ("classes dim",), "root": ("classes dim dim", "classes dim"), "bias": ("classes",)},
    "student": {
        **{"root": ("dim dim",), "centre": ("dim",), "mean": ("classes dim",), "parts": ("rows dim",)},
        **dict.fromkeys(("offset", "label"), ("rows",)),
        **dict.fromkeys(("scale", "degrees", "log_prior", "bias"), ("classes",)),
    },
    "ensemble": {
        **{"weight": ("columns dim",), "present": ("classes",)},
        **dict.fromkeys(("bias", "client", "label", "log_share"), ("columns",)),
    },
}
# The arrays of a `CorrectedHead`'s linear term; its classifier is stored as a head of its own kind.
_TERM = {"linear_weight": ("dim classes",), "linear_bias": ("classes",), "linear_scale": ("",)}


class SavedHead(NamedTuple):
    """A head that was read from a file, and what the file says about it.

    Attributes:
        head: the classifier.
        class_names: [C] names of the classes; None if the file has none.
        dim: size of the features, before any feature map. If the map is a network, the size of its output;
            for a user's own model, the ``dim`` that `save_head` was given, or None.
        num_classes: C; for a user's own model the number of class names, or None.
        origin: the ``origin`` that `save_head` was given; None if the file has none.
    """

    head: Head
    class_names: tuple[str, ...] | None
    dim: int | None
    num_classes: int | None
    origin: dict[str, Any] | None = None


def save_head(
    head: Head,
    path: str | PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    dim: int | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a head to an ``.npz`` file of plain arrays, usable with just NumPy, or to ``.safetensors``.

    The file holds ``format``, ``version`` and ``kind``; the arrays of the head by their names, such as
    ``weight [d, C]``, ``bias [C]`` and ``present [C]``; for a `CorrectedHead` also ``linear_weight``,
    ``linear_bias`` and ``linear_scale``; ``class_names [C]`` if given; for a feature map its type as
    ``map``, and its arrays as ``map_…``. docs/how-to.md shows how to use the file. bfloat16 is saved as
    float32, without loss. A ``.safetensors`` file stores texts as JSON in its metadata. An interrupted call
    leaves no file, or the earlier one.

    Args:
        head: a `LinearHead`, `GaussianHead`, `StudentHead` or `EnsembleHead`; one of these with a linear
            term; or one after a feature map, such as a random map, an adapter or a network, whose parameters
            are saved. Or a user's own model, such as a trained `finetune.Model`: any callable pytree of
            arrays. Then the file holds its leaves, and `load_head` needs a model of the same structure.
        path: the file, which is replaced if it exists; ends in ``.npz``, or in ``.safetensors`` (needs the
            ``safetensors`` extra).
        class_names: a name for each class.
        dim: size of the features. Needed for a head after a random map that accepts any size; the file then
            also holds the arrays that the map draws for this size.
        origin: what the head was fitted to, such as the data's name and seed: any object in JSON's types.
            ``covfree fit`` writes it so that ``covfree evaluate`` does not test on training examples.

    Raises:
        TypeError: if the head is no pytree of arrays or cannot be called, or ``dim`` is no integer.
        ValueError: if the head or its map is not finite (without x64: in float32); if the map does not fit
            the head, is before another, or has an array where it needs a number; if there is not one class
            name for each class; if ``dim`` is missing or does not fit; or if ``path`` has another ending.

    >>> import tempfile, jax.numpy as jnp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_head(LinearHead(jnp.eye(2), jnp.zeros(2)), f"{folder}/head.npz", class_names=["cat", "dog"])
    ...     saved = load_head(f"{folder}/head.npz")
    >>> saved.class_names[int(saved.head(jnp.array([0.2, 0.7])).argmax())]
    'dog'
    """
    head = taken(head)
    if isinstance(head, MappedHead) and isinstance(head.head, MappedHead):
        raise ValueError("head: expected one map of features at most, got a map before another")
    inner, term = _without_term(head.head if isinstance(head, MappedHead) else head)
    kind = next((name for name, make in _HEADS.items() if isinstance(inner, make)), _OWN)
    if Path(path).suffix not in (".npz", _SAFETENSORS):
        raise ValueError(f"path: expected a file that ends in .npz or {_SAFETENSORS}, got {str(path)!r}")
    arrays = _own_arrays(head, dim) if kind == _OWN else _arrays(head, kind, inner, term, dim)
    about: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "kind": kind}
    if class_names is not None:
        about["class_names"] = np.array(list(class_names), str)
        _check_names(about["class_names"], arrays)
    if origin is not None:
        about["origin"] = np.array(json.dumps(dict(origin)))
    arrays = about | arrays
    with replacing(Path(path)) as file:
        if Path(path).suffix == _SAFETENSORS:
            file.write(write_safetensors({name: np.asarray(array) for name, array in arrays.items()}))
        else:
            np.savez(file, **arrays)


def _arrays(head: Head, kind: str, inner: Any, term: dict[str, Any], dim: int | None) -> dict[str, Any]:
    """Check and return a head's arrays by name, from its classifier ``inner`` and linear ``term``."""
    feature_map: Any = head.feature_map if isinstance(head, MappedHead) else None
    own = {} if feature_map is None else map_arrays(feature_map)
    leaves = {each.name: getattr(inner, each.name) for each in fields(inner)}
    arrays = {name: plain(leaf) for name, leaf in (leaves | term).items() if leaf is not None}
    try:
        _check_parts(kind, arrays)
        _check_finite(arrays | own)
        if own:
            check_map(own, _size_in(arrays))
    except ValueError as error:
        raise ValueError(f"head: {error}") from error
    drawn = getattr(feature_map, "drawn", None)
    # The number of input features is known for `BucketFeatures`: its array ``thresholds`` has a row for each.
    # Other random maps accept any number.
    known = _size_in(arrays) if drawn is None else len(own.get("map_thresholds", ())) or None
    if dim is None and known is None:
        raise ValueError("dim: expected the size of the features that come into the random map, got None")
    size: Any = known if dim is None else check_positive("dim", dim)
    if size != (known or size):
        raise ValueError(f"dim: expected {known}, as the head has it, got {dim}")
    if drawn is not None:
        own |= {f"map_{name}": plain(array) for name, array in drawn(size).items()}
    return own | arrays


def _own_arrays(head: Any, dim: int | None) -> dict[str, Any]:
    """Check and return the arrays of a user's own model by name, with ``dim`` if it is known."""
    if not callable(head) or jax.tree_util.all_leaves([head]) or not jax.tree.leaves(head):
        hint = "jax.tree_util.register_dataclass makes a dataclass one"
        raise TypeError(
            "head: expected a LinearHead, GaussianHead or StudentHead, perhaps behind a map of features, or "
            f"a callable pytree of arrays, got {type(head).__name__}; "
            f"{'pass its .head' if isinstance(head, SavedHead) else hint}"
        )
    arrays = leaves_of(head, _LEAF)
    _check_finite(arrays, "head: ")
    return arrays if dim is None else {**arrays, "dim": np.array(check_positive("dim", dim))}


def load_head(path: str | PathLike[str], *, network: Any = None) -> SavedHead:
    """Read a head from a file that `save_head`, ``covfree fit --out`` or ``covfree finetune --out`` wrote.

    Args:
        path: the file.
        network: the code that the file lacks: for a head on a trained network, the network, as a
            ``finetune.NetworkMap(params, backbone, preprocessing)``; for a user's own model, the model. Its
            parameters must have the file's names and shapes; their values are replaced by the file's.

    Returns:
        The head, and the class names, sizes and origin that the file states.

    Raises:
        ValueError: if the file is no head, is damaged, or was written by a later version; the message names
            the file and the fault.
        FileNotFoundError: if there is no such file.
    """
    arrays = (read_safetensors if Path(path).suffix == _SAFETENSORS else read_npz)(Path(path))
    try:
        return _read(arrays, network)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(arrays: dict[str, np.ndarray], network: Any) -> SavedHead:
    if text_in(arrays, "format") != _FORMAT:
        raise ValueError(f"expected a head written by save_head, got arrays {sorted(arrays)}")
    version = arrays.get("version", np.zeros(0))
    if version.shape or version != _VERSION:
        raise ValueError(f"expected a head of version {_VERSION}, got version {version}; is covfree too old?")
    kind = text_in(arrays, "kind")
    if kind not in (*_HEADS, _OWN):
        raise ValueError(f"kind: expected one of {', '.join((*_HEADS, _OWN))}, got {kind!r}")
    stored = {name: array for name, array in arrays.items() if name not in _ABOUT}
    parts = {name: array for name, array in stored.items() if name[:4] != "map_"}
    if kind != _OWN:
        _check_parts(kind, parts)
    elif network is None:
        raise ValueError(
            "network: expected the model whose leaves the file holds, or one of the same structure, got None"
        )
    names = arrays.get("class_names")
    if names is not None:
        _check_names(names, parts)
        names = names_in(names)
    _check_finite(stored)
    if kind == _OWN:
        size, number = arrays.get("dim"), None if names is None else len(names)
        head = filled(network, stored, _LEAF)
        return SavedHead(head, names, None if size is None else int(size), number, _origin_in(arrays))
    leaves = {name: jnp.asarray(array) for name, array in parts.items()}
    term = [leaves.pop(name) for name in _TERM if name in leaves]
    head = _HEADS[kind](**leaves)
    if term:
        weight, bias, scale = term
        head = CorrectedHead(head, LinearHead(weight, bias), scale)
    dim = _size_in(parts)
    if "map" in arrays:
        feature_map, dim = read_map(arrays, dim, network)
        head = MappedHead(feature_map, head)
    return SavedHead(head, names, dim, _classes_in(parts), _origin_in(arrays))


def _without_term(head: Any) -> tuple[Any, dict[str, Any]]:
    """Split a `CorrectedHead` into its classifier and its term's arrays by name; {} for other heads."""
    if not isinstance(head, CorrectedHead):
        return head, {}
    linear, present = head.linear, getattr(head.head, "present", None)
    # A class that the classifier lacks has a score of −∞, whatever the linear term's mask says.
    kept = np.ones(1, bool) if present is None else np.asarray(present) > 0
    if linear.present is not None and (kept & (np.asarray(linear.present) <= 0)).any():
        raise ValueError(
            "head: expected a linear term for all classes of the classifier, got one that lacks some"
        )
    return head.head, dict(zip(_TERM, (linear.weight, linear.bias, head.scale), strict=True))


def _check_finite(arrays: Mapping[str, np.ndarray], start: str = "") -> None:
    """Raise a ValueError, which begins with ``start``, if a float is not finite in jax's data type."""
    for name, array in arrays.items():
        finite = np.isfinite(as_computed(array)) if array.dtype.kind == "f" else np.True_
        if not finite.all():
            place = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(f"{start}{name}: expected finite numbers, got {array[place]} at {place}")


def _check_parts(kind: str, parts: Mapping[str, Any]) -> None:
    """Raise a ValueError if names, shapes or data types of the arrays are not those of a ``kind`` head."""
    needed = {**_FORMS[kind], **(_TERM if "linear_weight" in parts else {})}
    forms, sizes = {**needed, "present": ("classes",)}, {}

    def fits(name: str, form: str) -> bool:
        shape, axes = np.shape(parts[name]), form.split()
        kind = jnp.integer if name in _INTEGERS else jnp.floating
        same = all(sizes.setdefault(*each) == each[1] > 0 for each in zip(axes, shape, strict=False))
        return same and len(axes) == len(shape) and jnp.issubdtype(parts[name].dtype, kind)

    given = {*needed} <= {*parts} <= {*forms}
    if not given or not all(any(fits(name, form) for form in forms[name]) for name in forms if name in parts):
        got = {name: f"{part.dtype}{list(part.shape)}" for name, part in parts.items()}
        wanted = ", ".join(f"{name} [{' or '.join(form)}]" for name, form in needed.items())
        raise ValueError(f"expected a {kind} head of floats {wanted}, perhaps present [classes], got {got}")


def _check_names(names: np.ndarray, parts: Mapping[str, Any]) -> None:
    own = any(name.startswith(_LEAF) for name in parts)
    classes = len(names) if own and names.ndim else _classes_in(parts)
    if names.shape != (classes,) or names.dtype.kind not in "SU":
        raise ValueError(
            f"class_names: expected {classes} names, one for each class, got {names.dtype}{list(names.shape)}"
        )


def _classes_in(parts: Mapping[str, Any]) -> int:
    if "client" in parts:
        return parts["present"].shape[0]
    return parts["weight"].shape[1] if "weight" in parts else parts["mean"].shape[0]


def _size_in(parts: Mapping[str, Any]) -> int:
    if "client" in parts:
        return parts["weight"].shape[1]
    return parts["weight"].shape[0] if "weight" in parts else parts["mean"].shape[1]


def _origin_in(arrays: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    if "origin" not in arrays:
        return None
    try:
        return dict(json.loads(text_in(arrays, "origin") or ""))
    except (ValueError, TypeError) as error:
        raise ValueError(f"origin: expected JSON of an object ({error})") from error
