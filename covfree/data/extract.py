"""Compute features of an image set or a text set by a pre-trained network, and keep them in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import cache, partial
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from covfree.backbones.extractor import Backbone
from covfree.backbones.extractors import Extractor, Prepared
from covfree.backbones.hub import find_weights
from covfree.backbones.preprocess import normalise
from covfree.backbones.sentence import SentenceEncoder
from covfree.backbones.table import Preprocessing
from covfree.backbones.weights import Params
from covfree.core.checks import check_choice, check_positive
from covfree.data.dataset import StrPath
from covfree.data.decode import DecodedBatch, decoded_batches
from covfree.data.feature_file import DTYPES
from covfree.data.image_set import ImageSet
from covfree.data.kept import Extracted, Pieces, Progress, keep
from covfree.data.texts import TextSet

# How many batches of texts are sorted by length together, and then written.
_BATCHES = 16


def extractor_key(
    network: Backbone, weights: str, preprocessing: Preprocessing | None, dtype: str = "float32"
) -> dict[str, Any]:
    """Return a dict of everything, except the images, on which features depend.

    These settings must be the same at all sites of a federation. With ``preprocessing`` None, the network's
    own is used.
    """
    return {
        "backbone": network.name,
        "computed_in": network.dtype,
        "weights": weights,
        "preprocessing": asdict(preprocessing or network.spec.preprocessing),
        "dtype": dtype,
    }


def extract_features(
    images: ImageSet,
    network: Backbone | Extractor,
    params: Params | Callable[[], Params] | StrPath | None = None,
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

    Threads decode ahead while the device computes; several devices share each batch of a `Backbone`. Each
    batch is written when it is finished: if the process is interrupted or killed, the same call continues
    where it stopped. If the file exists and was computed from the same images, network, weights and
    preprocessing, nothing is computed again. The file's labels, clients and split are always those of
    ``images``.

    The file holds ``features [n, d]``, ``labels [n]``, ``ids [n]`` and ``class_names [C]``; ``clients [n]``
    and ``is_test [n]`` if the images have them; ``skipped_ids`` and ``skipped_reasons`` of images that were
    left out.

    Args:
        images: the image set.
        network: the backbone, whose classifier is not used; or an `Extractor`. An extractor has its own
            weights and preprocessing: ``params``, ``weights`` and ``preprocessing`` must be None.
        params: the backbone's parameters; or a function that returns them, called only if they are needed; or
            their file; or ``owner/name@commit``, as in ``covfree extract --weights``.
        out: the file, ``.npz``.
        weights: a string that identifies the parameters; None for the SHA-256 of their file or, without a
            file, of the parameters.
        preprocessing: the preprocessing that the weights were trained with; None for what the commit's
            repository specifies or, without that, the backbone's own.
        batch_size: images per batch; rounded up to a multiple of the number of devices.
        dtype: data type of the features in the file: ``"float32"``, or ``"float16"`` for half the size.
        on_damaged: ``"stop"`` raises at an image that cannot be read; ``"skip"`` leaves it out.
        progress: called repeatedly with the number of finished images and the number of all images.

    Returns:
        The file's path, the number of images that this call read, and the reason for each image left out.

    Raises:
        ValueError: if an argument is wrong, an image is damaged, the file's features were computed from
            something else, or a feature is not finite.
        OSError: if the system refuses to read or write.

    >>> import tempfile, jax, jax.numpy as jnp, numpy as np
    >>> from covfree.backbones import Preprocessing, backbone
    >>> from covfree.data import image_arrays
    >>> noise = np.random.default_rng(0).integers(0, 256, (6, 80, 70, 3), np.uint8)
    >>> images = image_arrays(noise, np.arange(6) % 2)
    >>> network = backbone("squeezenet1_1")
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
    check_choice("dtype", dtype, DTYPES)
    check_choice("on_damaged", on_damaged, ("stop", "skip"))
    if isinstance(network, Extractor):
        given = {"params": params, "weights": weights, "preprocessing": preprocessing}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{wrong[0]}: expected None beside an Extractor, which has its own")
        extractor = network
    else:
        extractor = _of_backbone(network, params, weights, preprocessing)
    inputs = extractor.inputs
    if inputs is None:
        raise ValueError(f"network: expected an extractor of images, got {extractor.name}, which takes texts")
    if not len(images):
        raise ValueError(f"images: {images.name} holds none")

    devices = len(jax.local_devices())
    size = -(-min(batch_size, len(images)) // devices) * devices

    def computed(batch: DecodedBatch, features: Any) -> tuple[np.ndarray, dict[int, str]]:
        return extractor.checked(features, len(batch.pixels))[batch.kept], batch.skipped

    def compute(start: int) -> Pieces:
        skip = on_damaged == "skip"
        with closing(decoded_batches(images, inputs, batch_size=size, start=start, skip=skip)) as batches:
            under_way = None
            for batch in batches:
                # The device computes this batch while the previous features are written.
                features = extractor.compute(batch.pixels)
                if under_way is not None:
                    yield computed(*under_way)
                under_way = batch, features
            if under_way is not None:
                yield computed(*under_way)

    return keep(
        images, "images", extractor, compute, out=out, dtype=dtype, on_damaged=on_damaged, progress=progress
    )


def _of_backbone(
    network: Backbone,
    params: Params | Callable[[], Params] | StrPath | None,
    weights: str | None,
    preprocessing: Preprocessing | None,
) -> Extractor:
    """Make an extractor from a covfree network. Parameters in a file are read at the first computation."""
    if isinstance(params, str | PathLike):
        found = find_weights(str(params), network.spec)
        params, preprocessing = partial(network.load, found.path), preprocessing or found.preprocessing
        weights = weights or found.sha256
    chosen = preprocessing or network.spec.preprocessing
    size = network.spec.input_size
    if not network.spec.any_size and chosen.crop != size:
        raise ValueError(f"preprocessing: expected crop {size} for {network.name}, got {chosen.crop}")
    if params is None:
        raise ValueError(f"params: expected the parameters of {network.name}, got None")
    if weights is None:
        params = params() if callable(params) else params
        weights = _digest(params)
    mesh = Mesh(np.array(jax.local_devices()), ("batch",))
    whole, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    placed: list[Params] = []

    def compute(pixels: np.ndarray) -> jax.Array:
        if not placed:
            placed.append(jax.device_put(params() if callable(params) else params, whole))
        # This returns before the features are computed, as JAX dispatches asynchronously.
        return features_of_pixels(placed[0], jax.device_put(pixels, spread), network, chosen)

    inputs = Prepared.of(chosen)
    return Extractor(network.name, network.num_features, compute, weights, chosen, inputs, network.dtype)


def encode_texts(
    texts: TextSet,
    encoder: SentenceEncoder | Extractor,
    *,
    out: StrPath,
    batch_size: int = 64,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Extracted:
    """Compute the features of all texts, once, into a file that `load_npz` reads.

    As with `extract_features`, the same call continues an interrupted one, an existing file of the same texts
    and encoder is kept, and the file has the same arrays. Parameters are read only if needed. One device
    computes.

    Args:
        texts: the text set.
        encoder: the encoder, from `covfree.backbones.sentence_encoder`; or an `Extractor` of texts.
        out: the file, ``.npz``.
        batch_size: texts per batch. With a `SentenceEncoder`, 16 batches are written at a time.
        dtype: data type of the features in the file: ``"float32"``, or ``"float16"`` for half the size.
        progress: called repeatedly with the number of finished texts and the number of all texts.

    Returns:
        The file's path, and the number of texts whose features this call computed.

    Raises:
        ValueError: if an argument is wrong, the file's features were computed from something else, or a
            feature is not finite.
        OSError: if the system refuses to read or write.
        ImportError: if ``tokenizers`` or ``safetensors`` is not installed.
    """
    check_positive("batch_size", batch_size)
    check_choice("dtype", dtype, DTYPES)
    if not len(texts):
        raise ValueError(f"texts: {texts.name} holds none")
    if isinstance(encoder, Extractor):
        extractor, most = encoder, batch_size
    else:
        extractor, most = _of_encoder(encoder, batch_size), _BATCHES * batch_size
    if extractor.inputs is not None:
        raise ValueError(f"encoder: expected one of texts, got {extractor.name}, which takes images")

    def compute(start: int) -> Pieces:
        for first in range(start, len(texts), most):
            yield extractor(texts.texts[first : first + most]), {}

    return keep(texts, "texts", extractor, compute, out=out, dtype=dtype, progress=progress)


def _of_encoder(encoder: SentenceEncoder, batch_size: int) -> Extractor:
    """Make an extractor from a sentence encoder. Its parameters are read at the first computation."""
    params = cache(encoder.load)

    def compute(some: Any) -> np.ndarray:
        return encoder.encode(params(), some, batch_size=batch_size)

    return Extractor(encoder.name, encoder.num_features, compute, encoder.sha256)


def _digest(params: Params) -> str:
    """Return a hash of the parameters' names, shapes and numbers."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@partial(jax.jit, static_argnames=("network", "preprocessing"))
def features_of_pixels(
    params: Params,
    pixels: UInt8[Array, "batch crop crop 3"],
    network: Backbone,
    preprocessing: Preprocessing,
) -> Float[Array, "batch features"]:
    """Normalise pixels on the device, and return their features."""
    return network.apply(params, normalise(pixels, preprocessing)).astype(jnp.float32)
