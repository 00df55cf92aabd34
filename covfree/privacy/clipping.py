"""Clip vectors to norm 1 and round them to integers of a bounded norm, even if they contain NaN or ∞."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def clipped(vectors: Float[np.ndarray, "rows dim"], clip: float) -> Float[np.ndarray, "rows dim"]:
    """Return vectors divided by ``clip``, and scaled down to norm 1 if their norm is then above 1.

    A vector with NaN or ∞ becomes 0. Each vector is divided by its largest absolute value before squares are
    summed, so that the squares neither overflow nor all underflow.
    """
    size = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    sound = np.isfinite(size)
    scale = np.where(sound & (size > 0), size, 1)
    direction = np.where(sound, vectors, 0) / scale
    norm = np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1)
    with np.errstate(over="ignore"):
        return direction * np.minimum(scale / clip, 1 / norm)


def on_grid(vectors: Float[np.ndarray, "rows dim"], bound: int) -> Int[np.ndarray, "rows dim"]:
    """Return ``bound`` times vectors of norm at most 1, rounded to integers of norm at most ``bound``."""
    scaled = vectors * bound
    integers = np.rint(scaled).astype(np.int64)
    for shrink in (1.0, 1 - 1e-9, 0.0):
        # Round rows above the bound towards 0; if float rounding leaves them above it, shrink them first.
        over = (integers**2).sum(1) > bound**2
        if not over.any():
            break
        integers[over] = np.trunc(scaled[over] * shrink).astype(np.int64)
    return bounded(integers, bound)


def bounded(integers: Int[np.ndarray, "rows dim"], bound: int) -> Int[np.ndarray, "rows dim"]:
    """Return ``integers``, or raise if the norm of a row is above ``bound``.

    The norm is computed in floats, as squares of integers could overflow; the check allows for float
    rounding.

    Raises:
        ArithmeticError: if a norm is above the bound, as the promised ε and δ would then not hold.
    """
    norm = np.linalg.norm(integers.astype(np.float64), axis=1)
    if not (norm <= bound * (1 + 1e-12)).all():
        raise ArithmeticError(f"integers: expected a norm of at most {bound}, got {norm.max()}")
    return integers
