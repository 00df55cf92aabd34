"""Image sets from TensorFlow Datasets, without TensorFlow."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from covfree.core.optional import optional
from covfree.data.dataset import StrPath
from covfree.data.image_set import ImageSet, decode_image, is_damage

# Names of splits to test on, the preferred one first.
_TESTS = ("test", "validation", "valid", "val")


def tfds(
    name: str,
    *,
    train: str = "train",
    test: str | None = "auto",
    client_column: str | None = None,
    image_column: str = "image",
    label_column: str = "label",
    data_dir: StrPath | None = None,
) -> ImageSet:
    """Open a data set of TensorFlow Datasets (needs the ``tfds`` extra, but no TensorFlow).

    Args:
        name: any name that TFDS knows, such as ``"cifar10"`` or ``"my_set/config:1.0.0"``.
        train: the split to train on, in TFDS's terms: ``"train"``, ``"train[:80%]"``.
        test: the split to test on. ``"auto"`` takes the first that exists of ``test``, ``validation``,
            ``valid`` and ``val``; None for no test part.
        client_column: the feature that holds each example's client, as text or integers, if any.
        image_column: the feature that holds the image.
        label_column: the feature that holds the class.
        data_dir: the folder of TFDS's data; by default TFDS's own.

    Returns:
        The image set, in TFDS's order. An image's id is its split and its index in the whole split
        (``"train/17"``), even if only a part of the split was asked for. Examples without a label (below 0)
        are ignored.

    Missing data are downloaded and prepared in the format array_record, as by ``tfds.data_source``; data
    prepared in another format are an error. All examples are read once for their labels; images are decoded
    on access, as in `image_folder`.

    The fingerprint is a hash of the data set's name and version, and of the names, sizes and modification
    times of its files; see `image_folder` for changes that it misses.

    Raises:
        ImportError: if TFDS is not installed.
        ValueError: if there is no such data set, split or feature, it cannot be prepared (without internet,
            say), the splits overlap, or a file is damaged.

    Equivalent to ``tfds.data_source(name, split=...)`` with images in RGB.
    """
    library = optional("tensorflow_datasets", "tfds")
    builder = _prepared(library, name, data_dir)
    splits = builder.info.splits
    if test == "auto":
        test = next((split for split in _TESTS if split in splits), None)
    columns = _columns(library, builder, image_column, label_column, client_column)
    about = library.features.FeaturesDict({key: columns[key] for key in columns if key != image_column})

    raw = library.decode.DeserializeMethod.RAW_BYTES
    # For each labelled example: its id, where it is stored, its label, its client, and whether it is a test.
    found: list[tuple[str, tuple[Sequence[Any], int], int, Any, bool]] = []
    ignored: list[str] = []
    digest = hashlib.sha256(repr((builder.info.full_name, image_column)).encode())
    for expression, testing in ((train, False), (test, True)):
        if expression is None:
            continue
        instructions = _instructions(builder, expression)
        for file in (os.fspath(instruction.filename) for instruction in instructions):
            state = os.stat(file)
            digest.update(repr((os.path.basename(file), state.st_size, state.st_mtime_ns)).encode())
        # Open the serialised examples: labels and clients are parsed now, but images only when they are read.
        records = builder.as_data_source(expression, deserialize_method=raw) if instructions else ()
        before = len(found)
        for place, each in enumerate(_names(builder, instructions)):
            example = _parse(about, records, place, each)
            if example[label_column] < 0:
                ignored.append(each)
                continue
            client = None if client_column is None else example[client_column]
            client = client.decode() if isinstance(client, bytes) else client
            found.append((each, (records, place), example[label_column], client, testing))
        if len(found) == before:
            raise ValueError(
                f"{name}: split {expression!r} has no labelled example; it has the splits {sorted(splits)}"
            )
    ids, _, labels, clients, is_test = zip(*found, strict=True)
    digest.update("\n".join(ids).encode())
    if len(set(ids)) < len(ids):
        raise ValueError(f"{name}: expected splits without common examples, got {train!r} and {test!r}")

    image = library.features.FeaturesDict({image_column: columns[image_column]})
    skip = {image_column: library.decode.SkipDecoding()}

    def read(i: int) -> Any:
        each, (records, place), *_ = found[i]
        example = _parse(image, records, place, each, decoders=skip)
        return decode_image(io.BytesIO(example[image_column]), each)

    return ImageSet(
        name=builder.info.name,
        ids=ids,
        labels=np.array(labels, np.int32),
        class_names=tuple(columns[label_column].names),
        read=read,
        fingerprint=digest.hexdigest(),
        clients=None if client_column is None else np.array(clients),
        is_test=None if test is None else np.array(is_test),
        ignored=tuple(ignored),
    )


def _prepared(library: Any, name: str, data_dir: StrPath | None) -> Any:
    """Return TFDS's builder of this data set; prepare its files if they are missing."""
    where = None if data_dir is None else os.fspath(data_dir)
    try:
        builder = library.builder(name, data_dir=where)
        if not builder.info.splits:
            builder.download_and_prepare(file_format="array_record")
    # Catch all errors: TFDS and its libraries raise many kinds, with messages of up to a thousand lines.
    except Exception as error:
        folder = "" if where is None else f", data_dir={where!r}"
        raise ValueError(
            f"tfds:{name}: is not prepared, and cannot be here "
            f"({type(error).__name__}: {_first_line(error)}). Where there is internet, run "
            f"tensorflow_datasets.builder({name!r}{folder}).download_and_prepare("
            'file_format="array_record"), and copy the folder that it writes'
        ) from error
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise ValueError(
            f"tfds:{name}: was prepared as {stored}; prepare it again, in another data_dir, with "
            'download_and_prepare(file_format="array_record")'
        )
    return builder


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _columns(library: Any, builder: Any, image: str, label: str, client: str | None) -> dict[str, Any]:
    """Return TFDS's features of these columns; raise ValueError if one is missing or of the wrong type."""
    kinds = library.features
    features = builder.info.features

    def is_image(feature: Any) -> bool:
        # TFDS stores a float image as raw bytes, which are not an image file.
        return isinstance(feature, kinds.Image) and feature.np_dtype == np.uint8

    def is_name(feature: Any) -> bool:
        if isinstance(feature, kinds.Text):
            return True
        return feature.shape == () and np.dtype(feature.np_dtype).kind in "iu"

    wanted = (
        ("image_column", image, "an Image of uint8", is_image),
        ("label_column", label, "a ClassLabel", lambda feature: isinstance(feature, kinds.ClassLabel)),
        ("client_column", client, "text or an integer", is_name),
    )
    held = list(features) if isinstance(features, kinds.FeaturesDict) else []
    found = {}
    for argument, column, text, fits in wanted:
        if column is None:
            continue
        if column not in held:
            raise ValueError(f"{argument}: {builder.info.name} has no feature {column!r}, only {held}")
        if not fits(features[column]):
            raise ValueError(f"{argument}: expected {text}, got {column!r}: {features[column]}")
        found[column] = features[column]
    return found


