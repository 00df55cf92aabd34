"""Features of an image set, computed by a backbone and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from covfree.backbones.extractor import Backbone
from covfree.backbones.preprocess import normalise
from covfree.backbones.table import Preprocessing
from covfree.backbones.weights import Params
from covfree.checks import check_choice, check_positive
from covfree.data.dataset import StrPath
from covfree.data.decode import ON_DAMAGED, DecodedBatch, decoded_batches
from covfree.data.feature_file import FeatureWriter, read_feature_file, rewrite
from covfree.data.image_set import ImageSet
from covfree.data.pieces import differences

# Is told how many images are done, and how many there are.
Progress = Callable[[int, int], None]


class Extracted(NamedTuple):
    """What `extract_features` did.

    Attributes:
        path: the file.
        computed: number of images whose features were computed in this call.
        skipped: the reason for each image that was left out, by its id.
    """

    path: Path
    computed: int
    skipped: dict[str, str]


def feature_key(
    images: ImageSet,
    network: Backbone,
    *,
    weights: str,
    preprocessing: Preprocessing | None = None,
    dtype: str = "float32",
) -> dict[str, Any]:
    """What features depend on; a file of features is used again where this is the same.

    Labels and clients are no part of it, nor is the size of batches.

    Args:
        images: see `extract_features`; as all others.
        network: see there.
        weights: see there.
        preprocessing: see there.
        dtype: see there.
    """
    return {
        "images": images.fingerprint,
        "backbone": network.name,
        "computed_in": network.dtype,
        "weights": weights,
        "preprocessing": asdict(preprocessing or network.spec.preprocessing),
        "dtype": dtype,
    }


def extract_features(
    images: ImageSet,
    network: Backbone,
    params: Params | Callable[[], Params],
    *,
    out: StrPath,
    weights: str | None = None,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 64,
    dtype: str = "float32",
    on_damaged: str = "stop",
    progress: Progress | None = None,
) -> Extracted:
    """Compute the features of all images, once, into a file that `load_npz` reads.

    Threads decode ahead while the device computes; several devices share each batch. Finished batches are
    written at once: if the process is interrupted or killed, the same call continues where it stopped. If the
    file exists and was computed from the same images, backbone, weights and preprocessing, nothing is
    computed again. Labels, clients and the split are always those of ``images``.

    The file holds ``features [n, d]``, ``labels [n]``, ``ids [n]`` and ``class_names [C]``; ``clients [n]``
    and ``is_test [n]`` if the images have them; ``skipped_ids`` and ``skipped_reasons`` of images that were
    left out.

    Args:
        images: the image set.
        network: the backbone; its classifier is not used.
        params: its parameters, or a function that gives them, which is called only if they are needed.
        out: the file, ``.npz``.
        weights: a text that identifies the parameters, such as their file's SHA-256; None for the SHA-256 of
            the parameters themselves.
        preprocessing: what the weights were trained on; None for the backbone's own.
        batch_size: images that are computed together; rounded up to a multiple of the number of devices.
        dtype: of the features in the file: ``"float32"``, or ``"float16"`` for half the size.
        on_damaged: ``"stop"`` raises at an image that cannot be read; ``"skip"`` leaves it out.
        progress: called now and then with the number of images done and the number of all images.

    Returns:
        The path of the file, and how many images were computed and left out.

    Raises:
        ValueError: if an argument is wrong, an image is damaged, the file holds features of something else,
            or a feature is not finite.
        OSError: if the system refuses to read or write.

    >>> import tempfile, jax, jax.numpy as jnp, numpy as np
    >>> from covfree.backbones import Preprocessing, backbone
    >>> from covfree.data import image_arrays
    >>> noise = np.random.default_rng(0).integers(0, 256, (6, 80, 70, 3), np.uint8)
    >>> images = image_arrays(noise, np.arange(6) % 2)
    >>> network = backbone("squeezenet1_1", num_classes=None)
    >>> small = Preprocessing(64, 64, "bilinear", (124.0, 116.0, 104.0), (58.0, 57.0, 57.0))
    >>> arguments = dict(preprocessing=small, batch_size=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = f"{folder}/noise.npz"
    ...     params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01), network.shapes)
    ...     done = extract_features(images, network, params, out=out, **arguments)
    ...     again = extract_features(images, network, params, out=out, **arguments)
    ...     with np.load(out) as file:
    ...         print(done.computed, again.computed, file["features"].shape, file["labels"].tolist())
    6 0 (6, 512) [0, 1, 0, 1, 0, 1]
    """
    check_positive("batch_size", batch_size)
    check_choice("dtype", dtype, ("float32", "float16"))
    check_choice("on_damaged", on_damaged, ON_DAMAGED)
    chosen = preprocessing or network.spec.preprocessing
    size = network.spec.input_size
    if not network.spec.any_size and chosen.crop != size:
        raise ValueError(f"preprocessing: expected crop {size} for {network.name}, got {chosen.crop}")
    path, total = Path(out), len(images)
    if not total:
        raise ValueError(f"images: {images.name} holds none")
    if weights is None:
        params = params() if callable(params) else params
        weights = _digest(params)
    key = feature_key(images, network, weights=weights, preprocessing=chosen, dtype=dtype)
    tell = progress or (lambda done, total: None)
    if path.exists():
        tell(total, total)
        return Extracted(path, 0, _reuse(path, key, images, on_damaged))
    sizes = {"num_images": total, "num_features": network.num_features, "dtype": dtype}
    with FeatureWriter(path, key, **sizes) as writer:
        begun = writer.done
        _check_skipped(f"{path}.partial", [images.ids[i] for i in writer.skipped], on_damaged)
        tell(begun, total)
        if begun < total:
            _compute(
                writer,
                images,
                network,
                params() if callable(params) else params,
                chosen,
                batch_size=min(batch_size, total),
                on_damaged=on_damaged,
                tell=lambda: tell(writer.done, total),
            )
        if len(writer.skipped) == total:
            first = next(iter(writer.skipped.values()))
            raise ValueError(f"images: none of the {total} images of {images.name} can be read ({first})")
        skipped = {images.ids[i]: reason for i, reason in writer.skipped.items()}
        writer.finish(_arrays(images, skipped))
    return Extracted(path, total - begun, skipped)


def _digest(params: Params) -> str:
    """A hash of the parameters' names, shapes and numbers."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _reuse(path: Path, key: Mapping[str, Any], images: ImageSet, on_damaged: str) -> dict[str, str]:
    """Give a finished file the labels of today; returns what it left out."""
    file = read_feature_file(path)
    if differing := differences(file.key, key):
        raise ValueError(
            f"{path}: holds features of something else ({'; '.join(differing)}); remove it, or write to "
            "another file"
        )
    names = ("skipped_ids", "skipped_reasons")
    ids, reasons = (file.arrays.get(name, np.array([], str)).tolist() for name in names)
    skipped = dict(zip(ids, reasons, strict=True))
    _check_skipped(str(path), ids, on_damaged)
    arrays, count = _arrays(images, skipped), len(file.features)
    if len(arrays["labels"]) != count:
        raise ValueError(
            f"{path}: expected features of {len(arrays['labels'])} images, got {count}; remove it"
        )
    if not _same(arrays, file.arrays):
        # The map is let go of before the file is replaced.
        del file
        rewrite(path, arrays)
    return skipped


