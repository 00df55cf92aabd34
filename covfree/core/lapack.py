"""Run LAPACK's routines on one matrix at a time on CPUs, even under ``vmap``; set their number of threads.

All other modules call jax's LAPACK through this one, to avoid a deadlock. On CPUs jaxlib distributes the
matrices of a *batched* call over XLA's threads, and waits for them on one of these threads
(``ParallelBatchMap`` in its ``lapack_kernels.cc``). If as many batched calls run at once as there are
threads, no thread is left to do the work, and all wait forever. One ``vmap`` of ``lax.cond`` can cause this,
as it runs both branches: with Cholesky in one branch and ``eigh`` in the other, a program on two cores hung.
(On many cores, batched calls also let OpenBLAS start more threads than it has room for, which corrupts
memory: see https://github.com/jax-ml/jax/issues/39292.) A call on one matrix runs on the calling thread,
without waiting.

Derivatives are computed from the results by formulas that use the same routines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.lax import linalg as lax_linalg
from jaxtyping import Array, Bool, Float

from covfree.core.checks import check_positive
from covfree.core.products import divide_or_zero, product

# jax before 0.6.1 compiles all branches of `platform_dependent`, whatever the platform. So with these
# releases use the branch for CPUs, a loop, on all platforms.
_EVERY_BRANCH = jax.__version_info__ < (0, 6, 1)


def lanes(one: Callable[..., Any], many: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Wrap a function so that ``vmap`` of it, on CPUs, is a loop over lanes (the elements of the batch).

    Args:
        one: the function, for one lane.
        many: the function for all lanes at once, used on accelerators; by default ``vmap`` of ``one``. It
            takes ``(in_axes, *arrays)`` and returns the results of ``one`` with a leading axis of lanes.
            ``in_axes`` has 0 for an array with lanes, else None.
    """
    each = custom_vmap(one)

    @each.def_vmap
    def _(size: int, batched: list[bool], *arrays: Any) -> tuple[Any, Any]:
        out = _many_lanes(one, many, tuple(0 if mine else None for mine in batched))(*arrays)
        return out, jax.tree.map(lambda _: True, out)

    return each


