"""Maps of features in heads' files: their numbers, and what random ones draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.statistics.feature_maps import Adapter, FourierFeatures, ReluFeatures

# The numbers of each map. What random ones draw from their seed is written beside them, for NumPy.
_MAPS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "fourier": (FourierFeatures, ("sigma", "seed", "num_features", "unit")),
    "relu": (ReluFeatures, ("seed", "num_features")),
    "adapter": (Adapter, ("down", "up")),
}
# A map whose ``params`` alone are in the file.
_NETWORK = "network"


def read_map(arrays: dict[str, np.ndarray], size: int, network: Any = None) -> Any:
    """The map of features in a file.

    Args:
        arrays: what the file holds.
        size: of the features which come out.
        network: of a network's parameters, a map that has such parameters.
    """
    kind = text_in(arrays, "map")
    if kind == _NETWORK:
        return _with_parameters(network, arrays)
    if kind not in _MAPS:
        raise ValueError(f"map: expected one of {', '.join((*_MAPS, _NETWORK))}, got {kind!r}")
    make, names = _MAPS[kind]
    if missing := [f"map_{name}" for name in names if f"map_{name}" not in arrays]:
        raise ValueError(f"expected arrays {', '.join(missing)} of the map, got {sorted(arrays)}")
    check_map(arrays, size)
    if make is Adapter:
        return Adapter(jnp.asarray(arrays["map_down"]), jnp.asarray(arrays["map_up"]))
    feature_map = make(**{name: arrays[f"map_{name}"].item() for name in names})
    directions = arrays.get("map_directions", np.zeros(0))
    if directions.ndim != 2 or not len(directions):
        raise ValueError(f"map_directions: expected [dim, {size}], got {list(directions.shape)}")
    for name, drawn in feature_map.drawn(directions.shape[0]).items():
        stored = arrays.get(f"map_{name}", np.zeros(0))
        same = stored.shape == drawn.shape and stored.dtype.kind == "f"
        if not same or not np.allclose(stored, drawn, rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"map_{name}: expected what seed {feature_map.seed} draws with this version of jax; the file "
                "is of another version, or was altered"
            )
    return feature_map


def _with_parameters(network: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The network's map with the parameters in a file."""
    if network is None:
        raise ValueError(
            "network: expected the map whose parameters the file holds, such as "
            "finetune.NetworkMap(params, backbone, None), got None"
        )
    own = {f"map_{name}": leaf for name, leaf in _parameters(network.params).items()}
    shapes = {name: list(array.shape) for name, array in arrays.items() if name.startswith("map_")}
    wanted = {name: list(np.shape(leaf)) for name, leaf in own.items()}
    if different := sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name)):
        name = different[0]
        raise ValueError(
            f"network: expected one with the file's parameters; {name}: {wanted.get(name)} in the network, "
            f"{shapes.get(name)} in the file"
        )
    leaves = [jnp.asarray(arrays[name]).astype(jnp.asarray(leaf).dtype) for name, leaf in own.items()]
    return replace(network, params=jax.tree.unflatten(jax.tree.structure(network.params), leaves))


def _parameters(params: Any) -> dict[str, Any]:
    """The leaves of a pytree, by name."""
    found = jax.tree_util.tree_flatten_with_path(params)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def map_arrays(feature_map: Any) -> dict[str, np.ndarray]:
    """What a file holds of a map of features, by name, but what it draws."""
    kind = next((name for name, (make, _) in _MAPS.items() if isinstance(feature_map, make)), None)
    if kind is None:
        params = getattr(feature_map, "params", None)
        if params is None or not is_dataclass(feature_map):
            raise TypeError(
                "head: expected a map of fourier_features, relu_features, an adapter or a network before it, "
                f"a dataclass with params, got {type(feature_map).__name__}"
            )
        own = {f"map_{name}": plain(leaf) for name, leaf in _parameters(params).items()}
        return {"map": np.array(_NETWORK), **own}
    arrays = {f"map_{name}": plain(getattr(feature_map, name)) for name in _MAPS[kind][1]}
    return {"map": np.array(kind), **arrays}


def check_map(arrays: Mapping[str, np.ndarray], size: int) -> None:
    """Raise unless these are the numbers of a map from which features of this size come out.

    Of a network that is known only when it is called.
    """
    if str(arrays["map"]) == _NETWORK:
        return
    make, names = _MAPS[str(arrays["map"])]
    if make is Adapter:
        down, up = arrays["map_down"], arrays["map_up"]
        right = down.ndim == 2 and down.shape[0] == size and up.shape == down.shape[::-1]
        if not right or {down.dtype.kind, up.dtype.kind} != {"f"}:
            raise ValueError(
                f"expected floats map_down [{size}, rank] and map_up [rank, {size}], got "
                f"{down.dtype}{list(down.shape)} and {up.dtype}{list(up.shape)}"
            )
        return
    for name in names:
        number = arrays[f"map_{name}"]
        if number.shape or number.dtype.kind not in ("fiu" if name == "sigma" else "iub"):
            raise ValueError(f"map_{name}: expected one number, got {number.dtype}{list(number.shape)}")
    if arrays["map_num_features"] != size:
        got = arrays["map_num_features"]
        raise ValueError(f"map_num_features: expected {size}, as the head has it, got {got}")
    if "map_sigma" in arrays and not as_computed(arrays["map_sigma"]) > 0:
        raise ValueError(f"map_sigma: expected a number above 0, got {arrays['map_sigma']}")


def as_computed(array: np.ndarray) -> np.ndarray:
    """As jax takes it: without x64, float64 becomes float32."""
    with np.errstate(over="ignore"):
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def text_in(arrays: Mapping[str, np.ndarray], name: str) -> str | None:
    """A text in the arrays of a file; None if it is not there."""
    array = arrays.get(name, np.zeros(0))
    return array.item() if array.ndim == 0 and array.dtype.kind == "U" else None


def plain(value: Any) -> np.ndarray:
    """As NumPy has it, which knows no bfloat16."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array
