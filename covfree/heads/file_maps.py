"""Write and read feature maps in heads' files: their parameters, and the arrays that random maps draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.statistics.buckets import MOST_BITS, BucketFeatures
from covfree.statistics.deep_features import DeepFeatures
from covfree.statistics.feature_maps import Adapter, FourierFeatures, ReluFeatures

# For each kind of map: its class, the names of its hyperparameters, and those of its arrays. A file also has
# the arrays that a random map draws, so that NumPy alone can compute the map.
_MAPS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "fourier": (FourierFeatures, ("sigma", "seed", "num_features", "unit"), ()),
    "relu": (ReluFeatures, ("seed", "num_features"), ()),
    "buckets": (BucketFeatures, ("seed", "group_size"), ("thresholds",)),
    "deep": (DeepFeatures, ("seed", "num_features", "inner"), ("layers",)),
    "adapter": (Adapter, (), ("down", "up")),
}
# For each random map, the array with a row for each input feature ("deep" has one row more).
_BY_FEATURE = {"fourier": "directions", "relu": "directions", "buckets": "thresholds", "deep": "input"}
# The kind of a map that is a network; the file stores its ``params`` alone.
_NETWORK = "network"


def read_map(arrays: dict[str, np.ndarray], size: int, network: Any = None) -> tuple[Any, int]:
    """Return the feature map that a file's arrays describe, and the number of features that it takes.

    ``size`` is the number of features that the map must return. For a network the second result is ``size``
    too.
    """
    kind = text_in(arrays, "map")
    if kind == _NETWORK:
        if network is None:
            raise ValueError(
                "network: expected the map whose parameters the file holds, such as "
                "finetune.NetworkMap(params, backbone, None), got None"
            )
        return replace(network, params=filled(network.params, arrays, "map_")), size
    if kind not in _MAPS:
        raise ValueError(f"map: expected one of {', '.join((*_MAPS, _NETWORK))}, got {kind!r}")
    make, numbers, tables = _MAPS[kind]
    if missing := [f"map_{name}" for name in (*numbers, *tables) if f"map_{name}" not in arrays]:
        raise ValueError(f"expected arrays {', '.join(missing)} of the map, got {sorted(arrays)}")
    check_map(arrays, size)
    own: dict[str, Any] = {name: arrays[f"map_{name}"].item() for name in numbers}
    own |= {name: jnp.asarray(arrays[f"map_{name}"]) for name in tables}
    if make is DeepFeatures:
        own["layers"] = tuple(own["layers"])
    feature_map = make(**own)
    if make is Adapter:
        return feature_map, size
    place = f"map_{_BY_FEATURE[kind]}"
    directions = arrays.get(place, np.zeros(0))
    dim = len(directions) - (kind == "deep") if directions.ndim == 2 else 0
    if dim < 1:
        raise ValueError(f"{place}: expected [dim, …], a row for each feature, got {list(directions.shape)}")
    for name, drawn in feature_map.drawn(dim).items():
        stored = arrays.get(f"map_{name}", np.zeros(0))
        same = stored.shape == drawn.shape and stored.dtype.kind == np.dtype(drawn.dtype).kind
        if not same or not np.allclose(stored, drawn, rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"map_{name}: expected the numbers that seed {feature_map.seed} gives in this version of "
                "jax, got others; the file was written with another version, or altered"
            )
    return feature_map, dim


def filled(tree: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """Return ``tree`` with its leaves replaced by a file's arrays.

    A leaf's array is named ``prefix`` plus the leaf's path in the tree, as in `leaves_of`. Raise ValueError
    unless the names with this prefix, and the shapes, are those of the leaves.
    """
    own = leaves_of(tree, prefix)
    shapes = {name: list(array.shape) for name, array in arrays.items() if name.startswith(prefix)}
    wanted = {name: list(leaf.shape) for name, leaf in own.items()}
    if different := sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name)):
        name = different[0]
        raise ValueError(
            f"network: expected one with the file's parameters; {name}: {wanted.get(name)} in the network, "
            f"{shapes.get(name)} in the file"
        )
    leaves, structure = jax.tree.flatten(tree)
    read = [
        jnp.asarray(arrays[name]).astype(jnp.asarray(leaf).dtype)
        for name, leaf in zip(own, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, read)


def leaves_of(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Return a pytree's leaves as NumPy arrays by name: the prefix, then the leaf's path in the pytree.

    Raise a TypeError if a leaf is neither an array nor a number, or two leaves have one name.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = prefix + jax.tree_util.keystr(path, simple=True, separator="/")
        if name in found or not (isinstance(leaf, (bool, int, float)) or hasattr(leaf, "__array__")):
            kind = "two leaves of that name" if name in found else type(leaf).__name__
            raise TypeError(f"head: expected leaves that are arrays with distinct names, got {name}: {kind}")
        found[name] = plain(leaf)
    return found


def map_arrays(feature_map: Any) -> dict[str, np.ndarray]:
    """Return the kind and the parameters of a feature map as named arrays, for a head's file.

    Arrays that the map draws from its seed are left out.
    """
    kind = next((name for name, (make, *_) in _MAPS.items() if isinstance(feature_map, make)), None)
    if kind is None:
        params = getattr(feature_map, "params", None)
        if params is None or not is_dataclass(feature_map):
            raise TypeError(
                "head: expected a map of fourier_features, relu_features, an adapter or a network before it, "
                f"a dataclass with params, got {type(feature_map).__name__}"
            )
        return {"map": np.array(_NETWORK), **leaves_of(params, "map_")}
    _, numbers, tables = _MAPS[kind]
    arrays = {f"map_{name}": plain(getattr(feature_map, name)) for name in (*numbers, *tables)}
    return {"map": np.array(kind), **arrays}


def check_map(arrays: Mapping[str, np.ndarray], size: int) -> None:
    """Raise a ValueError if the arrays do not describe a feature map that returns ``size`` features.

    A network is not checked: its output size is known only when it is called.
    """
    kind = str(arrays["map"])
    if kind == _NETWORK:
        return
    for name in _MAPS[kind][1]:
        number = arrays[f"map_{name}"]
        if number.shape or number.dtype.kind not in ("fiu" if name == "sigma" else "iub"):
            raise ValueError(f"map_{name}: expected one number, got {number.dtype}{list(number.shape)}")
    tables = {name: arrays[f"map_{name}"] for name in _MAPS[kind][2]}
    got = " and ".join(f"{table.dtype}{list(table.shape)}" for table in tables.values())
    if any(table.dtype.kind != "f" for table in tables.values()):
        raise ValueError(f"expected floats map_{', map_'.join(tables)}, got {got}")
    width = arrays.get("map_num_features", np.array(size)).item()
    if kind == "adapter":
        down, up = tables["down"], tables["up"]
        if down.ndim != 2 or down.shape[0] != size or up.shape != down.shape[::-1]:
            raise ValueError(f"expected floats map_down [{size}, rank] and map_up [rank, {size}], got {got}")
    elif kind == "buckets":
        group, shape = arrays["map_group_size"].item(), tables["thresholds"].shape
        if len(shape) != 2 or not 0 < group <= MOST_BITS or not shape[0] * shape[1]:
            raise ValueError(
                f"expected map_thresholds [dim, buckets] in groups of 1 to {MOST_BITS}, got {got}"
            )
        width = BucketFeatures(tables["thresholds"], 0, group).num_features
    elif kind == "deep" and tables["layers"].shape[1:] != (arrays["map_inner"].item(), width):
        raise ValueError(f"expected map_layers [layers, {arrays['map_inner']}, {width}], got {got}")
    if width != size:
        raise ValueError(f"map_num_features: expected {size}, as the head has it, got {width}")
    if "map_sigma" in arrays and not as_computed(arrays["map_sigma"]) > 0:
        raise ValueError(f"map_sigma: expected a number above 0, got {arrays['map_sigma']}")


def as_computed(array: np.ndarray) -> np.ndarray:
    """Convert an array to the data type that jax gives it: without x64, float64 becomes float32."""
    with np.errstate(over="ignore"):
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def text_in(arrays: Mapping[str, np.ndarray], name: str) -> str | None:
    """Return the text that a file's arrays hold under ``name``; None if there is none."""
    array = arrays.get(name, np.zeros(0))
    return array.item() if array.ndim == 0 and array.dtype.kind == "U" else None


def plain(value: Any) -> np.ndarray:
    """Convert to a NumPy array; bfloat16, which NumPy lacks, to float32."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array
