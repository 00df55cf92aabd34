"""Write heads, alone or after a network, to files for other libraries; check the files' scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covfree.backbones import Backbone
from covfree.backbones.extractors import one_of
from covfree.core.array_file import write_safetensors
from covfree.core.atomic import replacing
from covfree.core.optional import optional
from covfree.core.types import LinearHead
from covfree.heads.file import SavedHead
from covfree.heads.onnx_graph import head_to_onnx
from covfree.studies.predictions import scores_of

# The oldest version of the ONNX operators in which heads can be written.
_OLDEST = 13
# The largest difference of scores that is allowed, relative to the largest score, or to 1 if that is larger.
_TOLERANCE = 1e-3


def export_linear(saved: SavedHead, to: str, out: Path) -> None:
    """Write a linear head's arrays as ``torch.nn.Linear`` names them: ``weight [C, d]`` and ``bias [C]``.

    An absent class, for which the head had no training examples, gets the bias −∞.

    Args:
        saved: the head.
        to: ``"torch"`` (needs PyTorch), ``"safetensors"`` or ``"npz"``.
        out: the file.

    Raises:
        ValueError: if the head is not linear.
    """
    head = saved.head
    if not isinstance(head, LinearHead):
        raise ValueError(
            f"--to: expected onnx, as {type(head).__name__} is no torch.nn.Linear, got {to!r}; the head's "
            "own file has its arrays"
        )
    bias = np.array(head.bias, np.float32)
    if head.marks is not None:
        bias[np.asarray(head.marks) == 0] = -np.inf
    arrays = {"weight": np.ascontiguousarray(np.asarray(head.weight, np.float32).T), "bias": bias}
    with replacing(out) as file:
        if to == "torch":
            try:
                import torch  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise ImportError("torch is needed for --to torch; safetensors needs it not") from error
            torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, file)
        elif to == "npz":
            np.savez(file, weight=arrays["weight"], bias=arrays["bias"])
        else:
            file.write(write_safetensors(arrays))


def export_onnx(
    saved: SavedHead,
    out: Path,
    *,
    network: Path | Backbone | None = None,
    params: Any = None,
    output: str | None = None,
) -> tuple[float, float]:
    """Write a head, alone or after a network, as an ONNX file for any batch size, and check its scores.

    Args:
        saved: the head.
        out: the file.
        network: an ONNX file, or a network of covfree, which needs jax2onnx; None for the head alone.
        params: the parameters of a network of covfree.
        output: the name of the tensor in the ONNX file ``network`` that the head takes as features; see
            `covfree.backbones.from_onnx`.

    Returns:
        On random inputs: the largest absolute difference between onnxruntime's scores and covfree's, and the
        largest absolute score of covfree's.

    Raises:
        ValueError: if the network's features do not fit the head, or the file's scores differ from covfree's.
    """
    onnx = optional("onnx", "onnx")
    features: Callable[[Any], Any] = lambda given: given  # noqa: E731
    shape: tuple[Any, ...]
    if network is None:
        model, shape = head_to_onnx(saved.head, class_names=saved.class_names), (saved.dim,)
    else:
        if isinstance(network, Backbone):
            before, shape = _traced(network, params), (network.spec.input_size, network.spec.input_size, 3)
            features = lambda images: network.apply(params, images)  # noqa: E731
        else:
            before = _loaded(onnx, network, output)
            session = _session(before)
            shape = _shape(session, network)
            features = partial(_run, session, output)
        model = _joined(onnx, before, saved, output)
    given = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    theirs = scores_of(saved.head, np.asarray(features(given)).reshape(len(given), -1))
    session = _session(model)
    # Check a batch of one too, as the exported file takes any batch size.
    ours = np.stack(
        [_run(session, None, given), np.concatenate([_run(session, None, each[None]) for each in given])]
    )
    known = np.isfinite(theirs)
    most = float(np.abs(ours[:, known] - theirs[known]).max(initial=0))
    largest = float(np.abs(theirs[known]).max(initial=0))
    if not np.isneginf(ours[:, ~known]).all():
        raise ValueError("head: onnxruntime's scores of absent classes are not −∞")
    if not most <= _TOLERANCE * max(largest, 1):
        raise ValueError(f"head: onnxruntime's scores differ by {most:.2g} of {largest:.2g} from covfree's")
    with replacing(out) as file:
        file.write(model.SerializeToString())
    return most, largest


def _traced(network: Backbone, params: Any) -> Any:
    """Return an ONNX model of a covfree network, from images [n, size, size, 3] to features."""
    to_onnx = optional("jax2onnx", "export").to_onnx
    size = network.spec.input_size
    return to_onnx(lambda images: network.apply(params, images), [("n", size, size, 3)], opset=21)


def _loaded(onnx: Any, path: Path, output: str | None) -> Any:
    """Read an ONNX model, with operators converted if they are too old.

    If ``output`` names an inner tensor, add it to the model's outputs. Raise
    ValueError if no tensor has this name, or if it is None and the model has not exactly one output.
    """
    model = onnx.load(str(path))
    if _opset(model) < _OLDEST:
        model = onnx.version_converter.convert_version(model, _OLDEST)
    outputs = [each.name for each in model.graph.output]
    inside = {name for node in model.graph.node for name in node.output if name}
    if output in inside.difference(outputs):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(output))
    else:
        one_of(output, outputs, "output", path.name)
    return model


def _opset(model: Any) -> int:
    """Return the version of the ONNX operators that a model uses."""
    return max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def _shape(session: Any, path: Path) -> tuple[int, ...]:
    """Return one input example's shape; sizes that the model leaves free are 3 for channels, else 224."""
    inputs = {each.name: each.shape for each in session.get_inputs()}
    if len(inputs) != 1 or session.get_inputs()[0].type != "tensor(float)":
        raise ValueError(f"network: expected one input in float32 in {path}, got {inputs}")
    batch, *sides = session.get_inputs()[0].shape
    if isinstance(batch, int):
        raise ValueError(f"network: expected a free batch size in {path}, got {batch}; export it with one")
    # As in `from_onnx`, an image whose first size is free and whose last is not 3 is [channels, height,
    # width]: give it 3 channels.
    free = len(sides) == 3 and not isinstance(sides[0], int) and sides[2] != 3
    sides = [3, *sides[1:]] if free else sides
    return tuple(side if isinstance(side, int) else 224 for side in sides)


