"""``jax.jit`` with faster compilation on CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import version
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from covfree.core.types import is_traced

_R = TypeVar("_R")

# The first flag selects XLA's older code generator for fused loops, which halves compile time on CPUs; loops
# over elements take up to a fifth longer. The second gives LLVM one module instead of many small ones.
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


def quick_options() -> dict[str, bool | int]:
    """Return XLA flags that shorten compilation on CPUs, except those that ``XLA_FLAGS`` sets already.

    The result is empty for releases of jaxlib that may not know these flags: XLA refuses unknown ones.
    """
    major, minor = map(int, version("jaxlib").split(".")[:2])
    given = os.environ.get("XLA_FLAGS", "")
    known = (0, 6) <= (major, minor) < (0, 11)
    return {flag: value for flag, value in _QUICK.items() if known and flag not in given}


# The flags that jax's ``jax_disable_most_optimizations`` sets.
_PLAIN = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@cache
def _options(plain: bool) -> dict[str, bool | int]:
    """Return the compiler's options: none on an accelerator, else `quick_options`.

    If ``plain``, they also include `_PLAIN`, which turns most optimisations off.

    The options are computed once; later changes of ``XLA_FLAGS`` have no effect.
    """
    if jax.default_backend() != "cpu":
        return {}
    return quick_options() | (_PLAIN if plain else {})


# Arrays of at most this many numbers in all are small: `jit` with ``plain="small"``.
_SMALL = 2**18


def jit(
    function: Callable[..., _R], *, plain: bool | Literal["small"] = False, **how: Any
) -> Callable[..., _R]:
    """Return the function, compiled as by ``jax.jit``, and on CPUs with `quick_options`.

    Inside another ``jit`` the options of that ``jit`` hold.

    Args:
        function: the function to be compiled.
        plain: whether LLVM skips its optimisations, which take two thirds of compilation. Use it for long
            functions that spend their time in products and factorisations, which libraries compute. With
            ``"small"``, LLVM skips them for arguments of at most 2¹⁸ numbers: a few milliseconds a call are
            less than half a second of compilation, unless there are hundreds of calls.
        how: further arguments of ``jax.jit``.
    """
    inside = jax.jit(function, **how)

    @cache
    def outermost(plain: bool) -> Callable[..., _R]:
        return jax.jit(function, compiler_options=_options(plain), **how)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> _R:
        # Inside a caller's ``jit`` a new array is traced even if no argument is, so test one too.
        leaves = jax.tree.leaves((args, kwargs))
        if not _options(True) or is_traced(*leaves, jax.device_put(np.float32(0))):
            return inside(*args, **kwargs)
        if plain == "small":
            return outermost(sum(map(np.size, leaves)) <= _SMALL)(*args, **kwargs)
        return outermost(plain)(*args, **kwargs)

    # Provide the other methods of a jitted function, as in `solve_rows.lower(...)`.
    for name in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, name, getattr(inside, name))

    def made() -> list[Any]:
        return [outermost(True), outermost(False)] if _options(True) else [inside]

    # With ``_cache_size``, tests count the compilations.
    vars(call)["_cache_size"] = lambda: sum(each._cache_size() for each in made())
    return call