def _instructions(builder: Any, expression: str) -> Sequence[Any]:
    """Return which files of a TensorFlow data set, and which part of each, hold the examples of a split.

    ``expression`` is the split's name, or a part of it, such as ``train[:10%]``.
    """
    splits = builder.info.splits
    try:
        return splits[expression].file_instructions
    # Catch all errors: a missing split and a malformed expression raise different ones.
    except Exception as error:
        raise ValueError(
            f"{builder.info.name}: expected a split such as {sorted(splits)}, got {expression!r} "
            f"({_first_line(error)})"
        ) from error


def _names(builder: Any, instructions: Sequence[Any]) -> list[str]:
    """Return each example's id: its split and its index in the whole split, as in ``train/17``."""
    # For each file its split, and the number of examples in that split's earlier files.
    before = {}
    for split, info in builder.info.splits.items():
        count = 0
        for file, length in zip(info.filepaths, info.shard_lengths, strict=True):
            before[os.fspath(file)] = split, count
            count += length
    names = []
    for instruction in instructions:
        split, count = before[os.fspath(instruction.filename)]
        first = count + instruction.skip
        names += [f"{split}/{place}" for place in range(first, first + instruction.take)]
    return names


def _parse(features: Any, records: Sequence[Any], place: int, name: str, **options: Any) -> Any:
    try:
        example = features.deserialize_example_np(records[place], **options)
        # For a file that was cut off, the reader returns empty messages.
        if missing := [column for column in features if example[column] is None]:
            raise ValueError(f"it holds no {missing[0]!r}")
        return example
    # Catch all errors: the readers of files and messages raise many kinds.
    except Exception as error:
        if not is_damage(error):
            raise
        raise ValueError(f"{name}: the example is damaged ({type(error).__name__}: {error})") from error
