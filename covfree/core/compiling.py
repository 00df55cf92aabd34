"""``jax.jit`` with faster compilation on CPUs; ``shard_map`` for all supported versions of jax."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.metadata import version
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from covfree.core.types import is_traced

_R = TypeVar("_R")

if hasattr(jax, "shard_map"):
    # jax checks by types whether an output is equal on all devices. It does not see that gathered totals are,
    # so switch the check off.
    shard_map = partial(jax.shard_map, check_vma=False)
else:
    from jax.experimental.shard_map import shard_map as _shard_map

    shard_map = partial(_shard_map, check_rep=False)

# The first flag selects XLA's older code generator for fused loops, which halves compile time on CPUs; loops
# over elements take up to a fifth longer. The second gives LLVM one module instead of many small ones.
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}

# LLVM's -O2 instead of -O3: a seventh less compile time, and code that is as fast.
_LEVEL = {"xla_backend_optimization_level": 2}

# The flags that jax's ``jax_disable_most_optimizations`` sets.
_PLAIN = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@cache
def _options(plain: bool) -> dict[str, bool | int]:
    """Return the compiler's options: on CPUs `_QUICK` with `_LEVEL` or, if ``plain``, `_PLAIN`; else none.

    Flags that ``XLA_FLAGS`` sets are left out, and `_QUICK` for releases of jaxlib that may not know it: XLA
    refuses unknown flags. The options are computed once; later changes of ``XLA_FLAGS``, or of
    jax's ``jax_disable_most_optimizations``, have no effect.
    """
    if jax.default_backend() != "cpu":
        return {}
    major, minor = map(int, version("jaxlib").split(".")[:2])
    given = os.environ.get("XLA_FLAGS", "")
    quick = _QUICK if (0, 6) <= (major, minor) < (0, 11) else {}
    # If the user has switched optimisations off, do not switch them on again.
    level = {} if jax.config.read("jax_disable_most_optimizations") else _LEVEL
    flags = quick | (_PLAIN if plain else level)
    return {flag: value for flag, value in flags.items() if flag not in given}


# The largest number of entries of an array that counts as small in `_is_short`.
_SMALL = 2**18
_EXPONENTIALS = {"exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "pow"}


def _is_short(jaxpr: Any, repeated: bool = False) -> bool:
    """Return whether a program is so cheap to run that LLVM need not optimise it (see `jit`).

    That is the case if it has only small arrays, no random numbers, and no exponential or logarithm in a loop
    (training has some in its loop). ``repeated`` says whether the program is a loop's body.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(math.prod(each.aval.shape) > _SMALL for each in equation.outvars):
            return False
        if name.startswith(("random", "threefry")) or (repeated and name in _EXPONENTIALS):
            return False
        values = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr"))
        inner = [getattr(value, "jaxpr", value) for value in values]
        again = repeated or name in ("while", "scan")
        if not all(_is_short(each, again) for each in inner if hasattr(each, "eqns")):
            return False
    return True


def jit(
    function: Callable[..., _R], *, plain: bool | Literal["small"] = False, **how: Any
) -> Callable[..., _R]:
    """Compile a function as ``jax.jit`` does; on CPUs, with options that shorten compilation (`_QUICK`).

    Inside another ``jit`` the options of that ``jit`` hold.

    Args:
        function: the function to be compiled.
        plain: whether LLVM skips its optimisations, which take two thirds of compilation. Use it for long
            functions that spend their time in products and factorisations, which libraries compute. With
            ``"small"``, LLVM skips them if arrays have at most 2¹⁸ numbers each, nothing is drawn at random,
            and no loop computes exponentials: then a call takes at most a few milliseconds more.
        how: further arguments of ``jax.jit``.
    """
    inside = jax.jit(function, **how)

    @cache
    def outermost(plain: bool) -> Callable[..., _R]:
        return jax.jit(function, compiler_options=_options(plain), **how)

    short: dict[Any, bool] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> _R:
        # Inside a caller's ``jit``, use that ``jit``'s options. Even if no argument is traced there, a new
        # array is: test one.
        leaves, structure = jax.tree.flatten((args, kwargs))
        if not _options(True) or is_traced(*leaves, jax.device_put(np.float32(0))):
            return inside(*args, **kwargs)
        if plain != "small":
            return outermost(plain)(*args, **kwargs)
        # Whether the program is short depends only on shapes and static arguments. So another value of an
        # argument, such as the shrinkage γ, needs no new compilation.
        forms = [(x.shape, x.dtype) if isinstance(x, jax.Array | np.ndarray) else x for x in leaves]
        key = structure, *(type(form) if isinstance(form, float) else form for form in forms)
        if key not in short:
            every = dict(enumerate(leaves))
            arrays = {i: x for i, x in every.items() if isinstance(x, jax.Array | np.ndarray)}
            # Unflatten inside: jax 0.6 would fill dataclasses in the arguments with shapes, not arrays.
            traced = jax.make_jaxpr(
                lambda arrays: inside(*jax.tree.unflatten(structure, (every | arrays).values())[0], **kwargs)
            )(arrays)
            short[key] = _is_short(traced.jaxpr)
        return outermost(short[key])(*args, **kwargs)

    # Provide the other methods of a jitted function, as in `solve_rows.lower(...)`.
    for name in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, name, getattr(inside, name))

    def made() -> list[Any]:
        return [outermost(True), outermost(False)] if _options(True) else [inside]

    # With ``_cache_size``, tests count the compilations.
    vars(call)["_cache_size"] = lambda: sum(each._cache_size() for each in made())
    return call
