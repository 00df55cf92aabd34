"""``jax.jit`` that compiles quickly on CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import numpy as np

from covfree.core.types import is_traced

_R = TypeVar("_R")

# XLA's older emitters of fused loops halve compile time on CPUs, for code as fast; and LLVM gets one module
# instead of many small ones.
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


def quick_options() -> dict[str, bool | int]:
    """Flags of XLA that shorten compilation on CPUs, without those that ``XLA_FLAGS`` sets already.

    XLA stops at a flag that it does not know: none for releases of jax that are not known to have them.
    """
    major, minor = map(int, version("jaxlib").split(".")[:2])
    given = os.environ.get("XLA_FLAGS", "")
    known = (0, 6) <= (major, minor) < (0, 11)
    return {flag: value for flag, value in _QUICK.items() if known and flag not in given}


# What jax's ``jax_disable_most_optimizations`` sets.
_PLAIN = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@cache
def _options(plain: bool) -> dict[str, bool | int]:
    """`quick_options`, which the first computation reads; none where jax computes on accelerators."""
    if jax.default_backend() != "cpu":
        return {}
    return quick_options() | (_PLAIN if plain else {})


def jit(function: Callable[..., _R], *, plain: bool = False, **how: Any) -> Callable[..., _R]:
    """``jax.jit`` with the flags of `quick_options`, but inside another compiled function with its flags.

    Args:
        function: to be compiled.
        plain: whether LLVM need not optimise, which takes two thirds of compilation: for long functions whose
            work is products and factorisations, which libraries do.
        how: further arguments of ``jax.jit``.
    """
    inside = jax.jit(function, **how)

    @cache
    def outermost() -> Callable[..., _R]:
        return jax.jit(function, compiler_options=_options(plain), **how)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> _R:
        # Under ``jit`` new arrays are traced too, also where no argument is.
        leaves = jax.tree.leaves((args, kwargs))
        if not _options(plain) or is_traced(*leaves, jax.device_put(np.float32(0))):
            return inside(*args, **kwargs)
        return outermost()(*args, **kwargs)

    # The other methods of a jitted function, as in `solve_rows.lower(...)`.
    for name in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, name, getattr(inside, name))

    def compiled() -> Any:
        return outermost() if _options(plain) else inside

    # Tests count what was compiled.
    vars(call)["_cache_size"] = lambda: compiled()._cache_size()
    return call
