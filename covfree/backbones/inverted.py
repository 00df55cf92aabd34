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
        return Dropout(self.dropout)(pooled(x))

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


CLASSIFIER = "classifier"


class _Names(NamedTuple):
    """The names of layers in the library of `Spec.names` that is not timm, such as torchvision.

    Attributes:
        outside: the names outside the blocks, in the order of `_OUTSIDE`.
        first: the number of the first block and of the first stage.
        block: the pattern of a block's name: it has the block's number, or its stage and its index there.
        expanding: the names in a block that expands, in the order of `_EXPANDING`.
        plain: the names in any other block, in the order of `_PLAIN`.
    """

    outside: str
    first: int
    block: str
    expanding: str
    plain: str


# timm's names of layers, used here too: outside the blocks, in a block that expands, and in one that does
# not.
_OUTSIDE = "conv_stem bn1 conv_head bn2 classifier"
_EXPANDING = "conv_pw bn1 conv_dw bn2 conv_pwl bn3 se.conv_reduce se.conv_expand"
_PLAIN = "conv_dw bn1 conv_pw bn2 se.conv_reduce se.conv_expand"
_OTHER = {
    "mobilenet": _Names(
        "features.0.0 features.0.1 features.18.0 features.18.1 classifier.1",
        1,
        "features.{number}.conv",
        "0.0 0.1 1.0 1.1 2 3",
        "0.0 0.1 1 2",
    ),
    "efficientnet": _Names(
        "features.0.0 features.0.1 features.8.0 features.8.1 classifier.1",
        1,
        "features.{stage}.{index}.block",
        "0.0 0.1 1.0 1.1 3.0 3.1 2.fc1 2.fc2",
        "0.0 0.1 2.0 2.1 1.fc1 1.fc2",
    ),
    "lite": _Names(
        "_conv_stem _bn0 _conv_head _bn1 _fc",
        0,
        "_blocks.{number}",
        "_expand_conv _bn0 _depthwise_conv _bn1 _project_conv _bn2",
        "_depthwise_conv _bn1 _project_conv _bn2",
    ),
}


def renamings(*, kind: str, width: float = 1.0, depth: float = 1.0, **_: Any) -> tuple[Renaming, ...]:
    """Return the renaming for files of the library in `Spec.names` that is not timm; arguments as `build`."""
    names = _OTHER[kind]
    number = names.first
    table: dict[str, str] = dict(zip(_OUTSIDE.split(), names.outside.split(), strict=True))
    for stage, about in enumerate(_stages(kind, width, depth)):
        own, theirs = (_EXPANDING, names.expanding) if about.expansion > 1 else (_PLAIN, names.plain)
        for index in range(about.repeats):
            block = names.block.format(number=number, stage=stage + names.first, index=index)
            # Only EfficientNet has the last two layers, of squeeze and excitation.
            for ours, layer in zip(own.split(), theirs.split(), strict=False):
                table[f"blocks.{stage}.{index}.{ours}"] = f"{block}.{layer}"
            number += 1

    def rename(name: str) -> str:
        layer, _, leaf = name.rpartition(".")
        return f"{table[layer]}.{leaf}"

    return (rename,)
