"""Check arrays before they enter jax, which silently truncates large integers; check heads for NaN and ∞.

Labels and clients may come in any integer type, and are converted to int32: a narrower type might overflow in
comparisons, and a wider one may hold numbers that jax would truncate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Integer

from covfree.core.compiling import jit
from covfree.core.padding import as_arrays, clip_to_int32, pad_rows
from covfree.core.types import is_traced

_P = ParamSpec("_P")
AnyHead = TypeVar("AnyHead")
_R = TypeVar("_R")

_INT32 = np.iinfo(np.int32)


def compiled(
    static_argnames: tuple[str, ...] = (),
    *,
    check: Callable[..., None] | None = None,
    padded: Mapping[str, Any] | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that compiles a function like ``jax.jit``, and checks arguments before each call.

    ``jit`` truncates NumPy's 64-bit integers to 32 bits (unless x64 is enabled), so that 2³² becomes 0. Here
    an array with integers above 2³¹ − 1 becomes floats if its name ends in ``count`` or ``counts``; any other
    such array, e.g. of labels, raises a ``ValueError`` that names it. Integers below the range of int32
    become −2³¹: like all integers below 0, they mark padding.

    Args:
        static_argnames: see ``jax.jit``.
        check: called with the function's arguments before each call; it raises if they are not as expected.
        padded: names of arguments with the same number of rows, each with a value for padding rows that does
            not change the result. They are padded (`pad_rows`), so that fewer shapes are compiled.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        run, signature = jit(function, static_argnames=static_argnames), inspect.signature(function)

        @wraps(function)
        def door(*args: Any, **kwargs: Any) -> _R:
            if padded:
                args, kwargs = (), as_arrays(signature.bind(*args, **kwargs).arguments, padded)
            if check is not None:
                try:
                    check(*args, **kwargs)
                except TypeError:
                    # If arguments are missing, the error should name the function, not its check.
                    signature.bind(*args, **kwargs)
                    raise
            cut = any(map(_is_cut, jax.tree.leaves((args, kwargs))))
            if not (cut or padded):
                return run(*args, **kwargs)
            arguments: Any = signature.bind(*args, **kwargs).arguments
            if cut:
                arguments = jax.tree_util.tree_map_with_path(_uncut, arguments)
            return run(**(pad_rows(arguments, padded) if padded else arguments))

        # Provide the other methods of a jitted function, as in `solve_rows.lower(...)`.
        for name in ("lower", "trace", "eval_shape", "clear_cache"):
            setattr(door, name, getattr(run, name))
        return door

    return decorate


def _is_cut(leaf: Any) -> bool:
    """Return whether ``leaf`` is a NumPy array of integers beyond int32 that jax would not hold as int64."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "iu" or leaf.size == 0:
        return False
    if jax.dtypes.canonicalize_dtype(leaf.dtype) == np.int64:
        return False
    return bool(leaf.max() > _INT32.max or leaf.min() < _INT32.min)


def _uncut(path: tuple[Any, ...], leaf: Any) -> Any:
    if not _is_cut(leaf):
        return leaf
    name = f"{path[0].key}{jax.tree_util.keystr(path[1:])}"
    if name.endswith(("count", "counts")):
        return as_counts(leaf)
    check_int32(name, leaf)
    return clip_to_int32(leaf)


def whole(array: Any) -> Any:
    """Return an array in full on each device if it is sharded over explicit mesh axes, else as it is.

    For the sharded array, jax would need a sharding as an argument of each sort and each sum by class. For an
    array too large for one device, use `covfree.accumulate(..., mesh=mesh)`.
    """
    # A release of jax without `reshard` cannot sum by class over explicit axes in any case.
    if not isinstance(array, jax.Array) or not hasattr(jax.sharding, "reshard"):
        return array
    # An array's type shows only its sharding over explicit axes, not over automatic or manual ones.
    sharding = jax.typeof(array).sharding
    if all(axis is None for axis in sharding.spec):
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))


