"""Check that a matrix is a sum of squares up to rounding, as Gram matrices and covariances are."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

# In float32: the unit roundoff u, and the smallest normal number.
_UNIT, _SMALLEST = 2.0**-24, 2.0**-126
# The largest number of terms that are added one by one; longer sums are made of partial sums.
_LONGEST = 2**16


def rounding(num_examples: float, *dtypes: np.dtype) -> float:
    """Return a bound b on rounding errors in a Gram matrix: entry a_ij may be wrong by b·√(a_ii a_jj).

    The entry a_ij = Σ x_i x_j is a sum over n = ``num_examples`` examples; x_i is feature i of an example. If
    the n products are added one by one in float32, the error is at most n·u·Σ|x_i x_j|, with u = 2⁻²⁴, and
    Σ|x_i x_j| ≤ √(a_ii a_jj) by Cauchy and Schwarz. Half of this bound is allowed: even equal terms, whose
    errors add up, lose at most about n·u/4. Sums of more than 2¹⁶ terms are made of partial sums, which lose
    less, so n counts as at most 2¹⁶. A few u are added for the products and the means, and the largest unit
    roundoff of ``dtypes``, the data types in which sums are sent.
    """
    sent = max(float(jnp.finfo(dtype).eps) for dtype in dtypes) / 2
    return sent + _UNIT * (min(num_examples, _LONGEST) / 2 + 8)


def unit_diagonal(
    where: str, matrix: Float[np.ndarray, "dim dim"], num_examples: float, tolerance: float
) -> Float[np.ndarray, "dim dim"]:
    """Return a matrix scaled to a diagonal of 1; raise a ValueError if it cannot be a sum of squares F Fᵀ.

    Three cheap conditions are tested, up to ``tolerance``: no entry on the diagonal is negative, the matrix
    is symmetric, and |a_ij| ≤ √(a_ii a_jj).

    Args:
        where: how the error begins, e.g. ``"matrix:"``.
        matrix: the matrix, of finite numbers.
        num_examples: n, the number of products in each sum.
        tolerance: from `rounding`.

    Returns:
        The scaled matrix in float32.
    """
    diagonal = np.diagonal(matrix).astype(np.float64)
    if (diagonal < 0).any():
        i = int(np.argmax(diagonal < 0))
        raise ValueError(f"{where} holds {matrix[i, i]} at {(i, i)}; expected a diagonal of at least 0")
    # In float32, products below the smallest normal number become 0, and each example may lose one. So let
    # each entry differ by n + 1 such numbers.
    size = np.sqrt(diagonal + (num_examples + 1) * _SMALLEST / tolerance)
    inverse = (1 / size).astype(np.float32)
    with np.errstate(over="ignore"):
        scaled = ((matrix * inverse[:, None]) * inverse).astype(np.float32, copy=False)
    if max(scaled.max(initial=0), -scaled.min(initial=0)) > 1 + 2 * tolerance:
        i, j = (int(place) for place in np.unravel_index(np.argmax(np.abs(scaled)), scaled.shape))
        raise ValueError(
            f"{where} holds {matrix[i, j]} at {(i, j)}; expected at most {size[i] * size[j]:.7g}, the root "
            "of the product of the two entries on the diagonal, as in a sum of squares"
        )
    uneven = scaled - scaled.T
    if uneven.max(initial=0) > 2 * tolerance:
        i, j = (int(place) for place in np.unravel_index(np.argmax(uneven), scaled.shape))
        raise ValueError(
            f"{where} holds {matrix[i, j]} at {(i, j)} and {matrix[j, i]} at {(j, i)}; expected a symmetric "
            "matrix"
        )
    return scaled


def is_positive(scaled: Float[np.ndarray, "dim dim"], tolerance: float) -> bool:
    """Return whether a matrix with diagonal 1 is positive semi-definite up to rounding, by Cholesky.

    If errors of the entries behave like independent numbers of size τ = ``tolerance``, they move an
    eigenvalue of a d × d matrix by at most 2√d·τ (Wigner's law). The factorisation in float32, with unit
    roundoff u, moves an eigenvalue by less than d·u. The matrix passes if no eigenvalue is further below 0
    than the sum of both.
    """
    size = len(scaled)
    shifted = np.array(scaled, np.float32)
    shifted[np.diag_indices(size)] += np.float32(2 * math.sqrt(size) * tolerance + size * _UNIT)
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True