def _same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    if set(ours) != set(theirs):
        return False
    pairs = [(ours[name], theirs[name]) for name in ours]
    return all(a.dtype.kind == b.dtype.kind and np.array_equal(a, b) for a, b in pairs)


def _check_skipped(place: str, ids: list[str], on_damaged: str) -> None:
    if ids and on_damaged == "stop":
        shown = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
        raise ValueError(
            f"{place}: leaves out {len(ids)} images that could not be read ({shown}); remove it to read them "
            "again, or take it as it is by on_damaged 'skip'"
        )


def _arrays(images: ImageSet, skipped: Mapping[str, str]) -> dict[str, np.ndarray]:
    """All but the features, of the images that have some."""
    kept = np.array([name not in skipped for name in images.ids], bool)
    arrays = {
        "labels": np.asarray(images.labels)[kept].astype(np.int32),
        "ids": np.array(images.ids, str)[kept],
        "class_names": np.array(images.class_names, str),
        "skipped_ids": np.array(list(skipped), str),
        "skipped_reasons": np.array(list(skipped.values()), str),
    }
    if images.clients is not None:
        arrays["clients"] = np.asarray(images.clients)[kept]
    if images.is_test is not None:
        arrays["is_test"] = np.asarray(images.is_test, bool)[kept]
    return arrays


def _compute(
    writer: FeatureWriter,
    images: ImageSet,
    network: Backbone,
    params: Params,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    on_damaged: str,
    tell: Callable[[], None],
) -> None:
    """Compute what the writer has not yet."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("batch",))
    whole, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    params = jax.device_put(params, whole)
    batches = decoded_batches(
        images,
        preprocessing,
        batch_size=-(-batch_size // len(devices)) * len(devices),
        start=writer.done,
        on_damaged=on_damaged,
    )

    def write(batch: DecodedBatch, features: jax.Array) -> None:
        writer.append(np.asarray(features)[batch.kept], batch.skipped)
        tell()

    with closing(batches):
        under_way = None
        for batch in batches:
            # Only dispatched: the device computes these while the ones before are written.
            features = features_of_pixels(
                params, jax.device_put(batch.pixels, spread), network, preprocessing
            )
            if under_way is not None:
                write(*under_way)
            under_way = batch, features
        if under_way is not None:
            write(*under_way)


@partial(jax.jit, static_argnames=("network", "preprocessing"))
def features_of_pixels(
    params: Params,
    pixels: UInt8[Array, "batch crop crop 3"],
    network: Backbone,
    preprocessing: Preprocessing,
) -> Float[Array, "batch features"]:
    """Normalising is done on the device too: uint8 is a quarter to send."""
    return network.apply(params, normalise(pixels, preprocessing)).astype(jnp.float32)
