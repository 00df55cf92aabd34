"""Heads in files: ``.npz``, for covfree to load and for NumPy alone to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covfree.atomic import replacing
from covfree.data.dataset import names_in, read_npz
from covfree.engine.finite import finite
from covfree.feature_maps import Adapter, FourierFeatures, ReluFeatures
from covfree.heads import GaussianHead, MappedHead
from covfree.types import Head, LinearHead

_FORMAT, _VERSION = "covfree.Head", 1
_ABOUT = ("format", "version", "kind", "class_names", "map")
_HEADS: dict[str, Any] = {"linear": LinearHead, "gaussian": GaussianHead}
# The numbers of each map. What random ones draw from their seed is written beside them, for NumPy.
_MAPS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "fourier": (FourierFeatures, ("sigma", "seed", "num_features", "unit")),
    "relu": (ReluFeatures, ("seed", "num_features")),
    "adapter": (Adapter, ("down", "up")),
}


class SavedHead(NamedTuple):
    """What a head's file holds.

    Attributes:
        head: the classifier.
        class_names: [C] names of the classes; None if the file has none.
        dim: size of the features that the head takes, before any map.
        num_classes: C.
    """

    head: Head
    class_names: tuple[str, ...] | None
    dim: int
    num_classes: int


def save_head(
    head: Head,
    path: str | PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    dim: int | None = None,
) -> None:
    """Write a head to an ``.npz`` file of plain arrays, which NumPy alone can use.

    The file holds ``format``, ``version`` and ``kind``; the arrays of the head by their names, such as
    ``weight [d, C]``, ``bias [C]`` and ``present [C]``; ``class_names [C]`` if there are any; and of a map of
    features ``map`` and its arrays as ``map_…``. docs/how-to.md shows its use. An interrupted call leaves no
    file, or the earlier one. bfloat16 becomes float32, which holds the same numbers.

    Args:
        head: a `LinearHead` or `GaussianHead`, or what `fit` and fine-tuning make of these behind a map.
        path: the file, which is replaced if it is there.
        class_names: a name for each class.
        dim: size of the features that come in. Needed for a head behind a random map, which does not know it:
            the directions that it draws for them are in the file.

    Raises:
        TypeError: if the head is of another kind.
        ValueError: if the head is not finite, there is not one name for each class, or ``dim`` is missing or
            does not fit.

    >>> import tempfile, jax.numpy as jnp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_head(LinearHead(jnp.eye(2), jnp.zeros(2)), f"{folder}/head.npz", class_names=["cat", "dog"])
    ...     saved = load_head(f"{folder}/head.npz")
    >>> saved.class_names[int(saved.head(jnp.array([0.2, 0.7])).argmax())]
    'dog'
    """
    inner: Any = head.head if isinstance(head, MappedHead) else head
    kind = next((name for name, make in _HEADS.items() if isinstance(inner, make)), None)
    if kind is None:
        raise TypeError(
            "head: expected a LinearHead or a GaussianHead, perhaps behind a map of features, got "
            f"{type(inner).__name__}"
        )
    arrays = {name: leaf for name, leaf in inner._asdict().items() if leaf is not None}
    try:
        _check_parts(kind, arrays)
    except ValueError as error:
        raise ValueError(f"head: {error}") from error
    finite(inner)
    about: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "kind": kind}
    if class_names is not None:
        about["class_names"] = np.array(list(class_names), str)
        _check_names(about["class_names"], arrays)
    if isinstance(head, MappedHead):
        about |= _map_arrays(head.feature_map, dim)
    else:
        _check_dim(dim, _size_in(arrays))
    plain: Any = {name: _plain(value) for name, value in {**about, **arrays}.items()}
    with replacing(Path(path)) as file:
        np.savez(file, **plain)


def load_head(path: str | PathLike[str]) -> SavedHead:
    """Read a head that `save_head` wrote, or the ``--out`` of ``covfree fit`` and ``covfree finetune``.

    Args:
        path: the file.

    Returns:
        The head, its classes' names and its sizes.

    Raises:
        ValueError: if the file is no such file, is damaged, or was written by a later version; the message
            names the file and what is wrong with it.
        FileNotFoundError: if there is no such file.
    """
    arrays = read_npz(Path(path))
    try:
        return _read(arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(arrays: dict[str, np.ndarray]) -> SavedHead:
    if _text(arrays, "format") != _FORMAT:
        raise ValueError(f"expected a head written by save_head, got arrays {sorted(arrays)}")
    version = arrays.get("version", np.zeros(0))
    if version.shape or version != _VERSION:
        raise ValueError(f"expected a head of version {_VERSION}, got version {version}; is covfree too old?")
    kind = _text(arrays, "kind")
    if kind not in _HEADS:
        raise ValueError(f"kind: expected one of {', '.join(_HEADS)}, got {kind!r}")
    parts = {name: array for name, array in arrays.items() if name not in _ABOUT and name[:4] != "map_"}
    _check_parts(kind, parts)
    names = arrays.get("class_names")
    if names is not None:
        _check_names(names, parts)
        names = names_in(names)
    for name, array in parts.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers")
    head = _HEADS[kind](**{name: jnp.asarray(array) for name, array in parts.items()})
    dim = _size_in(parts)
    if "map" in arrays:
        head = MappedHead(_read_map(arrays, dim), head)
        dim = arrays.get("map_directions", np.zeros((dim, 0))).shape[0]
    return SavedHead(head, names, dim, _classes_in(parts))


def _read_map(arrays: dict[str, np.ndarray], size: int) -> Any:
    """The map of features in a file; ``size`` is that of the features which come out."""
    kind = _text(arrays, "map")
    if kind not in _MAPS:
        raise ValueError(f"map: expected one of {', '.join(_MAPS)}, got {kind!r}")
    make, names = _MAPS[kind]
    own = {name[4:]: array for name, array in arrays.items() if name.startswith("map_")}
    if missing := [f"map_{name}" for name in names if name not in own]:
        raise ValueError(f"expected arrays {', '.join(missing)} of the map, got {sorted(arrays)}")
    if make is Adapter:
        down, up = own["down"], own["up"]
        if down.ndim != 2 or up.shape != down.shape[::-1] or down.shape[0] != size:
            raise ValueError(
                f"expected map_down [{size}, rank] and map_up [rank, {size}], got {list(down.shape)} and "
                f"{list(up.shape)}"
            )
        return Adapter(jnp.asarray(down), jnp.asarray(up))
    if own["num_features"] != size:
        raise ValueError(f"map_num_features: expected {size}, as the head has it, got {own['num_features']}")
    feature_map = make(**{name: own[name].item() for name in names})
    directions = own.get("directions", np.zeros(0))
    if directions.ndim != 2:
        raise ValueError(f"map_directions: expected [dim, {size}], got {list(directions.shape)}")
    for name, drawn in feature_map.drawn(directions.shape[0]).items():
        stored = own.get(name, np.zeros(0))
        if stored.shape != drawn.shape or not np.allclose(stored, drawn, rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"map_{name}: expected what seed {feature_map.seed} draws with this version of jax; the file "
                "is of another version, or was altered"
            )
    return feature_map


def _map_arrays(feature_map: Any, dim: int | None) -> dict[str, Any]:
    """What a file holds of a map of features, by name."""
    kind = next((name for name, (make, _) in _MAPS.items() if isinstance(feature_map, make)), None)
    if kind is None:
        raise TypeError(
            "head: expected a map of fourier_features, relu_features or an adapter before it, got "
            f"{type(feature_map).__name__}"
        )
    arrays = {name: getattr(feature_map, name) for name in _MAPS[kind][1]}
    if isinstance(feature_map, Adapter):
        _check_dim(dim, feature_map.down.shape[0])
    elif dim is None:
        raise ValueError("dim: expected the size of the features that come into the random map, got None")
    else:
        arrays |= feature_map.drawn(dim)
    return {"map": kind, **{f"map_{name}": value for name, value in arrays.items()}}


def _check_dim(dim: int | None, own: int) -> None:
    if dim is not None and dim != own:
        raise ValueError(f"dim: expected {own}, as the head has it, got {dim}")


def _check_parts(kind: str, parts: Mapping[str, Any]) -> None:
    """Raise unless these are the arrays of a head of this kind."""
    names, sizes = ("weight", "bias", "present"), "weight [dim, classes]"
    if kind == "gaussian":
        names, sizes = ("mean", "root", "bias", "present"), "mean and root [classes, dim, …]"
    shapes = {name: np.shape(part) for name, part in parts.items()}
    right = {*names[:-1]} <= {*parts} <= {*names} and len(shapes[names[0]]) == 2
    if right:
        classes = (_classes_in(parts),)
        right = shapes["bias"] == classes and shapes.get("present", classes) == classes
        mean = shapes.get("mean", ())
        right &= kind == "linear" or shapes["root"] in (mean, (*mean, *mean[1:]))
    if not right or not all(jnp.issubdtype(part.dtype, jnp.floating) for part in parts.values()):
        got = {name: f"{part.dtype}{list(part.shape)}" for name, part in parts.items()}
        raise ValueError(
            f"expected a {kind} head of floats {sizes}, bias [classes] and perhaps present [classes], got "
            f"{got}"
        )


def _check_names(names: np.ndarray, parts: Mapping[str, Any]) -> None:
    classes = _classes_in(parts)
    if names.shape != (classes,) or names.dtype.kind not in "SU":
        raise ValueError(
            f"class_names: expected {classes} names, one for each class, got {names.dtype}{list(names.shape)}"
        )


def _classes_in(parts: Mapping[str, Any]) -> int:
    return parts["weight"].shape[1] if "weight" in parts else parts["mean"].shape[0]


def _size_in(parts: Mapping[str, Any]) -> int:
    return parts["weight"].shape[0] if "weight" in parts else parts["mean"].shape[1]


def _text(arrays: Mapping[str, np.ndarray], name: str) -> str | None:
    array = arrays.get(name, np.zeros(0))
    return array.item() if array.ndim == 0 and array.dtype.kind == "U" else None


def _plain(value: Any) -> np.ndarray:
    """As NumPy has it, which knows no bfloat16."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array
