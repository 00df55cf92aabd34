"""Make extractors from ONNX files, such as those exported by timm, Hugging Face or MONAI."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from covfree.backbones.extractors import Extractor, from_function, one_of, pooled
from covfree.backbones.processor import preprocessing_beside
from covfree.backbones.table import Preprocessing
from covfree.core.optional import optional


def from_onnx(
    path: str | PathLike[str],
    *,
    output: str | None = None,
    preprocessing: Preprocessing | None = None,
    threads: int | None = None,
) -> Extractor:
    """Make an extractor from an ONNX file, which onnxruntime runs (extra ``onnx``).

    Args:
        path: a network with one input: images in float32, [n, 3, height, width] or [n, height, width, 3],
            where n may be fixed. If the file leaves all axes open, the second axis is the channels.
        output: the tensor that holds the features [n, d]: an output or any inner tensor, such as the one
            before the classifier. None if there is only one output.
        preprocessing: preprocessing of images; None reads ``preprocessor_config.json`` or timm's
            ``config.json`` from the file's folder.
        threads: threads of onnxruntime; None lets it choose.

    Returns:
        The extractor. ``weights`` is the SHA-256 of the file and of separate files with weights. ``name`` is
        ``"onnx"`` if the features are the file's only output, else ``"onnx:"`` and ``output``; it does not
        depend on the file's name.

    Raises:
        ValueError: if the file is no such network, ``output`` is not in it (the message lists the outputs),
            or there is no preprocessing.
        FileNotFoundError: if there is no such file.
        ImportError: if onnx or onnxruntime is not installed.
    """
    runtime, onnx = optional("onnxruntime", "onnx"), optional("onnx", "onnx")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path: no such file: {path}")
    try:
        graph = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises errors of its own classes
        raise ValueError(f"path: expected an ONNX file, got {path} ({error})") from error
    digest = _digest(path, graph, onnx)
    chosen = preprocessing or preprocessing_beside(path)
    outputs = [each.name for each in graph.graph.output]
    inside = {name for node in graph.graph.node for name in node.output if name}
    source: str | bytes = str(path)
    if output in inside and output not in outputs:
        onnx.load_external_data_for_model(graph, str(path.parent))
        graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(output))
        source = graph.SerializeToString()
    else:
        output = one_of(output, outputs, "output", path.name)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    try:
        session = runtime.InferenceSession(source, options, providers=runtime.get_available_providers())
    except Exception as error:  # onnxruntime's errors have no class in common
        raise ValueError(f"path: onnxruntime cannot run {path} ({error})") from error
    entry, batch, channels_first = _entry(session.get_inputs(), path, chosen.crop)

    def run(images: np.ndarray) -> np.ndarray:
        try:
            (found,) = session.run([output], {entry: images})
        except Exception as error:  # onnxruntime's errors have no class in common
            raise ValueError(
                f"path: onnxruntime cannot run {path} on images of side {chosen.crop} ({error})"
            ) from error
        return pooled(found)

    def compute(images: np.ndarray) -> np.ndarray:
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if channels_first else images
        if batch is None:
            return run(images)
        short = -len(images) % batch
        padded = np.concatenate([images, np.zeros((short, *images.shape[1:]), np.float32)])
        parts = [run(padded[first : first + batch]) for first in range(0, len(padded), batch)]
        return np.concatenate(parts)[: len(images)]

    name = "onnx" if [output] == outputs else f"onnx:{output}"
    return from_function(compute, name=name, weights=digest, preprocessing=chosen)


def _entry(inputs: Any, path: Path, crop: int) -> tuple[str, int | None, bool]:
    """Return a model's only input: its name, its batch size, and whether channels precede height and width.

    The batch size is None if it is free. Raise ValueError unless the input is images in float32, of side
    ``crop`` (or any).
    """
    shapes = {each.name: each.shape for each in inputs}
    shape = next(iter(shapes.values()), [])
    if len(shapes) != 1 or len(shape) != 4 or (isinstance(shape[1], int) and 3 not in (shape[1], shape[3])):
        raise ValueError(
            f"path: expected one input of images, [n, 3, height, width] or [n, height, width, 3], in {path}, "
            f"got {shapes}"
        )
    if inputs[0].type != "tensor(float)":
        raise ValueError(f"path: expected an input in float32 in {path}, got {inputs[0].type}")
    channels_first = shape[1] == 3 or shape[3] != 3
    sides = shape[2:] if channels_first else shape[1:3]
    if any(isinstance(side, int) and side != crop for side in sides):
        raise ValueError(f"preprocessing: expected crop {sides[0]}, as {path} takes, got {crop}")
    return inputs[0].name, shape[0] if isinstance(shape[0], int) else None, channels_first


def _digest(path: Path, graph: Any, onnx: Any) -> str:
    """Compute one SHA-256 of the file and of separate files that contain its weights."""
    digest = hashlib.sha256(path.read_bytes())
    beside = {
        entry.value
        for tensor in graph.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in sorted(beside):
        with (path.parent / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
