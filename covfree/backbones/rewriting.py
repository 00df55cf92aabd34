"""Other people's networks with this folder's convolutions and maxima in them."""

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
    """The same function, in which XLA's convolutions and maxima are `convolve` and `max_pool`.

    So a network of plain ``flax.linen.Conv`` and ``max_pool`` is trained in a loop on a CPU as fast as one
    that was written for it. What it gives is the same within rounding. Elsewhere than on a CPU it is
    ``function`` itself. What lies inside ``jax.checkpoint``, a ``scan`` or a rule for derivatives stays as it
    is.

    Args:
        function: of pytrees of arrays, by position, to a pytree of arrays.
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
    """Run a jaxpr, equation by equation."""
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in jaxpr.eqns:
        inputs = [x.val if isinstance(x, core.Literal) else known[x] for x in equation.invars]
        results = _run(equation, inputs)
        known.update(zip(equation.outvars, results, strict=True))
    return [x.val if isinstance(x, core.Literal) else known[x] for x in jaxpr.outvars]


def _run(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """What an equation gives; `jax.jit` inside is opened, so that it is rewritten too."""
    primitive, params = equation.primitive, equation.params
    if primitive is _CONVOLUTION:
        return [_convolved(*inputs, **params)]
    if primitive is _MAXIMUM and _is_of_images(**params):
        window, strides = params["window_dimensions"][1:3], params["window_strides"][1:3]
        return [max_pool(inputs[0], window, strides, params["padding"][1:3])]
    if primitive.name in ("jit", "pjit"):
        return _evaluate(params["jaxpr"].jaxpr, params["jaxpr"].consts, inputs)
    settings = primitive.get_bind_params(params)
    # Before jax 0.10 functions come apart.
    functions, settings = settings if isinstance(settings, tuple) else ((), settings)
    with equation.ctx.manager:
        results = primitive.bind(*functions, *inputs, **settings)
    return results if primitive.multiple_results else [results]


def _convolved(
    x: jax.Array, kernel: jax.Array, *, window_strides: Any, preferred_element_type: Any, **settings: Any
) -> jax.Array:
    # Where it is that of the images it says nothing.
    if preferred_element_type is not None and preferred_element_type != x.dtype:
        settings["preferred_element_type"] = preferred_element_type
    return convolve(x, kernel, window_strides, **settings)


def _is_of_images(
    *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
) -> bool:
    """Whether windows have two sides, those in the middle, and no gaps."""
    if len(window_dimensions) != 4 or {*base_dilation, *window_dilation} != {1}:
        return False
    outer = {(window_dimensions[i], window_strides[i], tuple(padding[i])) for i in (0, 3)}
    return outer == {(1, 1, (0, 0))}
