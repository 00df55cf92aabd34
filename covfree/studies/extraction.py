"""Compute features of images and texts for the command line, with a progress bar and a summary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from covfree import backbones
from covfree.backbones import BACKBONES, Extractor, SentenceEncoder, from_onnx
from covfree.backbones.hub import Weights, find_weights
from covfree.backbones.processor import preprocessing_of
from covfree.core.registries import nearest
from covfree.data.extract import encode_texts, extract_features
from covfree.data.image_set import ImageSet
from covfree.data.images import load_images
from covfree.data.kept import Extracted
from covfree.data.labelled import LabelledSet
from covfree.data.texts import TextSet
from covfree.studies.names import of_options
from covfree.studies.progress import Progress, say

# How many of the ignored files the summary names.
_SHOWN = 3


def backbone_of(text: str) -> str:
    """Return the name in `BACKBONES` that ``text`` gives, perhaps with dashes instead of underscores."""
    name = text.replace("-", "_")
    if name not in BACKBONES:
        known = [each.replace("_", "-") for each in BACKBONES]
        near = nearest(text.replace("_", "-"), known)
        raise ValueError(f"--backbone: expected one of {', '.join(known)}, got {text!r}{near}")
    return name


def opened(
    backbone: str, weights: str | None, output: str | None = None, preprocessing: str | None = None
) -> tuple[str | Extractor, Weights | None]:
    """Open the network that ``--backbone`` names; errors begin with the option that is wrong.

    Args:
        backbone: a name in `BACKBONES`; or an ONNX file, where ``model.onnx:name`` also names the tensor to
            take as features.
        weights: the weights of a backbone, see `find_weights`; an ONNX file holds its own.
        output: the name of an ONNX file's tensor, used instead of the one in ``backbone``.
        preprocessing: for an ONNX file, a text as in `preprocessing_of`; None to look for it in its folder.

    Returns:
        A name in `BACKBONES` and the weights; or, of an ONNX file, an `Extractor` and None.
    """
    if re.search(r"\.onnx(:|$)", backbone):
        if weights is not None:
            raise ValueError(f"--weights: expected none, as {backbone} holds its own")
        path, _, inside = backbone.rpartition(".onnx")
        with of_options("output", "preprocessing", path="backbone"):
            chosen = None if preprocessing is None else preprocessing_of(preprocessing)
            return from_onnx(f"{path}.onnx", output=output or inside[1:] or None, preprocessing=chosen), None
    for option, value in {"output": output, "preprocessing": preprocessing}.items():
        if value is not None:
            raise ValueError(f"--{option}: expected an .onnx file as --backbone, got {backbone}")
    name = backbone_of(backbone)
    with of_options("weights"):
        return name, find_weights(weights, BACKBONES[name])


def read_images(
    source: str,
    *,
    pattern: str | None,
    splits: dict[str, Any],
    client_column: str | None,
    class_names: tuple[str, ...] | None = None,
) -> ImageSet:
    """Open the image set that ``--images`` and its related options describe.

    ``splits`` has the keys ``train`` and ``test``, which are arguments of `tfds`. The values are the
    names of a TensorFlow data set's splits; None stands for the default of `tfds`.
    """
    of_tfds = {name: value for name, value in splits.items() if value is not None}
    if client_column is not None:
        of_tfds["client_column"] = client_column
    kind, _, name = source.partition(":")
    if class_names is not None and not Path(source).is_dir():
        raise ValueError(f"--class-names: expected a folder of images, got {source}")
    if kind == "tfds":
        if pattern is not None:
            raise ValueError(f"--pattern: expected a folder of images, got {source}")
        from covfree.data.from_tfds import tfds

        if of_tfds.get("test") == "none":
            of_tfds["test"] = None
        return tfds(name, **of_tfds)
    if of_tfds:
        option = option_of(of_tfds) + "-split" * bool(set(of_tfds) & {"train", "test"})
        raise ValueError(f"{option}: expected a TensorFlow data set, tfds:NAME, got {source}")
    if pattern is None and class_names is None:
        with of_options(**{source: f"images: {source}"}):
            return load_images(source)
    if not Path(source).is_dir():
        raise ValueError(f"--pattern: expected a folder of images, got {source}")
    from covfree.data.folders import image_folder

    return image_folder(source, pattern=pattern, class_names=class_names)


def names_in(path: Path | None) -> tuple[str, ...] | None:
    """Read class names from a text file, one per line; return None without a file."""
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--class-names: expected a text file in UTF-8, got {path} ({error})") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--class-names: expected a name a line, each once, in {path}, got {len(names)}")
    return names


def option_of(given: dict[str, Any]) -> str:
    """Return the option of the first key in ``given``: for ``client_column`` it is ``--client-column``."""
    return "--" + next(iter(given)).replace("_", "-")


def extract(
    images: ImageSet,
    network: str | Extractor,
    out: Path,
    *,
    weights: Weights | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    on_damaged: str = "stop",
) -> Extracted:
    """Write features of images to the file ``out``, under a progress bar, and print a summary.

    ``network`` is a name in `BACKBONES`, and needs ``weights``; or an `Extractor`, which holds its weights.
    """
    own: dict[str, Any] = {"out": out, "dtype": dtype, "batch_size": batch_size, "on_damaged": on_damaged}
    if weights is None:
        assert isinstance(network, Extractor)
        name, compute = network.name, partial(extract_features, images, network, **own)
    else:
        name = str(network)
        known, path = backbones.backbone(name), weights.path
        own |= {"weights": weights.sha256, "preprocessing": weights.preprocessing}
        # Load only if there is something to compute: importing Flax and reading the file take seconds.
        compute = partial(extract_features, images, known, lambda: known.load(path), **own)
    return _under_bar(images, "images", name, compute)


def encode(
    texts: TextSet, encoder: SentenceEncoder, out: Path, *, dtype: str = "float32", batch_size: int = 64
) -> Extracted:
    """Write features of texts to the file ``out``, under a progress bar, and print a summary."""
    compute = partial(encode_texts, texts, encoder, out=out, dtype=dtype, batch_size=batch_size)
    return _under_bar(texts, "texts", encoder.name, compute)


def _under_bar(examples: LabelledSet, noun: str, name: str, compute: Callable[..., Extracted]) -> Extracted:
    start = time.perf_counter()
    with Progress(width=40) as bar:

        def show(now: int, total: int) -> None:
            bar.step(f"{bar.speed:,.0f} {noun}/s" if bar.speed else name, now, total)

        found = compute(progress=show)
    for example, reason in found.skipped.items():
        say(f"skipped {example}: {reason}")
    say(_summary(examples, noun, found, time.perf_counter() - start))
    return found


def _summary(examples: LabelledSet, noun: str, found: Extracted, seconds: float) -> str:
    parts = [f"{len(examples):,} {noun}"]
    if found.skipped:
        parts.append(f"{len(found.skipped):,} skipped")
    if examples.ignored:
        shown = ", ".join(examples.ignored[:_SHOWN]) + (", …" if len(examples.ignored) > _SHOWN else "")
        parts.append(f"{len(examples.ignored):,} left aside ({shown})")
    parts.append(
        f"{found.computed:,} computed in {seconds:.1f} s ({found.computed / seconds:,.0f} {noun}/s)"
        if found.computed
        else "nothing to compute"
    )
    return f"{', '.join(parts)}: {found.path}, {found.path.stat().st_size:,} bytes"
