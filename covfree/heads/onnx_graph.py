"""Convert heads to small ONNX graphs, which any ONNX runtime can compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from covfree.core.optional import optional
from covfree.core.types import LinearHead
from covfree.heads.composed import CorrectedHead, taken
from covfree.heads.gaussian import GaussianHead
from covfree.heads.student import StudentHead


def head_to_onnx(
    head: Any, *, class_names: Sequence[str] | None = None, opset: int = 17, ir_version: int = 8
) -> Any:
    """Convert a head to an ONNX model from ``features [n, d]`` to ``scores [n, C]``, in float32, for any n.

    A class without examples has the score −∞, as in covfree.

    Args:
        head: a `LinearHead`, `GaussianHead`, `StudentHead`, or one of these with a linear term.
        class_names: a name for each class; kept in the model's metadata as ``class_names``, a list in JSON.
        opset: the version of the ONNX operators, 13 or above.
        ir_version: the version of the ONNX file format.

    Returns:
        An ``onnx.ModelProto``.

    Raises:
        TypeError: if the head has another type.
        ImportError: if onnx is not installed (extra ``onnx``).

    >>> import jax.numpy as jnp
    >>> model = head_to_onnx(LinearHead(jnp.eye(2), jnp.zeros(2)))
    >>> [node.op_type for node in model.graph.node]
    ['Flatten', 'MatMul', 'Add']
    """
    onnx = optional("onnx", "onnx")
    h, graph = onnx.helper, _Graph(onnx)
    # The input may have the shape [n, d, 1, 1] that average pooling leaves.
    flat = graph.node("Flatten", "features", axis=1)
    scores, dim, classes = _scores(graph, taken(head), flat)
    graph.nodes[-1].output[0] = scores = "scores"
    kind = onnx.TensorProto.FLOAT
    made = h.make_graph(
        graph.nodes,
        "head",
        [h.make_tensor_value_info("features", kind, ["n", dim])],
        [h.make_tensor_value_info(scores, kind, ["n", classes])],
        graph.arrays,
    )
    model = h.make_model(made, opset_imports=[h.make_opsetid("", opset)], ir_version=ir_version)
    model.producer_name = "covfree"
    if class_names is not None:
        h.set_model_props(model, {"class_names": json.dumps(list(class_names), ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


class _Graph:
    """An ONNX graph that is being built: lists of its nodes and of its stored arrays."""

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.nodes, self.arrays = onnx, list[Any](), list[Any]()

    def node(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node; return its output's name. Inputs are output names, or arrays to store in float32."""
        name = f"t{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.stored(each) for each in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, names, [name], **attributes))
        return name

    def stored(self, values: Any, dtype: Any = np.float32) -> str:
        """Store an array in the graph; return its name."""
        name = f"a{len(self.arrays)}"
        # Copy: ONNX takes no array that is read-only or a view of another.
        array = np.array(values, dtype, order="C")
        self.arrays.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def squares(self, values: str, size: int) -> str:
        """Add nodes that sum squares over the last axis, of length ``size``; return their output's name."""
        return self.node("MatMul", self.node("Mul", values, values), np.ones((size, 1)))


def _scores(graph: _Graph, head: Any, features: str) -> tuple[str, int, int]:
    """Add the nodes that compute a head's scores; return the name of the node output with them, d and C."""
    if isinstance(head, CorrectedHead):
        own, dim, classes = _scores(graph, head.head, features)
        scaled = graph.node("Mul", own, head.scale)
        more = _scores(graph, head.linear, features)[0]
        return graph.node("Add", scaled, more), dim, classes
    if isinstance(head, LinearHead):
        weight, bias = np.asarray(head.weight, np.float64), np.asarray(head.bias, np.float64)
        scores = graph.node("MatMul", features, weight)
        return graph.node("Add", scores, bias + _absent(head.marks)), *weight.shape
    if isinstance(head, GaussianHead):
        mean, root = np.asarray(head.mean, np.float64), np.asarray(head.root, np.float64)
        spread = graph.node("Unsqueeze", features, graph.stored([0], np.int64))
        deviation = graph.node("Sub", spread, mean[:, None])
        if root.ndim == 2:
            white = graph.node("Div", deviation, root[:, None])
        else:
            white = graph.node("MatMul", deviation, np.linalg.inv(root).transpose(0, 2, 1))
        square = graph.node("Squeeze", graph.squares(white, mean.shape[1]), graph.stored([2], np.int64))
        half = graph.node("Mul", graph.node("Transpose", square, perm=[1, 0]), -0.5)
        bias = np.asarray(head.bias, np.float64) + _absent(head.present)
        return graph.node("Add", half, bias), mean.shape[1], len(mean)
    if isinstance(head, StudentHead):
        return _student(graph, head, features)
    raise TypeError(
        "head: expected a LinearHead, GaussianHead or StudentHead without a map of features, perhaps with a "
        f"linear term, got {type(head).__name__}"
    )


def _student(graph: _Graph, head: StudentHead, features: str) -> tuple[str, int, int]:
    """Add the nodes that compute the formula in `StudentHead`; return what `_scores` does."""
    root, mean, parts = (np.asarray(part, np.float64) for part in (head.root, head.mean, head.parts))
    dim, classes = len(root), len(mean)
    white = graph.node("MatMul", graph.node("Sub", features, head.centre), np.linalg.inv(root).T)
    across = graph.node("MatMul", white, -2 * mean.T)
    square = graph.node("Add", graph.node("Add", graph.squares(white, dim), across), (mean**2).sum(1))
    if len(parts):
        along = graph.node("Sub", graph.node("MatMul", white, parts.T), head.offset)
        own = np.asarray(head.label)[:, None] == np.arange(classes)
        seen = graph.node("MatMul", graph.node("Mul", along, along), own)
        square = graph.node("Sub", square, seen)
    distance = graph.node("Mul", graph.node("Max", square, np.zeros(())), head.scale)
    logarithm = graph.node("Log", graph.node("Add", distance, np.ones(())))
    spread = graph.node("Mul", logarithm, -np.asarray(head.degrees, np.float64))
    bias = np.asarray(head.log_prior, np.float64) + np.asarray(head.bias) + _absent(head.present)
    return graph.node("Add", spread, bias), dim, classes


def _absent(present: Any) -> Any:
    """Return what to add to each class's score: 0 for a present class, −∞ for an absent one."""
    return 0.0 if present is None else np.where(np.asarray(present) > 0, 0.0, -np.inf)
