"""What features tell of images: pictures made from what clients send, by a deep image prior.

Run ``python experiments/inversion.py --images FOLDER --weights FILE --out FOLDER``, with a folder
``train/CATEGORY/`` of pictures and weights of SqueezeNet 1.1. An untrained network, which makes pictures of
fixed noise, is trained until the feature of its picture is the one that was sent: an image's, or the mean of
10 images of one category, or of 100 images of ten (a client of ten classes). The prior for pictures is the
network's form alone (Ulyanov et al. 2018, "Deep Image Prior"); nobody's images are used.

How close a picture comes to the images behind the mean is told in PSNR: to the nearest image, and to the mean
of the images. The nearest PSNR has a control beside it, that to the same number of *other* images, drawn
alike from those that the feature is not of, the mean of ten draws: with more images to be near to, some are
near to anything. PSNR compares pixel by pixel,
which features do not keep. So another network, EfficientNet-Lite0 with its packaged weights, is asked as well
of which category the most similar of all images is. Categories of faces are left out.

It writes ``results.json`` and the pictures as it goes and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from inversion_plot import picture, table

from covfree.backbones import Preprocessing, backbone
from covfree.backbones.preprocess import crop
from covfree.data import load_images

NUMBERS = (1, 10, 100)
CONTROLS = 10  # draws of other images


class Hourglass(nn.Module):
    """Noise to a picture in [0, 1]: strided convolutions down, interpolation and convolutions up, skips.

    Attributes:
        widths: channels of each level, the finest first; the picture's side is divided by 2 at each.
        skip: channels that pass from a level down to the same level up.
    """

    widths: tuple[int, ...] = (16, 32, 64, 64)
    skip: int = 4

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[1, side, side, channels] to [1, side, side, 3]."""

        def block(x: jax.Array, width: int, kernel: int = 3, stride: int = 1) -> jax.Array:
            x = nn.Conv(width, (kernel, kernel), strides=stride, padding="SAME")(x)
            # Of one picture, batch norm is a norm of each channel over positions.
            return nn.leaky_relu(nn.GroupNorm(num_groups=width)(x), 0.2)

        passed = []
        for width in self.widths:
            passed.append(block(x, self.skip, kernel=1))
            x = block(block(x, width, stride=2), width)
        for width, skip in zip(reversed(self.widths), reversed(passed), strict=True):
            x = jax.image.resize(x, (*skip.shape[:3], x.shape[3]), "bilinear")
            x = block(jnp.concatenate([x, skip], axis=3), width)
            x = block(x, width, kernel=1)
        return nn.sigmoid(nn.Conv(3, (1, 1))(x))


class Inverted(NamedTuple):
    """A picture made from a feature.

    Attributes:
        image: [side, side, 3] in [0, 1].
        error: ‖f(image) − f‖/‖f‖ of its feature.
    """

    image: np.ndarray
    error: float


