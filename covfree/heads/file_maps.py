"""Maps of features in heads' files: their numbers, and what random ones draw."""

from __future__ import annotations

from collections.abc import Mapping
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


def read_map(arrays: dict[str, np.ndarray], size: int) -> Any:
    """The map of features in a file; ``size`` is that of the features which come out."""
    kind = text_in(arrays, "map")
    if kind not in _MAPS:
        raise ValueError(f"map: expected one of {', '.join(_MAPS)}, got {kind!r}")
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


def map_arrays(feature_map: Any) -> dict[str, np.ndarray]:
    """What a file holds of a map of features, by name, but what it draws."""
    kind = next((name for name, (make, _) in _MAPS.items() if isinstance(feature_map, make)), None)
    if kind is None:
        raise TypeError(
            "head: expected a map of fourier_features, relu_features or an adapter before it, got "
            f"{type(feature_map).__name__}; of a trained network save result.head, and beside it "
            "result.feature_map.params"
        )
    arrays = {f"map_{name}": plain(getattr(feature_map, name)) for name in _MAPS[kind][1]}
    return {"map": np.array(kind), **arrays}


def check_map(arrays: Mapping[str, np.ndarray], size: int) -> None:
    """Raise unless these are the numbers of a map from which features of this size come out."""
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
