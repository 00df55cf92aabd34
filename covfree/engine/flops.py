"""Count clients' floating-point operations in closed-form methods, in training and in networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Integer

from covfree.core.checks import check_choice, check_strength
from covfree.core.types import AnyArray
from covfree.engine.bytes import of_rounds
from covfree.methods import Method
from covfree.methods.method import check_method


def client_flops(
    method: Method[Any],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    dim: int,
) -> int:
    """Count the floating-point operations by which all clients together turn features into messages.

    Only leading terms count; a multiplication and an addition are two operations. Class means of n examples
    cost n·d. Gram matrices and covariances add 2·n·d², AFL's local solutions d³/3 + 2·d²·C_k for each client
    (with C_k classes), and a map to D features 2·n·d·D. If clients receive matrices (a head, or directions)
    for a round over their examples, each number in the matrices costs 2·n; triangular matrices count as
    full. Besides, `covfree.refined` adds 2·n·d·q for products with q directions in all rounds together, and
    `covfree.corrected` 2·n·d·C for the gradients of a round. The backbone's forward pass is left out, though
    it usually costs far more.

    Args:
        method: the method.
        labels: classes of all examples; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        dim: d, the dimension of the features before any feature map.

    >>> import covfree, numpy as np
    >>> labels, clients = np.zeros(100, int), np.arange(100) % 10
    >>> [client_flops(m, labels, clients, dim=50) for m in (covfree.fedcof(), covfree.fed3r())]
    [5000, 505000]
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    check_method(method)
    kept = (labels >= 0) & (clients >= 0)
    labels, clients = labels[kept], clients[kept]
    flops, size, classes = 0, len(labels), int(labels.max(initial=0)) + 1
    if method.feature_map is not None:
        flops, dim = 2 * size * dim * method.feature_map.num_features, method.feature_map.num_features
    if method.flops is not None:
        flops += method.flops(method.params, size, dim, classes)
    if any(each.examples for each in method.rounds):
        rounds = zip(
            method.rounds[method.message_rounds :], of_rounds(method, labels, clients, dim), strict=True
        )
        sent = [leaf.shape for each, passed in rounds if each.examples for leaf in passed.sent.leaves]
        flops += 2 * size * sum(math.prod(shape) for shape in sent if len(shape) > 1)
    return flops + method.summary.flops(labels, clients, dim)


def training_flops(
    examples: int | float,
    *,
    extractor: int | float,
    head: int | float,
    epochs: int = 1,
    train: Literal["all", "head", "backbone"] = "all",
) -> int | float:
    """Compute T, the operations of a client that trains in one round, from the operations of forward passes.

    Let F_φ and F_ϕ be the operations of extractor and head on one example. A backward pass through a layer
    costs twice its forward pass: one product for the gradient of the inputs, one for the gradient of the
    weights. An epoch over n examples is a forward pass through both parts, and a backward pass through both,
    or only through the head if the head alone is trained:

        all, backbone:  T = E n (F_φ + F_ϕ + 2 (F_φ + F_ϕ)) = 3 E n (F_φ + F_ϕ),
        head:           T = E n (F_φ + F_ϕ + 2 F_ϕ) = E n (F_φ + 3 F_ϕ).

    Here E is the number of epochs. If κ of K clients take part in each round, the average client has
    computed t·T·κ/K after t rounds.

    Args:
        examples: n.
        extractor: F_φ, e.g. from `call_flops`; 0 for features that are computed once and kept.
        head: F_ϕ, 2·d·C for a linear head.
        epochs: E.
        train: what is trained. ``"backbone"`` (a fixed head) costs the same as ``"all"``, as in the paper.

    Raises:
        ValueError: if a number is negative, or ``train`` is unknown.

    Source: Fed3R (Fanì et al. 2024), Appendix E. There a multiplication with an addition is one operation;
    here it is two, as in `client_flops`.

    >>> training_flops(10, extractor=600, head=2, epochs=5)
    90300
    """
    numbers = {"examples": examples, "extractor": extractor, "head": head, "epochs": epochs}
    for name, number in numbers.items():
        check_strength(name, number)
    check_choice("train", train, ("all", "head", "backbone"))
    through = 3 * (extractor + head) if train != "head" else extractor + 3 * head
    return epochs * examples * through


def call_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the operations of convolutions and matrix products in a call. The call is only traced.

    The forward pass of a network takes ``call_flops(network.apply, params, image)``, its gradient
    ``call_flops(jax.grad(loss), params, image)``. Norms and activations are not counted. A
    convolution's padding counts as part of the image. Only a condition's most expensive branch counts, and a
    loop's body counts once.

    Args:
        function: a function that JAX can trace.
        arguments: its arguments, arrays or ``jax.ShapeDtypeStruct``.

    >>> import jax.numpy as jnp
    >>> call_flops(jnp.matmul, jnp.ones((2, 3)), jnp.ones((3, 5)))
    60
    """
    return 2 * _products(jax.make_jaxpr(function)(*arguments).jaxpr)


def _products(jaxpr: Any) -> int:
    """Count the multiplications in a program's convolutions and matrix products."""
    total = 0
    for equation in jaxpr.eqns:
        output = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            # The kernel's axis of outputs is counted in ``output``; all its other axes are summed over.
            total += output * math.prod(kernel) // kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        elif equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            total += output * math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
        for value in equation.params.values():
            inner = value if isinstance(value, list | tuple) else (value,)
            each = [_products(part.jaxpr) for part in inner if hasattr(part, "jaxpr")]
            # Only one branch is taken (covfree's convolution has one for each platform).
            total += max(each, default=0) if equation.primitive.name == "cond" else sum(each)
    return total
