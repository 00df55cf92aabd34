"""Helpers that heads share: scale columns, mark absent classes, compute log-priors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.linalg import Scatter, as_scatter
from covfree.core.sums import settled
from covfree.core.types import AnyArray, LinearHead, Moments


def resolved_sums(moments: Moments) -> Float[Array, "classes dim"]:
    """Return each class's sum of features; sums that may be rounding error alone become 0.

    Such a sum depends on the order of the rows, and a head that scales columns to norm 1 would enlarge it. If
    ``moments.magnitude`` is None, rounding errors are unknown, and all sums are returned unchanged.
    """
    if moments.magnitude is None:
        return moments.total
    return settled(moments.total, moments.num_rows, moments.magnitude)


def unit_columns(weight: Float[Array, "dim classes"]) -> Float[Array, "dim classes"]:
    """Scale each column to norm 1; a column of zeros stays 0.

    Entries are first divided by the column's largest absolute entry, so that squares neither overflow nor
    vanish in float32.
    """
    # ``largest`` cancels in the result, so its derivative is not needed. It would be NaN if XLA computed the
    # largest entry twice with different rounding: then no entry would equal it, and jax would divide 0 by 0.
    largest = jax.lax.stop_gradient(jnp.abs(weight).max(0, keepdims=True, initial=0))
    weight = weight / jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(weight), axis=0, keepdims=True)
    return weight / jnp.sqrt(jnp.where(square > 0, square, 1))


def fitting(name: str, matrix: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> Scatter:
    """Check that ``matrix`` is [d, d], where d is the number of features in ``moments``; return a `Scatter`.

    If it is not, raise a ValueError, which begins with ``name``, the argument's name at the caller.
    """
    dim = moments.total.shape[1]
    shape = (matrix.dim,) * 2 if isinstance(matrix, Scatter) else jnp.shape(matrix)
    if shape != (dim, dim):
        raise ValueError(f"{name}: expected [{dim}, {dim}], the size of the class means, got {list(shape)}")
    return as_scatter(matrix)


def head_for_present(
    weight: Float[Array, "dim classes"], bias: Float[Array, " classes"], present: Bool[Array, " classes"]
) -> LinearHead:
    """Make a head in which an absent class has weight and bias 0 and is marked as absent."""
    return LinearHead(
        jnp.where(present[None, :], weight, 0), jnp.where(present, bias, 0), present.astype(weight.dtype)
    )


def log_priors(moments: Moments) -> Float[Array, " classes"]:
    """Return log π_c, with π_c = N_c/N the share of class c in the N examples.

    For an absent class return −log N, which has a finite derivative.
    """
    count = moments.count.astype(moments.total.dtype)
    total = count.sum()
    return jnp.log(jnp.where(count > 0, count, 1)) - jnp.log(jnp.where(total > 0, total, 1))