def drawn(shapes: Any, rng: np.random.Generator) -> Any:
    """Parameters of a network: kernels uniform with variance 1/inputs, scales 1, biases 0.

    NumPy draws them: XLA takes half a minute to compile the draws of so many shapes.
    """

    def draw(path: Any, leaf: Any) -> jax.Array:
        name, shape = path[-1].key, leaf.shape
        if name != "kernel":
            return jnp.full(shape, float(name == "scale"))
        bound = (3 / np.prod(shape[:-1])) ** 0.5
        return jnp.asarray(rng.uniform(-bound, bound, shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def inverter(
    features: Callable[[jax.Array], jax.Array],
    side: int,
    *,
    steps: int,
    rate: float = 0.01,
    prior: nn.Module | None = None,
) -> Callable[[Any, int], Inverted]:
    """A function from a feature [dim] and a seed to a picture that has it, compiled once.

    It takes steps of Adam on ‖f(picture) − target‖²/‖target‖², from noise and weights that the seed draws.

    Args:
        features: from pictures [1, side, side, 3] in [0, 1] to features [1, dim], by jax.
        side: of the picture, in pixels.
        steps: of Adam.
        rate: of Adam, which falls to 0 along half a cosine.
        prior: the network; `Hourglass` if None.
    """
    network = Hourglass() if prior is None else prior
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    @jax.jit
    def loss(params: Any, noise: jax.Array, target: jax.Array) -> jax.Array:
        image: Any = network.apply(params, noise)
        return jnp.square(features(image)[0] - target).sum() / jnp.square(target).sum()

    # Not in a loop of jax's, where convolutions are slow on a CPU.
    @jax.jit
    def step(params: Any, state: Any, noise: jax.Array, target: jax.Array) -> tuple[Any, Any]:
        updates, state = adam.update(jax.grad(loss)(params, noise, target), state)
        return optax.apply_updates(params, updates), state

    def invert(target: Any, seed: int) -> Inverted:
        rng, target = np.random.default_rng(seed), jnp.asarray(target)
        noise = jnp.asarray(rng.uniform(0, 0.1, (1, side, side, 16)), jnp.float32)
        params = drawn(jax.eval_shape(network.init, jax.random.key(0), noise), rng)
        state = adam.init(params)
        for _ in range(steps):
            params, state = step(params, state, noise, target)
        image: Any = network.apply(params, noise)
        return Inverted(np.asarray(image[0]), float(jnp.sqrt(loss(params, noise, target))))

    return invert


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """10 log₁₀ 1/mean square of the difference, of pictures in [0, 1]; in dB."""
    return float(-10 * np.log10(np.square(one - other).mean()))


def nearest(image: np.ndarray, others: np.ndarray) -> float:
    """The largest PSNR with one of several images."""
    return max(psnr(image, other) for other in others)


def judge(read: Callable[[np.ndarray], np.ndarray], places: np.ndarray) -> Callable[[np.ndarray], int]:
    """A function from a picture to the place of the most similar image, by another network's features."""
    network = backbone("efficientnet_lite0")
    params, levels = network.load(), network.spec.preprocessing
    mean, std = (np.array(x, np.float32).reshape(1, 1, 1, 3) / 255 for x in (levels.mean, levels.std))

    @jax.jit
    def direction(images: jax.Array) -> jax.Array:
        sized = jax.image.resize(images, (len(images), 128, 128, 3), "bilinear")
        features = network.apply(params, (sized - mean) / std)
        return features / jnp.linalg.norm(features, axis=1, keepdims=True)

    padded = np.resize(places, -(-len(places) // 50) * 50)
    known = np.concatenate([direction(read(some)) for some in padded.reshape(-1, 50)])

    def found(image: np.ndarray) -> int:
        own = np.asarray(direction(np.repeat(image[None], 50, axis=0)))[0]
        return int(padded[(known @ own).argmax()])

    return found


def targets(labels: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Places of so many images: of one category up to ten, else ten of each category.

    Raises:
        ValueError: if too few categories have as many images.
    """
    each = min(number, 10)
    names, counts = np.unique(labels, return_counts=True)
    chosen = rng.permutation(names[counts >= each])[: number // each]
    if len(chosen) < number // each:
        raise ValueError(
            f"images: expected {number // each} categories of at least {each} images for {number} images, "
            f"got {len(chosen)}"
        )
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:each] for c in chosen])


def others(labels: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places of as many images, drawn as `targets` draws, none of which is among one's own."""
    rest = np.setdiff1d(np.arange(len(labels)), own)
    return rest[targets(labels[rest], len(own), rng)]


def main() -> None:
    """Invert what is not there yet, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", required=True, help="what covfree.data.load_images takes")
    parser.add_argument("--weights", type=Path, required=True, help="of SqueezeNet 1.1")
    parser.add_argument("--side", type=int, default=64, help="of pictures, in pixels")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    network = backbone("squeezenet1_1")
    params = network.load(arguments.weights)
    side, levels = arguments.side, network.spec.preprocessing
    sized = Preprocessing(side, side, levels.interpolation, levels.mean, levels.std)
    found = load_images(arguments.images)
    labels = np.where(
        np.char.startswith(np.array(found.class_names), "Faces")[found.labels], -1, found.labels
    )
    allowed = np.flatnonzero(labels >= 0)

    def drawn_places(number: int, seed: int) -> np.ndarray:
        return targets(labels[allowed], number, np.random.default_rng([number, seed]))

    def read(places: np.ndarray) -> np.ndarray:
        return np.stack([crop(found.read(int(i)), sized) for i in allowed[places]]).astype(np.float32) / 255

    mean, std = (np.array(x, np.float32).reshape(1, 1, 1, 3) / 255 for x in (levels.mean, levels.std))
    features = jax.jit(lambda images: network.apply(params, (images - mean) / std))
    made = inverter(features, side, steps=arguments.steps)
    file = arguments.out / "results.json"
    pixels = hashlib.sha256(labels[allowed].tobytes())
    for place in range(len(allowed)):
        pixels.update(read(np.array([place])).tobytes())
    weights = hashlib.sha256(arguments.weights.read_bytes())
    about = {"side": side, "steps": arguments.steps}
    about |= {"images": pixels.hexdigest()[:16], "weights": weights.hexdigest()[:16]}
    results = json.loads(file.read_text()) if file.exists() else {"setting": about, "runs": []}
    if results["setting"] != about:
        raise SystemExit(f"--out: {file} is of another setting: {results['setting']}")
    for number in NUMBERS:
        for seed in range(arguments.seeds):
            if any((run["number"], run["seed"]) == (number, seed) for run in results["runs"]):
                continue
            images = read(drawn_places(number, seed))
            target = np.concatenate([np.asarray(features(image[None])) for image in images]).mean(0)
            picture_of = made(target, seed)
            close = max(range(number), key=lambda i, made=picture_of.image: psnr(made, images[i]))
            np.savez_compressed(
                arguments.out / f"{number}-{seed}.npz",
                made=picture_of.image.astype(np.float16),
                nearest=images[close].astype(np.float16),
                mean=images.mean(0).astype(np.float16),
            )
            run = {"number": number, "seed": seed, "error": picture_of.error}
            run |= {"nearest": psnr(picture_of.image, images[close])}
            run |= {"mean": psnr(picture_of.image, images.mean(0))}
            results["runs"].append(run)
            file.write_text(json.dumps(results) + "\n")
            print(run, file=sys.stderr, flush=True)
    kinds = {n: [run for run in results["runs"] if run["number"] == n] for n in NUMBERS}
    kind = labels[allowed]
    similar = judge(read, np.arange(len(allowed)))
    for number, runs in kinds.items():
        for run in runs:
            with np.load(arguments.out / f"{number}-{run['seed']}.npz") as stored:
                image = stored["made"].astype(np.float32)
            own, rng = drawn_places(number, run["seed"]), np.random.default_rng([number, run["seed"], 1])
            near = [nearest(image, read(others(kind, own, rng))) for _ in range(CONTROLS)]
            run["control"] = float(np.mean(near))
            run["recognised"] = bool(kind[similar(image)] in kind[own])
    file.write_text(json.dumps(results) + "\n")
    print(table(kinds))
    picture(arguments.out, kinds)


if __name__ == "__main__":
    main()