def _many_lanes(one: Callable[..., Any], many: Any, axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Make a batched version of ``one``: a loop over the batch on CPUs, all at once on accelerators.

    It takes the arguments of ``one``. ``axes`` says for each argument whether its first axis is the batch
    (0), or all elements of the batch share it (None). On accelerators ``many`` is called, see `lanes`, or
    ``vmap`` of ``one`` if ``many`` is None.
    """

    def loop(*arrays: Any) -> Any:
        def lane(own: list[Any]) -> Any:
            mine = iter(own)
            return one(
                *(array if axis is None else next(mine) for array, axis in zip(arrays, axes, strict=True))
            )

        return jax.lax.map(lane, [x for x, axis in zip(arrays, axes, strict=True) if axis == 0])

    def at_once(*arrays: Any) -> Any:
        return jax.vmap(one, axes)(*arrays) if many is None else many(axes, *arrays)

    @custom_vmap
    def every(*arrays: Any) -> Any:
        if _EVERY_BRANCH:
            return loop(*arrays)
        return jax.lax.platform_dependent(*arrays, cpu=loop, default=at_once)

    @every.def_vmap
    def _(size: int, batched: list[bool], *arrays: Any) -> tuple[Any, Any]:
        # Merge the axes of nested vmaps into one axis of lanes.
        lanes = next(
            x.shape[int(mine)] for x, mine, axis in zip(arrays, batched, axes, strict=True) if axis == 0
        )

        def flat(array: Any, mine: bool, axis: int | None) -> Any:
            if not mine and axis is None:
                return array
            array = array if mine else array[None]
            array = array if axis == 0 else array[:, None]
            array = jnp.broadcast_to(array, (size, lanes, *array.shape[2:]))
            return array.reshape(size * lanes, *array.shape[2:])

        both = tuple(0 if mine or axis == 0 else None for mine, axis in zip(batched, axes, strict=True))
        out = _many_lanes(one, many, both)(*map(flat, arrays, batched, axes))
        out = jax.tree.map(lambda x: x.reshape(size, lanes, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return every


def cond_of_lanes(
    rare: Bool[Array, ""], unusual: Callable[..., Any], usual: Callable[..., Any], *arrays: Any
) -> Any:
    """Compute ``lax.cond(rare, unusual, usual, *arrays)``; with ``vmap``, run ``unusual`` only if needed.

    ``vmap`` of ``lax.cond`` itself runs both branches for each lane (batch element). Here ``unusual`` runs
    only if ``rare`` is True in some lane.

    Args:
        rare: whether to take the unusual branch.
        unusual: a function of the arrays.
        usual: another function of the arrays.
        arrays: all arrays that the branches use and that may have lanes.
    """

    def many(axes: tuple[int | None, ...], rare: jax.Array, *arrays: Any) -> Any:
        at_once = [jax.vmap(branch, axes[1:]) for branch in (unusual, usual)]
        if axes[0] is None:
            return jax.lax.cond(rare, *at_once, *arrays)

        def chosen(*arrays: Any) -> Any:
            def choose(one: jax.Array, other: jax.Array) -> jax.Array:
                return jnp.where(rare.reshape(-1, *[1] * (one.ndim - 1)), one, other)

            return jax.tree.map(choose, *(branch(*arrays) for branch in at_once))

        return jax.lax.cond(rare.any(), chosen, at_once[1], *arrays)

    return lanes(lambda rare, *arrays: jax.lax.cond(rare, unusual, usual, *arrays), many)(rare, *arrays)


_cholesky = lanes(partial(lax_linalg.cholesky, symmetrize_input=False))
_eigh = lanes(lambda matrix: tuple(jnp.linalg.eigh(matrix)))
_triangle = lanes(lambda stack: jnp.linalg.qr(stack, mode="r"))
_orthonormal = lanes(lambda stack: jnp.linalg.qr(stack)[0])
_lower = lanes(partial(lax_linalg.triangular_solve, left_side=True, lower=True))
_lower_transposed = lanes(partial(lax_linalg.triangular_solve, left_side=True, lower=True, transpose_a=True))


def triangular_solve(
    root: Float[Array, "size size"], right: Float[Array, "size columns"], *, transposed: bool = False
) -> Float[Array, "size columns"]:
    """Solve L X = B, or LᵀX = B if ``transposed``: L is the lower triangle of ``root``, B is ``right``."""
    solves = (_lower, _lower_transposed)
    solve, back = reversed(solves) if transposed else solves

    def times(columns: jax.Array) -> jax.Array:
        lower = jnp.tril(root)
        return product(lower.T if transposed else lower, columns)

    return jax.lax.custom_linear_solve(
        times, right, lambda _, b: solve(root, b), transpose_solve=lambda _, b: back(root, b)
    )


@jax.custom_jvp
def cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """Compute the lower triangular L with L Lᵀ = ``matrix``, or NaN if no such L exists in this precision."""
    return _cholesky(matrix)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    root = cholesky(*primals)
    return root, _root_change(root, *tangents)


def _root_change(root: jax.Array, change: jax.Array) -> jax.Array:
    """Return the change L̇ of Cholesky's L, where A = L Lᵀ changes by Ȧ: L̇ = L Φ(L⁻¹ Ȧ L⁻ᵀ).

    L is ``root`` and Ȧ is ``change``. Φ(X) is the lower triangle of X, with its diagonal halved.
    """
    change = (change + change.T) / 2
    inner = triangular_solve(root, triangular_solve(root, change).T)
    return product(root, jnp.tril(inner) - jnp.diag(jnp.diagonal(inner)) / 2)


@jax.custom_jvp
def stacked_root(stack: Float[Array, "rows size"]) -> Float[Array, "size size"]:
    """Compute the lower triangular L with L Lᵀ = SᵀS and a diagonal ≥ 0, by QR of S; SᵀS is not formed.

    Args:
        stack: S, with at least as many rows as columns; for derivatives it must have full rank.
    """
    upper = _triangle(stack)
    return jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(upper.dtype)[None, :] * upper.T


@stacked_root.defjvp
def _stacked_root_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    root = stacked_root(*primals)
    return root, _root_change(root, 2 * product(primals[0].T, tangents[0]))


def orthonormal(stack: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
    """Compute orthonormal columns whose span contains the columns of ``stack``, by QR.

    Derivatives treat the columns as constants.
    """
    return _orthonormal(jax.lax.stop_gradient(stack))


@jax.custom_jvp
def eigh(matrix: Float[Array, "size size"]) -> tuple[Float[Array, " size"], Float[Array, "size size"]]:
    """Compute eigenvalues of a symmetric matrix, in ascending order, and eigenvectors as columns.

    The derivative of the eigenvectors leaves out rotations between directions whose eigenvalues are equal up
    to rounding.
    """
    return _eigh(matrix)


@eigh.defjvp
def _eigh_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[tuple, tuple]:
    values, vectors = eigh(*primals)
    (change,) = tangents
    inner = product(vectors.T, product((change + change.T) / 2, vectors))
    gap = values[None, :] - values[:, None]
    rounding = jnp.finfo(values.dtype).eps * len(values) * jnp.abs(values).max(initial=0)
    turn = divide_or_zero(inner, gap, jnp.abs(gap) > rounding)
    return (values, vectors), (jnp.diagonal(inner), product(vectors, turn))


def limit_lapack_threads(threads: int = 1) -> None:
    """Set how many threads LAPACK's routines use on CPUs, in this process from now on.

    On CPUs jax factorises with the LAPACK in SciPy's OpenBLAS, whose threads wait for each other in a busy
    loop. If another process uses one of their cores, or a container has fewer cores than it sees, each wait
    lasts until the operating system runs the missing thread. On 2 cores next to one busy process, at
    size 1280, two threads took 1.6 s for Cholesky and 11.8 s for ``eigh``; one thread took 0.02 s and 0.26 s.
    On an idle machine two threads took 0.010 s and 0.10 s; one thread took 0.014 s and 0.15 s. So use one
    thread wherever the machine may be shared. More threads may be better for matrices of several thousand
    rows on cores that nobody else uses. Matrix products are XLA's own, and use all cores anyway.

    The command line calls this. In your own program call it once, before or after the first factorisation.
    The limit also holds for NumPy's own copy of OpenBLAS, with which `collect` checks matrices, and so slows
    NumPy's products. It has no effect if NumPy and SciPy use a library other than OpenBLAS, MKL or BLIS.

    Args:
        threads: the number of threads, at least 1.

    Raises:
        TypeError: if ``threads`` is no integer.
        ValueError: if it is below 1.

    >>> import covfree
    >>> covfree.limit_lapack_threads()
    """
    check_positive("threads", threads)
    # Import both here, as `import covfree` needs neither. jax calls LAPACK through the first; importing it
    # loads OpenBLAS.
    importlib.import_module("scipy.linalg.cython_lapack")
    importlib.import_module("threadpoolctl").threadpool_limits(threads, user_api="blas")
