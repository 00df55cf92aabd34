"""Read a `Preprocessing` from Hugging Face's or timm's configuration files, or from what a user typed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from covfree.backbones.table import Preprocessing

_FILE = "preprocessor_config.json"
# Types of processors that only resize, crop and normalise. True if a size of one number means both sides,
# False if it means the shorter side.
_TYPES = {
    "BeitImageProcessor": True,
    "BitImageProcessor": False,
    "BlipImageProcessor": True,
    "CLIPImageProcessor": False,
    "ConvNextImageProcessor": False,
    "DeiTImageProcessor": True,
    "MobileNetV1ImageProcessor": False,
    "MobileNetV2ImageProcessor": False,
    "PvtImageProcessor": True,
    "SiglipImageProcessor": True,
    "ViTImageProcessor": True,
}
# Settings that turn on other steps than resizing, cropping and normalising; they are refused.
_UNKNOWN = (
    "do_flip_channel_order",
    "do_pad",
    "include_top",
    "keep_aspect_ratio",
    "rescale_offset",
    "size_divisor",
)
# Pillow's integer codes for the interpolations that `Preprocessing` supports.
_RESAMPLE = {2: "bilinear", 3: "bicubic"}
_TYPED = "resize=256:crop=224:interpolation=bicubic:mean=0.485,0.456,0.406:std=0.229,0.224,0.225"


def read_json(path: Path, kind: type = dict, *, where: str | None = None) -> Any:
    """Read a JSON file whose top level is a ``kind``; errors begin with ``where``, by default the path."""
    try:
        parsed = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where or path}: expected JSON ({error})") from error
    if not isinstance(parsed, kind):
        wanted = "an object" if kind is dict else "a list"
        raise ValueError(f"{where or path}: expected {wanted} in JSON, got {json.dumps(parsed)[:40]}")
    return parsed


def preprocessing_beside(path: Path) -> Preprocessing:
    """Read ``preprocessor_config.json``, else timm's ``config.json``, in the folder of the file ``path``.

    Raise ValueError if neither describes the preprocessing.
    """
    if (path.parent / _FILE).is_file():
        return read_processor(path.parent / _FILE)
    config = path.parent / "config.json"
    found = timm_preprocessing(read_json(config), str(config)) if config.is_file() else None
    if found is None:
        raise ValueError(
            f"preprocessing: expected one, as there is no {_FILE} beside {path}, got None "
            f"(--preprocessing takes such a file, or {_TYPED})"
        )
    return found


def read_processor(path: Path) -> Preprocessing:
    """Convert Hugging Face's ``preprocessor_config.json``; ValueError if `Preprocessing` cannot say it."""
    config: dict[str, Any] = read_json(path)

    def wrong(name: str, expected: str) -> ValueError:
        return ValueError(f"{path}: {name}: expected {expected}, got {config.get(name)!r}")

    kind = config.get("image_processor_type", config.get("feature_extractor_type"))
    # Convert older names of the same types, and names of their PyTorch versions.
    plain = str(kind).removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    if kind is not None and plain not in _TYPES:
        name = "image_processor_type" if "image_processor_type" in config else "feature_extractor_type"
        raise wrong(name, f"one of {', '.join(_TYPES)}, as others may do more")
    for name in _UNKNOWN:
        if config.get(name):
            raise wrong(name, "none, as `Preprocessing` cannot do that")
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not config.get(name, True):
            raise wrong(name, "true")
    factor = config.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-4):
        raise wrong("rescale_factor", "1/255")
    method = _RESAMPLE.get(config.get("resample", 2))
    if method is None:
        raise wrong("resample", "2 (bilinear) or 3 (bicubic)")
    size = config.get("size")
    cropped = config.get("do_center_crop", "crop_size" in config)
    # Whether a size of one number means both sides, or the shorter side. If no type is named, it means both
    # for images that are not cropped, as all images of a batch have one size.
    square = _TYPES.get(plain, not cropped and "crop_pct" not in config)
    if not isinstance(size, dict):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    if cropped and config.get("crop_pct") is not None:
        raise wrong("crop_pct", "none beside do_center_crop")
    crop = config.get("crop_size") if cropped else size
    crop = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
    side = crop.get("height", crop.get("shortest_edge"))
    if type(side) is not int or side < 1 or crop.get("width", side) != side:
        raise wrong("crop_size" if cropped else "size", "a square of pixels")
    if "shortest_edge" in size:
        resize: Any = size["shortest_edge"]
        # As in ConvNeXt: for a square below 384 pixels, resize the image larger and cut the square out; from
        # 384 on, squeeze the whole image.
        if not cropped and ("crop_pct" in config or plain == "ConvNextImageProcessor"):
            resize = int(side / (config.get("crop_pct") or 224 / 256)) if side < 384 else (side, side)
        right = resize == (side, side) or (type(resize) is int and resize >= side)
    else:
        # Both sides are given: the image is squeezed to them.
        resize = (size.get("width"), size.get("height"))
        right = all(type(pixels) is int and pixels >= side for pixels in resize)
    if not right:
        raise wrong("size", f"integers of at least {side}")
    colours: list[Any] = [config.get(name) for name in ("image_mean", "image_std")]
    for name, values in zip(("image_mean", "image_std"), colours, strict=True):
        if not _are_three(values):
            raise wrong(name, "three numbers")
    return _made(resize, side, method, *colours)


