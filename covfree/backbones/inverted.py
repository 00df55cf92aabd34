"""Networks of inverted residuals: MobileNetV2, EfficientNet-B0, EfficientNet-Lite."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from covfree.backbones.layers import Dropout, Renaming, Style, pooled


class Stage(NamedTuple):
    """``repeats`` blocks with ``channels`` outputs; the first block has ``stride``, the others stride 1.

    A block expands its input to ``expansion`` times as many channels, and convolves these with square kernels
    of side ``kernel``.
    """

    expansion: int
    kernel: int
    stride: int
    channels: int
    repeats: int


_MOBILENET = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 3, 2, 32, 3),
    Stage(6, 3, 2, 64, 4),
    Stage(6, 3, 1, 96, 3),
    Stage(6, 3, 2, 160, 3),
    Stage(6, 3, 1, 320, 1),
)
_EFFICIENTNET = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)


class Inverted(nn.Module):
    """MobileNetV2 or EfficientNet; parameters have the names of timm's tensors.

    Attributes:
        style: data type, norms and padding of all layers.
        stages: the blocks, stage by stage.
        activation: ``"relu6"``, or ``"silu"``.
        attention: whether channels are weighted by squeeze and excitation.
        dropout: rate of dropout on the features, in training.
        depth_dropout: upper bound of the probability that training drops a block's branch; the probability
            grows linearly from 0 with the block's index.
    """

    style: Style
    stages: tuple[Stage, ...]
    activation: str
    attention: bool
    dropout: float
    depth_dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Compute the features of images."""
        style = self.style
        x = self._act(style.norm("bn1", train)(style.conv("conv_stem", 32, 3, 2)(x)))
        total, done = sum(stage.repeats for stage in self.stages), 0
        for number, stage in enumerate(self.stages):
            for index in range(stage.repeats):
                stride = stage.stride if index == 0 else 1
                rate = self.depth_dropout * done / total
                x = self._block(x, f"blocks.{number}.{index}", stage, stride, rate, train)
                done += 1
        x = self._act(style.norm("bn2", train)(style.conv("conv_head", 1280, 1)(x)))
        x = Dropout(self.dropout)(pooled(x))
        return x

    def _block(
        self, x: jax.Array, name: str, stage: Stage, stride: int, rate: float, train: bool
    ) -> jax.Array:
        style, branch, size = self.style, x, x.shape[-1]
        # Use timm's names: a block's norms are numbered; in a block without expansion the last convolution is
        # conv_pw, not conv_pwl.
        norms = iter(("bn1", "bn2", "bn3"))

        def norm(y: jax.Array) -> jax.Array:
            return style.norm(f"{name}.{next(norms)}", train)(y)

        expanded = size * stage.expansion
        if stage.expansion > 1:
            branch = self._act(norm(style.conv(f"{name}.conv_pw", expanded, 1)(branch)))
        depthwise = style.conv(f"{name}.conv_dw", expanded, stage.kernel, stride, groups=expanded)
        branch = self._act(norm(depthwise(branch)))
        if self.attention:
            squeezed = pooled(branch)[:, None, None, :]
            reduce = style.conv(f"{name}.se.conv_reduce", max(1, size // 4), 1, bias=True)
            expand = style.conv(f"{name}.se.conv_expand", expanded, 1, bias=True)
            branch = branch * nn.sigmoid(expand(self._act(reduce(squeezed))))
        last = "conv_pwl" if stage.expansion > 1 else "conv_pw"
        branch = norm(style.conv(f"{name}.{last}", stage.channels, 1)(branch))
        if stride == 1 and size == stage.channels:
            branch = x + Dropout(rate, whole=True)(branch)
        return branch

    def _act(self, x: jax.Array) -> jax.Array:
        return nn.relu6(x) if self.activation == "relu6" else nn.silu(x)


def _stages(kind: str, width: float, depth: float) -> tuple[Stage, ...]:
    if kind == "mobilenet":
        return _MOBILENET
    last = len(_EFFICIENTNET) - 1
    # EfficientNet-Lite does not scale the depth of the first and last stage.
    return tuple(
        stage._replace(
            channels=_rounded(stage.channels * width),
            repeats=stage.repeats if index in (0, last) else math.ceil(stage.repeats * depth),
        )
        for index, stage in enumerate(_EFFICIENTNET)
    )


def _rounded(channels: float) -> int:
    """Round channels to the nearest multiple of 8, but at least 8.

    If the nearest multiple is more than a tenth smaller than ``channels``, return the next.
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def build(
    dtype: Any,
    *,
    kind: str,
    width: float = 1.0,
    depth: float = 1.0,
    dropout: float = 0.2,
) -> Inverted:
    """Build a MobileNetV2, an EfficientNet or an EfficientNet-Lite.

    ``kind`` is ``"mobilenet"``, ``"efficientnet"`` or ``"lite"``. The factors ``width``, of the channels, and
    ``depth``, of the number of blocks, are for the last two.
    """
    style = Style(dtype, epsilon=1e-3, momentum=0.99, same=True) if kind == "lite" else Style(dtype)
    attention = kind == "efficientnet"
    return Inverted(
        style,
        _stages(kind, width, depth),
        "silu" if attention else "relu6",
        attention,
        dropout,
        0.0 if kind == "mobilenet" else 0.2,
    )


# A file of weights may hold a classifier, which the network lacks. It would have this name in the tree of
# parameters; its tensors are ignored.
CLASSIFIER = "classifier"


def renamings(*, kind: str, width: float = 1.0, depth: float = 1.0, **_: Any) -> tuple[Renaming, ...]:
    """Return two functions that translate a parameter's name to the name of its tensor in a file of weights.

    The first is for timm's files, and returns the name as it is. The second is for files of the other library
    in `Spec.names`. The arguments describe the network, see `build`.
    """
    stages = _stages(kind, width, depth)
    layers = {"mobilenet": _mobilenet_layers, "efficientnet": _efficientnet_layers, "lite": _lite_layers}
    table = layers[kind](stages)

    def other(name: str) -> str:
        layer, _, leaf = name.rpartition(".")
        return f"{table[layer]}.{leaf}"

    return (lambda name: name, other)


def _blocks(stages: tuple[Stage, ...]) -> list[tuple[str, int, int, int, bool]]:
    """List each block's name, stage, index in the stage, index among all blocks, and whether it expands."""
    places = [(number, index) for number, stage in enumerate(stages) for index in range(stage.repeats)]
    return [
        (f"blocks.{number}.{index}", number, index, flat, stages[number].expansion > 1)
        for flat, (number, index) in enumerate(places)
    ]


def _paired(block: str, own: tuple[str, ...], theirs: str, their_layers: tuple[str, ...]) -> dict[str, str]:
    return {f"{block}.{a}": f"{theirs}.{b}" for a, b in zip(own, their_layers, strict=True)}


_EXPANDING = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
_PLAIN = ("conv_dw", "bn1", "conv_pw", "bn2")


def _mobilenet_layers(stages: tuple[Stage, ...]) -> dict[str, str]:
    table = {"conv_stem": "features.0.0", "bn1": "features.0.1", "classifier": "classifier.1"}
    table |= {"conv_head": "features.18.0", "bn2": "features.18.1"}
    for block, _, _, flat, expands in _blocks(stages):
        theirs = ("0.0", "0.1", "1.0", "1.1", "2", "3") if expands else ("0.0", "0.1", "1", "2")
        table |= _paired(block, _EXPANDING if expands else _PLAIN, f"features.{flat + 1}.conv", theirs)
    return table


def _efficientnet_layers(stages: tuple[Stage, ...]) -> dict[str, str]:
    table = {"conv_stem": "features.0.0", "bn1": "features.0.1", "classifier": "classifier.1"}
    table |= {"conv_head": "features.8.0", "bn2": "features.8.1"}
    for block, number, index, _, expands in _blocks(stages):
        theirs = f"features.{number + 1}.{index}.block"
        own = _EXPANDING if expands else _PLAIN
        attention, last = (2, 3) if expands else (1, 2)
        layers = [f"{part}.{layer}" for part in range(attention) for layer in (0, 1)]
        layers += [f"{last}.0", f"{last}.1"]
        table |= _paired(block, own, theirs, tuple(layers))
        excitation = (f"{attention}.fc1", f"{attention}.fc2")
        table |= _paired(block, ("se.conv_reduce", "se.conv_expand"), theirs, excitation)
    return table


def _lite_layers(stages: tuple[Stage, ...]) -> dict[str, str]:
    table = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}
    table |= {"classifier": "_fc"}
    for block, _, _, flat, expands in _blocks(stages):
        theirs = ("_depthwise_conv", "_bn1", "_project_conv", "_bn2")
        if expands:
            theirs = ("_expand_conv", "_bn0", *theirs)
        table |= _paired(block, _EXPANDING if expands else _PLAIN, f"_blocks.{flat}", theirs)
    return table
