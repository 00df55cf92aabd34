"""Invert κI + S_c for each class c, with S_c the scatter of the class's rows and κ a number.

For a class of n rows, a matrix of about the size min(n, d) is factorised instead of κI + S_c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.lapack import cholesky, eigh, triangular_solve
from covfree.core.products import product

# The base-2 logarithm of the smallest size that classes are padded to.
_SMALLEST = 3


@jax.custom_vjp
def class_parts(
    table: Float[Array, "rows dim"], counts: Integer[Array, " classes"], kappa: Float[Array, ""]
) -> tuple[Float[Array, "rows dim"], Float[Array, " classes"]]:
    """Compute vectors t_r that give the inverse of κI + S_c for each class c: it is (I − Σ_r t_r t_rᵀ)/κ.

    The scatter of class c is S_c = Σ_r y_r y_rᵀ, with the rows y_r of ``table``. Both sums are over the rows
    r of the class. By Woodbury's identity, the t_r are the rows of R⁻¹ Y_c/√κ, where Y_c has the class's y_r
    as rows and R Rᵀ = I + Y_c Y_cᵀ/κ. If a class has more than d rows, its first d rows t_r are scaled
    eigenvectors of S_c, and its other rows are 0.

    Each class is padded to one of few sizes; one function is compiled for each size. A loop over classes
    overwrites y_r by t_r, so that no second array [rows, dim] is needed. Derivatives exist in reverse mode
    only.

    Args:
        table: the y_r, ordered by class, followed by rows of 0 as padding.
        counts: the number of rows of each class.
        kappa: κ, above 0.

    Returns:
        The t_r as rows in the same order, and log det(I + S_c/κ) of each class.
    """

    def one(carry: jax.Array, c: jax.Array, block: jax.Array) -> Any:
        parts, log_det = _one_class(block, kappa)
        return parts, carry.at[c].set(log_det)

    return _over_classes(one, table, counts, jnp.zeros(counts.shape, table.dtype))


def _forward(table: jax.Array, counts: jax.Array, kappa: jax.Array) -> tuple[Any, Any]:
    return class_parts(table, counts, kappa), (table, counts, kappa)


def _backward(known: Any, change: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None, jax.Array]:
    table, counts, kappa = known
    of_parts, of_log_det = change

    def one(carry: jax.Array, c: jax.Array, change: jax.Array, block: jax.Array) -> Any:
        _, back = jax.vjp(_one_class, block, kappa)
        of_block, of_kappa = back((change, of_log_det[c]))
        return of_block, carry + of_kappa

    found, of_kappa = _over_classes(one, of_parts, counts, jnp.zeros_like(kappa), table)
    return found, None, of_kappa


class_parts.defvjp(_forward, _backward)


def _one_class(block: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the results of `class_parts` for one class c.

    Args:
        block: the vectors y_r of the class as rows, followed by rows of 0 as padding.
        kappa: κ.

    Returns:
        An array like ``block``, with the vectors t_r in place of y_r; and log det(I + S_c/κ).
    """
    size, dim = block.shape
    block = block / jnp.sqrt(kappa)
    if size <= dim:
        identity = jnp.eye(size, dtype=block.dtype)
        root = cholesky(identity + product(block, block.T))
        # Invert the root, which is small: solving for the whole block would copy it into LAPACK's layout.
        return product(triangular_solve(root, identity), block), 2 * jnp.log(jnp.diagonal(root)).sum()
    values, vectors = eigh(product(block.T, block))
    share = jnp.where(values > 0, values, 0) / (1 + jnp.maximum(values, 0))
    length = jnp.where(share > 0, jnp.sqrt(jnp.where(share > 0, share, 1)), 0)
    parts = jnp.pad(length[:, None] * vectors.T, [(0, size - dim), (0, 0)])
    return parts, jnp.log1p(jnp.maximum(values, 0)).sum()


def _over_classes(
    one: Callable[..., tuple[jax.Array, Any]],
    table: jax.Array,
    counts: jax.Array,
    carry: Any,
    *beside: jax.Array,
) -> tuple[jax.Array, Any]:
    """Replace the rows of each class in ``table`` by those that ``one`` computes, class by class.

    ``table`` has rows ordered by class; ``counts`` is the number of rows of each class. The function
    ``one(carry, c, rows, …)`` gets the rows of class c in ``table`` and in each array of ``beside``. It
    returns new rows, and the ``carry`` for the next class. Return the new table, and the last carry.
    """
    length, _ = table.shape
    start = jnp.cumsum(counts, dtype=jnp.int32) - counts
    smaller = 0
    for size in _sizes(*table.shape):
        mine = (counts > smaller) & (counts <= size)
        members = jnp.nonzero(mine, size=counts.shape[0], fill_value=0)[0]
        smaller = size

        def step(index: jax.Array, held: Any, members: jax.Array = members, size: int = size) -> Any:
            table, carry = held
            c = members[index]
            # A slice of ``size`` rows must lie within the table, so near its end the slice starts before the
            # class. Then roll the class's rows to the front.
            first = jnp.minimum(start[c], length - size)
            skipped = start[c] - first
            number = jnp.arange(size, dtype=jnp.int32)
            mask = ((number >= skipped) & (number < skipped + counts[c]))[:, None]
            old, *others = (jax.lax.dynamic_slice_in_dim(x, first, size) for x in (table, *beside))
            given = (jnp.roll(jnp.where(mask, x, 0), -skipped, axis=0) for x in (old, *others))
            new, carry = one(carry, c, *given)
            new = jnp.where(mask, jnp.roll(new, skipped, axis=0), old)
            return jax.lax.dynamic_update_slice_in_dim(table, new, first, 0), carry

        table, carry = jax.lax.fori_loop(0, mine.sum(dtype=jnp.int32), step, (table, carry))
    return table, carry


def _sizes(length: int, dim: int) -> list[int]:
    """Return the numbers of rows to which classes are padded, in ascending order.

    These are the powers of 2 from 8 to ``dim``, then ``dim``·4ⁿ for n ≥ 0, as far as they are at most
    ``length``; and last ``length`` itself.
    """
    small = {2**power for power in range(_SMALLEST, dim.bit_length())}
    large = {dim * 4**power for power in range(length.bit_length())}
    return sorted(size for size in {*small, *large, length} if size <= length)