def as_int32(name: str, integers: Any) -> Integer[Array, "..."]:
    """Convert labels or clients (array or list, any integer type) to int32.

    A ValueError is raised if one is above the range of int32.

    Traced integers beyond the range become the nearest int32 instead: a label that is too large stays too
    large, and padding stays below 0.
    """
    array = whole(integers) if isinstance(integers, jax.Array) else np.asarray(integers)
    limits = np.iinfo(array.dtype)
    if limits.max > _INT32.max:
        check_int32(name, array)
        array = array.clip(max(limits.min, _INT32.min), _INT32.max)
    return as_array(array.astype(np.int32))


def as_counts(counts: Any) -> Any:
    """Convert counts for jax: NumPy integers that jax would truncate to int32 become floats."""
    return counts.astype(jnp.result_type(float)) if _is_cut(counts) else whole(jnp.asarray(counts))


def as_array(values: Any) -> jax.Array:
    """Convert an array or a list to a jax array, without compiling for each shape as ``jnp.asarray`` does."""
    return whole(values) if isinstance(values, jax.Array) else jax.device_put(np.asarray(values))


def check_int32(name: str, integers: Any) -> None:
    """Raise a ValueError if an integer is too large for int32; any negative integer is fine, as padding."""
    if not isinstance(integers, jax.Array | np.ndarray) or is_traced(integers) or integers.size == 0:
        return
    if not jnp.issubdtype(integers.dtype, jnp.integer) or np.iinfo(integers.dtype).max <= _INT32.max:
        return
    # Use NumPy: in a function that is being traced, jax's maximum of constants would be traced too.
    values = np.asarray(integers)
    if values.max() > _INT32.max:
        place = np.unravel_index(int(values.argmax()), values.shape)
        raise ValueError(
            f"{name}: expected integers below 2**31, got {values[place]} at position "
            f"{', '.join(str(index) for index in place)}"
        )


def within_int32(clients: Any) -> Any:
    """Return clients' numbers as they are, or renumbered if one of them is beyond the range of int32."""
    numbers = np.asarray(clients)
    few = numbers.size == 0 or (numbers.max() <= _INT32.max and numbers.min() >= _INT32.min)
    return clients if few else consecutive(numbers)


def consecutive(clients: np.ndarray) -> np.ndarray:
    """Renumber clients 0, 1, … in the order of their numbers; padding becomes −1."""
    known = np.unique(clients[clients >= 0])
    return np.where(clients >= 0, np.searchsorted(known, clients), -1).astype(np.int32)


def finite(head: AnyHead) -> AnyHead:
    """Return the head; raise a ValueError if a number in it is not finite. A traced head is not checked."""
    leaves = jax.tree.leaves(head)
    if is_traced(*leaves):
        return head
    # Check arrays on a CPU in NumPy, which compiles nothing; check others on their device, without a copy.
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    near = all(x.is_fully_addressable and next(iter(x.devices())).platform == "cpu" for x in arrays)
    if all(np.isfinite(leaf).all() for leaf in leaves) if near else _finite_on_device(leaves):
        return head
    for path, leaf in jax.tree_util.tree_leaves_with_path(head):
        values = np.asarray(leaf)
        if not np.isfinite(values).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ValueError(
                f"head: holds {values[place]} in {jax.tree_util.keystr(path).lstrip('.')} of shape "
                f"{list(values.shape)} at {place}; expected finite numbers. Possible causes: (1) sums of "
                f"squares of features overflow or underflow in {values.dtype}: multiply all features by one "
                "number, the same at all clients; (2) a covariance is singular: set shrinkage to a number "
                "above 0 or 'auto' (a share such as '10%' is 0 if no class has two rows), and for a head "
                "with a covariance for each class also a prior above 0; (3) a client sent a matrix or "
                "variances that are not positive semi-definite"
            )
    return head


def is_finite(tree: Any) -> Bool[Array, ""]:
    """Return whether all floats of a pytree, which may be traced, are finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(x).all() for x in floats], bool).all()


_finite_on_device = jit(is_finite)
