"""Images per second of the backbones, beside PyTorch, and of the way from files to features.

Run ``python benchmarks/backbones.py [--out FILE] [--images DIR] [--batch N] [--names NAME ...]``. Four parts:

- forward: pixels to features, each network by itself. The rate is also given as a share of what one large
  product of matrices reaches on the same device in the same run, by XLA's count of the network's operations.
- torch: the same for EfficientNet-Lite0 in PyTorch, in both memory layouts, where ``torch`` and
  ``efficientnet-lite-pytorch`` are installed; features must agree within 10⁻⁴ before a time is printed.
- files: a folder of images to a file of features, with decoding alone and computing alone beside it, and
  PyTorch's ``DataLoader`` and network on the same files. Without ``--images`` the files are made.
- forms: convolutions and maxima in covfree's forms beside XLA's own.

Each part runs in a process of its own. Rates are the best of some runs after one that compiles.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import common
import numpy as np

NAMES = (
    "efficientnet_lite0",
    "squeezenet1_1",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "efficientnet_b0",
    "vit_b_32",
    "vit_b_16",
)
# The one whose trained weights come from a package, so that features can be compared.
PEER = "efficientnet_lite0"
TOLERANCE = 1e-4
# Side of the product that tells what the device can do.
SIDE = 4096


def pixels(batch: int, size: int) -> np.ndarray:
    """Random grey levels."""
    return np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), np.uint8)


def make_images(folder: Path, count: int = 256) -> None:
    """JPEG files of the size of photographs in older data sets, in one class; smooth, with some noise."""
    from PIL import Image

    rng, place = np.random.default_rng(0), folder / "made"
    place.mkdir()
    for index in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 12, 3), np.uint8))
        smooth = np.asarray(coarse.resize((300, 200), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(place / f"{index:04}.jpg", quality=90)


def product_rate(dtype: Any) -> float:
    """Operations per second of one large product."""
    import jax
    import jax.numpy as jnp

    side = SIDE if jax.default_backend() != "cpu" else SIDE // 2
    x = jnp.ones((side, side), dtype)
    precision = "highest" if dtype == jnp.float32 else None
    return 2 * side**3 / common.timed(jax.jit(partial(jnp.matmul, precision=precision)), x, x)


def network_of(name: str, dtype: str) -> tuple[Any, Any, Any]:
    """What turns pixels into features, the parameters, and the line of the table."""
    import jax

    from covfree.backbones import backbone
    from covfree.backbones.preprocess import normalise

    network = backbone(name, dtype=dtype)
    params = network.load() if network.spec.package else network.init(jax.random.key(0))
    preprocessing = network.spec.preprocessing
    return jax.jit(lambda p, x: network.apply(p, normalise(x, preprocessing))), params, network.spec


def forward(name: str, batch: str, dtype: str) -> dict[str, Any]:
    """Images per second of one network."""
    import jax
    import jax.numpy as jnp

    run, params, spec = network_of(name, dtype)
    images = jax.device_put(pixels(int(batch), spec.input_size))
    costs: Any = run.lower(params, images).compile().cost_analysis()
    seconds = common.timed(run, params, images, repeats=3)
    rate = costs["flops"] / seconds
    return {
        "images_per_second": int(batch) / seconds,
        "flops_per_image": costs["flops"] / int(batch),
        "share_of_product": rate / product_rate(jnp.dtype(dtype)),
    }


def torch_forward(batch: str) -> dict[str, Any]:
    """Images per second of PyTorch's EfficientNet-Lite0, and how far its features are off."""
    import backbones_torch
    import torch  # pyright: ignore[reportMissingImports]

    from covfree.backbones import BACKBONES
    from covfree.backbones.weights import packaged_weights

    run, params, spec = network_of(PEER, "float32")
    images = pixels(int(batch), spec.input_size)
    expected = np.asarray(run(params, images[:8]))
    path = str(packaged_weights(str(BACKBONES[PEER].package)))
    torch.set_num_threads(common.cores())
    moved, found = torch.from_numpy(images).permute(0, 3, 1, 2), {}
    for layout in ("contiguous", "channels_last"):
        features = backbones_torch.network(path, layout == "channels_last")
        error = np.linalg.norm(features(moved[:8]).numpy() - expected) / np.linalg.norm(expected)
        if error > TOLERANCE:
            sys.exit(f"{layout}: features differ by {error:.1e}")
        found[layout] = int(batch) / common.timed(features, moved, repeats=3)
    return {"images_per_second": found, "threads": common.cores(), "error": float(error)}


def files(folder: str, batch: str) -> dict[str, Any]:
    """Images per second from files to features, of decoding alone and of computing alone."""
    from covfree.backbones import Prepared, backbone
    from covfree.data import extract_features, image_folder
    from covfree.data.decode import decoded_batches

    images, size = image_folder(folder), int(batch)
    run, params, spec = network_of(PEER, "float32")
    compute = common.timed(run, params, pixels(size, spec.input_size), repeats=3) / size

    def decode() -> None:
        for _ in decoded_batches(images, Prepared.of(spec.preprocessing), batch_size=size):
            pass

    decoding = common.second_call(decode)[1] / len(images)
    network = backbone(PEER)
    with tempfile.TemporaryDirectory() as place:

        def extract(name: str) -> None:
            extract_features(
                images, network, params, out=Path(place, name), weights="packaged", batch_size=size
            )

        extract("first.npz")  # compiles
        both = common.clocked(partial(extract, "second.npz"))[1] / len(images)
    return {
        "images": len(images),
        "images_per_second": 1 / both,
        "decoding_alone": 1 / decoding,
        "computing_alone": 1 / compute,
    }


