"""Noise on the counts that clients send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from covfree.checks import check_choice, check_strength
from covfree.transforms.transform import Transform
from covfree.types import Rows, Scalar, is_traced

CountNoise: TypeAlias = Literal["uniform", "gaussian", "laplace"]


def _noisy(rows: Rows, noise: jax.Array) -> Rows:
    count = jnp.asarray(rows.count)
    # Padding stays what it is. A negative count would be padding too; 0 says so plainly.
    noisy = jnp.where(count > 0, jnp.maximum(count.astype(noise.dtype) + noise, 0), 0)
    if rows.sketch is not None:
        # Sketches count degrees of freedom, which tell of no class.
        noisy = jnp.where(rows.sketch, count, noisy)
    return replace(rows, count=noisy)


def _dtype(rows: Rows) -> jnp.dtype:
    return jnp.promote_types(jnp.result_type(rows.mean), jnp.float32)


def _uniform(strength: Scalar, rows: Rows, key: jax.Array) -> Rows:
    draw = jax.random.uniform(key, rows.count.shape, _dtype(rows), -1.0, 1.0)
    return _noisy(rows, strength * jnp.where(rows.count > 0, rows.count, 0).astype(draw.dtype) * draw)


def _gaussian(strength: Scalar, rows: Rows, key: jax.Array) -> Rows:
    return _noisy(rows, jax.random.normal(key, rows.count.shape, _dtype(rows)) / strength)


def _laplace(strength: Scalar, rows: Rows, key: jax.Array) -> Rows:
    return _noisy(rows, jax.random.laplace(key, rows.count.shape, _dtype(rows)) / strength)


_NOISES: dict[str, Callable[[Scalar, Rows, jax.Array], Rows]] = {
    "uniform": _uniform,
    "gaussian": _gaussian,
    "laplace": _laplace,
}


def count_noise(kind: CountNoise, epsilon: Scalar) -> Transform:
    """Noise on the counts n_kc of a client's rows, so that they tell less of how its classes are mixed.

    - ``"uniform"``: n (1 + ε u) with u uniform on [−1, 1]: within a share ε of the truth. More ε, more noise.
    - ``"gaussian"``: n + z/ε with z standard normal. Less ε, more noise.
    - ``"laplace"``: n + z/ε with z of the standard Laplace law. Less ε, more noise. As one example more or
      less changes a count by one, this makes a single *count* ε-differentially private.

    What falls below 0 is 0, and with a count of 0 the class mean is not sent. Means are sent as they are: the
    noise hides numbers of examples and gives no privacy to the examples themselves.

    Args:
        kind: one of the three.
        epsilon: ε; at least 0, and above 0 unless uniform. It may be swept.

    Raises:
        ValueError: if the kind is unknown or ε out of range.

    Source: FedCOF (Goswami et al. 2024), App. I.1, names the three laws; their scales here are covfree's own.
    """
    check_choice("kind", kind, get_args(CountNoise))
    check_strength("epsilon", epsilon)
    if kind != "uniform" and not is_traced(epsilon) and epsilon == 0:
        raise ValueError(f"epsilon: expected a number above 0 for {kind} noise, got {epsilon!r}")
    return Transform(epsilon, _NOISES[kind])