def _joined(onnx: Any, before: Any, saved: SavedHead, output: str | None) -> Any:
    """Return one ONNX model: the network ``before``, with the head applied to its tensor ``output``."""
    settings: dict[str, Any] = {"opset": _opset(before), "ir_version": before.ir_version}
    after = head_to_onnx(saved.head, class_names=saved.class_names, **settings)
    del after.opset_import[:]
    after.opset_import.extend(before.opset_import)
    joint = [(output or before.graph.output[0].name, "head_features")]
    taken = {name for node in before.graph.node for name in (*node.input, *node.output)}
    joined = onnx.compose.add_prefix(after, "head_")
    model = onnx.compose.merge_models(before, joined, io_map=joint, outputs=["head_scores"])
    if "scores" not in taken:
        for node in model.graph.node:
            node.output[:] = ["scores" if name == "head_scores" else name for name in node.output]
        model.graph.output[0].name = "scores"
    return model


def _session(model: Any) -> Any:
    """Return a session of onnxruntime that runs the model; raise ValueError if the model exceeds 2 GB."""
    too_large = (ValueError, optional("google.protobuf.message", "onnx").EncodeError)
    try:
        content = model.SerializeToString()
    except too_large as error:
        raise ValueError(
            f"out: expected at most 2 GB, which is all that one ONNX file holds ({error})"
        ) from error
    runtime = optional("onnxruntime", "onnx")
    return runtime.InferenceSession(content, providers=["CPUExecutionProvider"])


def _run(session: Any, output: str | None, given: np.ndarray) -> np.ndarray:
    """Run a model on its only input; return the output named ``output``, or the first if that is None."""
    output = output or session.get_outputs()[0].name
    try:
        return session.run([output], {session.get_inputs()[0].name: given})[0]
    except Exception as error:  # onnxruntime raises errors of its own classes
        raise ValueError(f"network: onnxruntime cannot run it on inputs {given.shape} ({error})") from error
