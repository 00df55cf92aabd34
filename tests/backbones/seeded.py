"""Parameters and images that only depend on tensors' names: the same for covfree and for the references."""

import zlib

import numpy as np

IMAGES = 2
# Squeeze and excitation halves what passes.
GAINS = {"efficientnet_b0": 2.0}

# Shorter side, crop and interpolation of some backbones, and pictures whose margins need rounding.
CROPS = {
    "resnet18": (256, 224, "bilinear"),
    "efficientnet_b0": (256, 224, "bicubic"),
    "efficientnet_lite3": (312, 280, "bicubic"),
}
SHAPES = ((97, 150), (300, 211), (256, 256))
STEP = 16


def uniform(name: str, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Numbers from a generator that the name seeds."""
    draw = np.random.default_rng(zlib.crc32(name.encode())).random(shape, np.float32)
    return (low + (high - low) * draw).astype(np.float32)


def tensor(name: str, shape: tuple[int, ...], gain: float) -> np.ndarray:
    """A parameter: variances and scales about 1, shifts small, weights that neither swell nor vanish."""
    if name.endswith(("token", "pos_embed", "pos_embedding")):
        return uniform(name, shape, -0.5, 0.5)
    if len(shape) >= 2:
        spread = (3 * gain / np.prod(shape[1:])) ** 0.5  # of variance ``gain`` over the numbers summed
        return uniform(name, shape, -spread, spread)
    if name.endswith(("running_var", "weight")):
        return uniform(name, shape, 0.5, 1.5)
    return uniform(name, shape, -0.2, 0.2)


def tensors(shapes: dict[str, tuple[int, ...]], backbone: str) -> dict[str, np.ndarray]:
    """All parameters: images' features then differ, and no network is so steep as to be chaotic."""
    gain = GAINS.get(backbone, 1.5)
    return {name: tensor(name, tuple(shape), gain) for name, shape in shapes.items()}


def images(size: int) -> np.ndarray:
    """``[2, size, size, 3]``, of about the range that preprocessing gives: 4 × 4 fields, and noise."""
    fields = uniform("fields", (IMAGES, 4, 4, 3), -1.5, 1.5).repeat(size // 4, 1).repeat(size // 4, 2)
    return fields + uniform("noise", (IMAGES, size, size, 3), -0.5, 0.5)


def picture(shape: tuple[int, int]) -> np.ndarray:
    """``[*shape, 3]``, uint8 noise."""
    return uniform(f"picture {shape[0]} {shape[1]}", (*shape, 3), 0, 256).astype(np.uint8)
