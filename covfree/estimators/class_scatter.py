"""Compute the scatter matrix of each class from rows: examples, or means with or without covariances."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from covfree.core.products import product
from covfree.core.types import AnyArray, Moments, Rows, accumulation_dtype
from covfree.estimators.moments import row_counts, row_labels, valid_rows
from covfree.estimators.scatter import centred_rows

# Rows in a block of `class_products`: few, so that classes need little padding; enough for fast products.
_BLOCK = 64


def class_scatters(rows: Rows, moments: Moments) -> Float[Array, "classes dim dim"]:
    """Compute the scatter S_c = Σ_r n_r (x_r − μ_c)(x_r − μ_c)ᵀ + Σ_r (n_r − 1) S_r of each class c.

    The sums run over the class's rows r. Row r is the mean x_r of n_r examples, and μ_c is the class mean.
    S_r is the covariance of these examples, the full matrix ``rows.covariance[r]``, or 0 if rows carry none.
    Let class c have K_c rows and N_c examples. On examples, or on means with covariances, S_c/(N_c − 1) is
    the class's exact sample covariance (CCVR eq. 3; FedCOF eq. 24 is the same, but loses digits). On means
    alone S_c/(K_c − 1) is FedCOF's estimate of the class's covariance. The cost is (rows + 64·C)·d²
    multiplications in one pass over the sorted rows, and memory for C·d² numbers.

    Returns:
        The scatters; 0 for a class without rows.
    """
    num_classes = moments.total.shape[0]
    factor = centred_rows(rows, moments)
    scatters = class_products(rows, factor, None, num_classes)
    if rows.covariance is None:
        return scatters
    label, inner = _sent_scatters(rows, num_classes)
    return scatters + jax.ops.segment_sum(inner, label, num_classes)


def _sent_scatters(rows: Rows, num_classes: int) -> tuple[Array, Array]:
    """Return each row's class, C for padding, and (n_r − 1) S_r in the structure of ``rows.covariance``."""
    valid = valid_rows(rows, num_classes)
    spread = jnp.asarray(rows.covariance)
    weight = jnp.maximum(row_counts(rows, valid) - 1, 0).reshape(-1, *[1] * (spread.ndim - 1))
    return jnp.where(valid, row_labels(rows), num_classes), jnp.where(weight > 0, spread, 0) * weight


def class_products(
    rows: Rows,
    factor: Float[Array, "rows dim"],
    directions: Float[Array, "dim number"] | None,
    num_classes: int,
) -> Float[Array, "classes dim number"]:
    """Compute S_c = Σ_r y_r y_rᵀ for each class c, where r runs over the class's rows; or only S_c V.

    y_r is row r of ``factor``, and ``rows.label[r]`` is its class. V is the matrix ``directions``; with None,
    the whole matrices S_c [classes, dim, dim] are returned.
    """
    size, dim = factor.shape
    valid = valid_rows(rows, num_classes)
    # Put padding rows, whose factor is 0, into an extra class C.
    label = jnp.where(valid, row_labels(rows), num_classes)
    order = jnp.argsort(label)
    counts = jnp.bincount(label, length=num_classes + 1).astype(jnp.int32)
    blocks = -(-counts // _BLOCK)
    rank = jnp.arange(size, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[label[order]]
    place = (jnp.cumsum(blocks) - blocks)[label[order]] * _BLOCK + rank
    # Each block holds rows of one class, so the classes need Σ_c ceil(count_c/_BLOCK) blocks. ``num_blocks``,
    # which is known when the function is compiled, is at least as many.
    num_blocks = -(-size // _BLOCK) + num_classes + 1
    # Row number ``size`` of ``padded`` is zero; unused positions in blocks point to it.
    table = jnp.full(num_blocks * _BLOCK, size).at[place].set(order)
    owner = jnp.full(num_blocks, num_classes, label.dtype).at[place // _BLOCK].set(label[order])
    padded = jnp.concatenate([factor, jnp.zeros((1, dim), factor.dtype)])

    def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, label = block
        part = padded[index]
        right = part if directions is None else product(part, directions)
        return total.at[label].add(product(part.T, right), mode="drop"), None

    number = dim if directions is None else directions.shape[1]
    start = jnp.zeros((num_classes, dim, number), factor.dtype)
    return jax.lax.scan(add, start, (table.reshape(num_blocks, _BLOCK), owner))[0]


def class_squares(rows: Rows, moments: Moments) -> Float[Array, "classes dim"]:
    """Compute the diagonal of each matrix of `class_scatters`, without forming the matrices.

    ``rows.covariance``, if not None, must hold only the covariances' diagonals: [rows, dim].
    """
    num_classes = moments.total.shape[0]
    label = jnp.where(valid_rows(rows, num_classes), row_labels(rows), num_classes)
    squares = jnp.square(centred_rows(rows, moments))
    if rows.covariance is not None:
        squares += _sent_scatters(rows, num_classes)[1]
    return jax.ops.segment_sum(squares, label, num_classes)


def row_scatter(rows: Rows, num_classes: int) -> AnyArray:
    """Return Σ_r (n_r − 1) S_r, the scatter of all examples about the means of their rows.

    Row r is the mean of n_r examples, whose covariance is S_r = ``rows.covariance[r]``. The result is a
    matrix, a diagonal or one number, as each S_r is.
    """
    valid = valid_rows(rows, num_classes)
    weight = jnp.maximum(row_counts(rows, valid) - 1, 0).astype(accumulation_dtype(rows.mean))
    spread = jnp.asarray(rows.covariance)
    kept = (weight > 0).reshape(-1, *(1 for _ in spread.shape[1:]))
    spread = jnp.where(kept, spread, 0).astype(weight.dtype)
    return jnp.tensordot(weight, spread, 1, precision=jax.lax.Precision.HIGHEST)


def scatter_about(
    means: Float[Array, "groups dim"], counts: Num[Array, " groups"], gram: Float[Array, "dim dim"]
) -> Float[Array, "dim dim"]:
    """Compute ``gram`` − Σ_g N_g μ_g μ_gᵀ, the scatter of examples about the means of their groups.

    Group g has N_g examples (``counts``) of mean μ_g (``means``), and ``gram`` is Σ_i f_i f_iᵀ over the
    features f_i of all examples. In float32 digits are lost if means are large; `fed3r` says how many.
    """
    scaled = means * jnp.sqrt(counts.astype(means.dtype))[:, None]
    return gram - product(scaled.T, scaled)
