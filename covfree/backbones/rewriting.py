"""Rewrite any JAX function to use the convolutions and max pooling of `covfree.backbones.convolution`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.extend import core

from covfree.backbones.convolution import convolve, max_pool

Function = TypeVar("Function", bound=Callable[..., Any])
_CONVOLUTION = core.primitives.conv_general_dilated_p
_MAXIMUM = core.primitives.reduce_window_max_p


def with_fast_forms(function: Function) -> Function:
    """Return the function with XLA's convolutions and max pooling replaced by `convolve` and `max_pool`.

    On a CPU, a network of plain ``flax.linen.Conv`` and ``max_pool`` is then trained in a loop as fast as one
    that uses `convolve`. Results are equal up to rounding. If the default backend is no CPU, ``function`` is
    called unchanged. Code inside ``jax.checkpoint``, ``scan`` or custom derivatives is not rewritten.
    """

    @functools.wraps(function)
    def rewritten(*args: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*args)
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        outputs = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return rewritten  # pyright: ignore[reportReturnType]


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Return a jaxpr's outputs, evaluated equation by equation with convolutions and max pooling replaced."""
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in jaxpr.eqns:
        inputs = [x.val if isinstance(x, core.Literal) else known[x] for x in equation.invars]
        results = _run(equation, inputs)
        known.update(zip(equation.outvars, results, strict=True))
    return [x.val if isinstance(x, core.Literal) else known[x] for x in jaxpr.outvars]


def _run(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Run a jaxpr's equation, with convolutions and max pooling replaced, also inside a `jax.jit`."""
    primitive, params = equation.primitive, equation.params
    if primitive is _CONVOLUTION:
        return [_convolved(*inputs, **params)]
    if primitive is _MAXIMUM and _is_of_images(**params):
        window, strides = params["window_dimensions"][1:3], params["window_strides"][1:3]
        return [max_pool(inputs[0], window, strides, params["padding"][1:3])]
    if primitive.name in ("jit", "pjit"):
        return _evaluate(params["jaxpr"].jaxpr, params["jaxpr"].consts, inputs)
    settings = primitive.get_bind_params(params)
    # Before jax 0.10, `get_bind_params` returns functions separately.
    functions, settings = settings if isinstance(settings, tuple) else ((), settings)
    with equation.ctx.manager:
        results = primitive.bind(*functions, *inputs, **settings)
    return results if primitive.multiple_results else [results]


def _convolved(
    x: jax.Array, kernel: jax.Array, *, window_strides: Any, preferred_element_type: Any, **settings: Any
) -> jax.Array:
    # Drop `preferred_element_type` if it is x's own: it changes no result, but would rule out the fast forms.
    if preferred_element_type is not None and preferred_element_type != x.dtype:
        settings["preferred_element_type"] = preferred_element_type
    return convolve(x, kernel, window_strides, **settings)


def _is_of_images(
    *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
) -> bool:
    """Return whether pooling windows move over height and width alone, in [n, height, width, channels].

    False also if inputs or windows are dilated.
    """
    if len(window_dimensions) != 4 or {*base_dilation, *window_dilation} != {1}:
        return False
    outer = {(window_dimensions[i], window_strides[i], tuple(padding[i])) for i in (0, 3)}
    return outer == {(1, 1, (0, 0))}
