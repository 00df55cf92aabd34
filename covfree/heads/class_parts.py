"""Inverses of κI + S_c for every class, by one small factorisation each, however many rows classes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.lapack import cholesky, eigh, triangular_solve
from covfree.core.products import product

# The smallest size that classes are padded to, as a power of two.
_SMALLEST = 3


def class_parts(
    table: Float[Array, "rows dim"], counts: Integer[Array, " classes"], kappa: Float[Array, ""]
) -> tuple[Float[Array, "rows dim"], Float[Array, " classes"]]:
    """Make rows t_r with (κI + S_c)⁻¹ = (I − Σ_r t_r t_rᵀ)/κ, of rows y_r with S_c = Σ_r y_r y_rᵀ.

    With Y_c the class's rows and R Rᵀ = I + Y_c Y_cᵀ/κ, they are those of R⁻¹ Y_c/√κ, by Woodbury's identity.
    A class with more rows than dimensions has as many t_r as dimensions, of the eigenvectors of S_c, and
    others that are 0.

    Classes are padded to one of few sizes, for each of which one function is compiled. The table is changed
    in place, class by class, so that the memory is that of the table. Derivatives are for reverse mode.

    Args:
        table: y_r ordered by class, then rows that are 0.
        counts: rows of each class.
        kappa: κ, above 0.

    Returns:
        The rows t_r in the same order, and log det(I + S_c/κ) of each class.
    """
    return _class_parts(table, counts, kappa)


@jax.custom_vjp
def _class_parts(table: jax.Array, counts: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(carry: jax.Array, c: jax.Array, block: jax.Array) -> Any:
        parts, log_det = _one_class(block, kappa)
        return parts, carry.at[c].set(log_det)

    return _over_classes(one, table, counts, jnp.zeros(counts.shape, table.dtype))


def _forward(table: jax.Array, counts: jax.Array, kappa: jax.Array) -> tuple[Any, Any]:
    return _class_parts(table, counts, kappa), (table, counts, kappa)


def _backward(known: Any, change: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None, jax.Array]:
    table, counts, kappa = known
    of_parts, of_log_det = change

    def one(carry: jax.Array, c: jax.Array, change: jax.Array, block: jax.Array) -> Any:
        _, back = jax.vjp(_one_class, block, kappa)
        of_block, of_kappa = back((change, of_log_det[c]))
        return of_block, carry + of_kappa

    found, of_kappa = _over_classes(one, of_parts, counts, jnp.zeros_like(kappa), table)
    return found, None, of_kappa


_class_parts.defvjp(_forward, _backward)


def _one_class(block: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """t_r and the log-determinant of one class; rows of padding are 0 and stay so."""
    size, dim = block.shape
    block = block / jnp.sqrt(kappa)
    if size <= dim:
        identity = jnp.eye(size, dtype=block.dtype)
        root = cholesky(identity + product(block, block.T))
        # A solve for the block itself would turn the whole table, class by class, into LAPACK's order.
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
    """Replace each class's rows by ``one(carry, c, block, …)``; blocks of ``beside`` come with it."""
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
            # A slice ends with the table at the latest; the class's rows are then not its first.
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
    """Powers of two up to the number of dimensions, which larger classes are compressed to, then of four."""
    small = {2**power for power in range(_SMALLEST, dim.bit_length())}
    large = {dim * 4**power for power in range(length.bit_length())}
    return sorted(size for size in {*small, *large, length} if size <= length)
