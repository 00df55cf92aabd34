"""Random feature maps that all parties share: a linear head on them approaches a kernel machine.

Clients apply the map before they compute statistics, and the classifier applies it at test time. The parties
share the key alone: the same key gives the same map, to the bit, as the numbers are drawn in float32 whatever
the features' precision and whether or not float64 is enabled. (Between different versions of JAX or kinds of
key that is not promised; there, send the map's arrays.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from covfree.checks import check_positive, check_strength
from covfree.types import AnyArray, PRNGKey, Scalar, is_traced


@runtime_checkable
class FeatureMap(Protocol):
    """A map of features, with its arrays as the leaves of a pytree."""

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Map each feature vector."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FourierFeatures:
    """z(x) = √(2/D) cos(Ωᵀ x/σ + b).

    Attributes:
        directions: Ω, standard normal.
        phase: b, uniform on [0, 2π).
        sigma: σ; replace it, sweep it with ``vmap`` or differentiate by it, with the same Ω and b.
    """

    directions: Float[Array, "*batch dim num_features"]
    phase: Float[Array, "*batch num_features"]
    sigma: float | int | Real[AnyArray, "*batch"]

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Map each feature vector."""
        angle = _project(features, self.directions)
        angle = angle / jnp.asarray(self.sigma, angle.dtype)
        angle = angle + jnp.broadcast_to(self.phase.astype(angle.dtype), angle.shape)
        return math.sqrt(2 / self.phase.shape[0]) * jnp.cos(angle)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReluFeatures:
    """z(x) = √(2/D) max(0, Ωᵀ x).

    Attributes:
        directions: Ω, standard normal.
    """

    directions: Float[Array, "*batch dim num_features"]

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Map each feature vector."""
        return math.sqrt(2 / self.directions.shape[1]) * jax.nn.relu(_project(features, self.directions))


def random_fourier(dim: int, num_features: int, *, sigma: Scalar, key: PRNGKey) -> FourierFeatures:
    """Random Fourier features of the RBF kernel k(x, y) = exp(−‖x − y‖²/(2σ²)).

    z(x)ᵀ z(y) is unbiased for k(x, y), as a mean over D of 2 cos(ω_jᵀ x/σ + b_j) cos(ω_jᵀ y/σ + b_j); its
    standard deviation is √((1 − k² + k⁴/2)/D), at most 1/√D.

    Args:
        dim: d, of the features.
        num_features: D, of what comes out.
        sigma: σ, above 0, in units of the features' distances; may be traced.
        key: PRNG key that all parties share.

    Returns:
        The map. It returns at least float32, float64 for float64 features.

    Raises:
        ValueError: if a size is below 1, or σ is not finite and above 0.
        TypeError: if a size is no integer or σ no number.

    Source: Rahimi and Recht (2007), Alg. 1; as Fed3R-RF uses it, Fanì et al. (2024). Equivalent to
    ``sklearn.kernel_approximation.RBFSampler(gamma=1 / (2 * sigma**2))``, with other random numbers.

    >>> import jax, jax.numpy as jnp
    >>> z = random_fourier(3, 4096, sigma=2.0, key=jax.random.key(0))(jnp.eye(3))
    >>> bool(abs(z[0] @ z[1] - jnp.exp(-1 / 4)) < 0.1)
    True
    """
    _check_sizes(dim, num_features)
    check_strength("sigma", sigma)
    if not is_traced(sigma) and sigma == 0:
        raise ValueError(f"sigma: expected a finite number above 0, got {sigma!r}")
    of_directions, of_phase = jax.random.split(key)
    return FourierFeatures(
        directions=jax.random.normal(of_directions, (dim, num_features), jnp.float32),
        phase=jax.random.uniform(of_phase, (num_features,), jnp.float32, maxval=2 * math.pi),
        sigma=jnp.asarray(sigma, jnp.result_type(float)),
    )


def random_relu(dim: int, num_features: int, *, key: PRNGKey) -> ReluFeatures:
    """Random ReLU features of the arc-cosine kernel of order 1.

    z(x)ᵀ z(y) is unbiased for k(x, y) = ‖x‖ ‖y‖ (sin θ + (π − θ) cos θ)/π with θ the angle between x and y,
    so that k(x, x) = ‖x‖². Its standard deviation is at most √(5/D) ‖x‖ ‖y‖, reached at θ = 0. No width has
    to be chosen: scaling the features scales the map.

    Args:
        dim: d, of the features.
        num_features: D, of what comes out.
        key: PRNG key that all parties share.

    Returns:
        The map. It returns at least float32, float64 for float64 features.

    Raises:
        ValueError: if a size is below 1.
        TypeError: if a size is no integer.

    Source: RanPAC (McDonnell et al. 2023), whose projection differs by the factor √(2/D); the kernel is that
    of Cho and Saul (2009).

    >>> import jax, jax.numpy as jnp
    >>> z = random_relu(3, 4096, key=jax.random.key(0))(jnp.eye(3))
    >>> bool(abs(z[0] @ z[0] - 1) < 0.15), bool(abs(z[0] @ z[1] - 1 / jnp.pi) < 0.15)
    (True, True)
    """
    _check_sizes(dim, num_features)
    return ReluFeatures(jax.random.normal(key, (dim, num_features), jnp.float32))


def _check_sizes(dim: int, num_features: int) -> None:
    check_positive("dim", dim)
    check_positive("num_features", num_features)


def _project(
    features: Float[AnyArray, "*batch dim"], directions: Float[Array, "dim num_features"]
) -> Float[Array, "*batch num_features"]:
    """Ωᵀ x in at least float32."""
    if jnp.shape(features)[-1:] != directions.shape[:1]:
        raise ValueError(
            f"features: expected [..., {directions.shape[0]}], as the map is, got {list(jnp.shape(features))}"
        )
    dtype = jnp.promote_types(jnp.result_type(features), directions.dtype)
    features = jnp.asarray(features, dtype)
    return jnp.matmul(features, directions.astype(dtype), precision=jax.lax.Precision.HIGHEST)