def torch_files(folder: str, batch: str) -> dict[str, Any]:
    """Images per second from files to features in PyTorch."""
    import backbones_torch
    import torch  # pyright: ignore[reportMissingImports]

    from covfree.backbones import BACKBONES
    from covfree.backbones.weights import packaged_weights

    torch.set_num_threads(common.cores())
    images = sorted(
        file for file in Path(folder).rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    path, found = str(packaged_weights(str(BACKBONES[PEER].package))), {}
    for layout in ("contiguous", "channels_last"):
        features = backbones_torch.network(path, layout == "channels_last")
        run = partial(backbones_torch.all_features, images, int(batch), features, common.cores())
        found[layout] = len(images) / common.clocked(run)[1]
    return {"images": len(images), "images_per_second": found}


def forms() -> list[dict[str, Any]]:
    """Milliseconds of covfree's forms and of XLA's, for shapes of EfficientNet-Lite0 and SqueezeNet 1.1."""
    import jax
    from flax import linen as nn

    from covfree.backbones.convolution import convolve, max_pool

    def seconds(function: Callable[..., Any], *arguments: Any) -> float:
        return common.timed(jax.jit(function), *arguments, repeats=3)

    # Side, channels in and out, kernel, stride, groups.
    shapes = [
        (112, 32, 32, 3, 1, 32),
        (112, 96, 96, 3, 2, 96),
        (56, 144, 144, 3, 1, 144),
        (28, 240, 240, 5, 1, 240),
        (14, 672, 672, 5, 1, 672),
        (112, 32, 16, 1, 1, 1),
        (56, 144, 24, 1, 1, 1),
        (14, 672, 112, 1, 1, 1),
    ]
    rng, found = np.random.default_rng(0), []
    for side, inner, outer, size, stride, groups in shapes:
        x = rng.normal(size=(16, side, side, inner)).astype(np.float32)
        kernel = rng.normal(size=(size, size, inner // groups, outer)).astype(np.float32)
        settings = {
            "feature_group_count": groups,
            "precision": "highest",
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        }
        own, xla = (
            seconds(lambda x, k, f=f, s=stride, given=settings: f(x, k, (s, s), "SAME", **given), x, kernel)
            for f in (convolve, jax.lax.conv_general_dilated)
        )
        what = "one channel a group" if groups > 1 else "dense"
        found.append({"form": f"{size} × {size}, {what}", "input": x.shape, "own": own, "xla": xla})
    for side, channels in [(111, 64), (55, 128)]:
        x = rng.normal(size=(16, side, side, channels)).astype(np.float32)
        pads: Any = ((0, 0), (0, 0))
        own = seconds(partial(max_pool, window_shape=(3, 3), strides=(2, 2), padding=pads), x)
        xla = seconds(partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=pads), x)
        found.append({"form": "3 × 3 maximum", "input": x.shape, "own": own, "xla": xla})
    return found


PARTS: dict[str, Callable[..., Any]] = {
    "forward": forward,
    "torch_forward": torch_forward,
    "files": files,
    "torch_files": torch_files,
    "forms": forms,
}


def _child(*arguments: str) -> Any:
    """Run a part in a process of its own."""
    time.sleep(1)
    found = common.apart(__file__, "--part", *arguments)
    print(" ".join(arguments), json.dumps(found), flush=True)
    return found


def main() -> None:
    """Print a line a part, and write all of it as JSON."""
    if sys.argv[1:2] == ["--part"]:
        part, *rest = sys.argv[2:]
        return print(json.dumps(PARTS[part](*rest)))
    parser = common.parser(__doc__)
    parser.add_argument("--images", type=Path, help="folder of images, one folder a class; made by default")
    parser.add_argument("--batch", type=int, default=64, help="images that are computed together")
    parser.add_argument("--names", nargs="*", choices=NAMES, default=list(NAMES), help="backbones")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], help="in which to compute")
    given = parser.parse_args()
    peers = ("torch", "efficientnet-lite-pytorch")
    versions = {
        name: metadata.version(name) for name in peers if importlib.util.find_spec(name.replace("-", "_"))
    }
    batch, results = str(given.batch), {"batch": given.batch, "peers": versions}
    results["forward"] = {
        f"{name}, {dtype}": _child("forward", name, batch, dtype)
        for name in given.names
        for dtype in given.dtypes
    }
    with tempfile.TemporaryDirectory() as made:
        if given.images is None:
            make_images(Path(made))
        folder = str(given.images or made)
        results["files"] = _child("files", folder, batch)
        if len(versions) == len(peers):
            results["torch_forward"] = _child("torch_forward", batch)
            results["torch_files"] = _child("torch_files", folder, batch)
        else:
            print(f"PyTorch: left out, {' and '.join(peers)} are not both installed")
    results["forms"] = _child("forms")
    common.write(given.out, **results)


if __name__ == "__main__":
    main()