def timm_preprocessing(config: dict[str, Any], source: str) -> Preprocessing | None:
    """Convert the settings in timm's ``config.json`` as timm does for evaluation; None if there are none."""
    settings = config.get("pretrained_cfg")
    if not isinstance(settings, dict):
        return None

    def wrong(name: str, expected: str) -> ValueError:
        return ValueError(f"config.json of {source}: {name}: expected {expected}, got {settings.get(name)!r}")

    names = ("input_size", "crop_pct", "interpolation", "mean", "std")
    size, portion, method, mean, std = (settings.get(name) for name in names)
    if settings.get("crop_mode", "center") != "center":
        raise wrong("crop_mode", "'center'")
    side = size[-1] if isinstance(size, list) and size else None
    if type(side) is not int or side < 1 or size != [3, side, side]:
        raise wrong("input_size", "[3, size, size]")
    if not _is_number(portion) or not 0 < portion <= 1:
        raise wrong("crop_pct", "a number up to 1")
    if method not in _RESAMPLE.values():
        raise wrong("interpolation", "'bilinear' or 'bicubic'")
    if not _are_three(mean):
        raise wrong("mean", "three numbers")
    if not _are_three(std) or min(std) <= 0:
        raise wrong("std", "three numbers greater than 0")
    return _made(math.floor(side / portion), side, str(method), mean, std)


def preprocessing_of(text: str) -> Preprocessing:
    """Convert what a user typed: a file for `read_processor`, or text such as ``resize=256:crop=224:…``."""
    path = Path(text)
    if path.suffix == ".json":
        if not path.is_file():
            raise ValueError(f"preprocessing: no such file: {text}")
        return read_processor(path)
    given = {name: value for name, _, value in (part.partition("=") for part in text.split(":"))}
    names = ("resize", "crop", "interpolation", "mean", "std")
    try:
        if sorted(given) != sorted(names):
            raise ValueError(f"names {', '.join(given)}")
        resize, crop = int(given["resize"]), int(given["crop"])
        mean, std = ([float(value) for value in given[name].split(",")] for name in ("mean", "std"))
        if len(mean) != 3 or len(std) != 3 or not 1 <= crop <= resize:
            raise ValueError("mean and std have three numbers, and crop is at most resize")
        if given["interpolation"] not in _RESAMPLE.values():
            raise ValueError("interpolation is bilinear or bicubic")
        return _made(resize, crop, given["interpolation"], mean, std)
    except ValueError as error:
        raise ValueError(
            f"preprocessing: expected a .json file or {_TYPED}, got {text!r} ({error})"
        ) from None


def _made(resize: Any, crop: int, method: str, mean: list[Any], std: list[Any]) -> Preprocessing:
    """Make a `Preprocessing` with the interpolation ``method``; ``mean``, ``std`` are of pixels in [0, 1]."""
    if min(std) <= 0 or not all(map(math.isfinite, (*mean, *std))):
        raise ValueError(f"std: expected three finite numbers above 0, got {std}")
    levels: Any = [tuple(255 * float(value) for value in colours) for colours in (mean, std)]
    return Preprocessing(resize, crop, method, *levels)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _are_three(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and len(values) == 3 and all(map(_is_number, values))
