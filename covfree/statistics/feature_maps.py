"""Map features: at random, so that a linear head approximates a kernel machine, or by a trained adapter.

Clients apply the map before they compute statistics, and the classifier applies it to its input. For a random
map, the parties share only a seed, from which the map draws its directions each time. It draws in float32
whatever the features' precision, so that the same seed gives the same map to the bit. (This is not guaranteed
between versions of JAX or settings of its generators.)
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.core.checks import check_above_zero, check_positive, check_seed
from covfree.core.keys import derive
from covfree.core.products import product
from covfree.core.types import AnyArray, Scalar, accumulation_dtype, as_features, at_once


@runtime_checkable
class FeatureMap(Protocol):
    """A callable pytree that maps feature vectors to others; its leaves are the map's parameters."""

    @property
    def num_features(self) -> int:
        """D, the number of mapped features."""
        ...

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Map each feature vector."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FourierFeatures:
    """A map from features x to random Fourier features z(x) = √(2/D) cos(Ωᵀ x/σ + b); see `fourier_features`.

    Attributes:
        sigma: σ, which may be replaced, swept with ``vmap`` or differentiated; Ω and b do not depend on it.
        seed: the seed of Ω, standard normal, and b, uniform on [0, 2π).
        num_features: D.
        unit: whether features are first scaled to norm 1.
    """

    sigma: Scalar
    seed: Scalar
    num_features: int = field(metadata={"static": True})
    unit: bool = field(metadata={"static": True})

    @property
    def max_norm(self) -> float:
        """√2, a bound on the norm of a mapped feature vector: each of D squares is at most 2/D."""
        return math.sqrt(2)

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Return z(x) for each feature vector x."""
        features = accurate(features)
        drawn = self.drawn(features.shape[-1])
        if self.unit:
            features = to_norm_one(features)
        angle = product(features, drawn["directions"].astype(features.dtype))
        angle = angle / jnp.asarray(self.sigma, angle.dtype)
        angle = angle + jnp.broadcast_to(drawn["phases"].astype(angle.dtype), angle.shape)
        return math.sqrt(2 / self.num_features) * jnp.cos(angle)

    def drawn(self, dim: int) -> dict[str, jax.Array]:
        """Draw directions Ω [dim, D] and phases b [D] from the seed."""
        key = jax.random.key(self.seed)
        shape = (self.num_features,)
        phases = jax.random.uniform(derive(key, "phases"), shape, jnp.float32, maxval=2 * math.pi)
        return {"directions": _directions(key, dim, self.num_features), "phases": phases}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReluFeatures:
    """A map from features x to random features z(x) = √(2/D) max(0, Ωᵀ x), from `relu_features`.

    Attributes:
        seed: the seed that draws the matrix Ω, whose entries are standard normal.
        num_features: D, the number of random features.
    """

    seed: Scalar
    num_features: int = field(metadata={"static": True})

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Return z(x) for each feature vector x."""
        features = accurate(features)
        directions = self.drawn(features.shape[-1])["directions"].astype(features.dtype)
        return math.sqrt(2 / self.num_features) * jax.nn.relu(product(features, directions))

    def drawn(self, dim: int) -> dict[str, jax.Array]:
        """Draw directions Ω [dim, D] from the seed."""
        return {"directions": _directions(jax.random.key(self.seed), dim, self.num_features)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Adapter:
    """A trained map of features: x + relu(x A) B.

    Attributes:
        down: A, [dim, rank].
        up: B, [rank, dim].
    """

    down: Float[Array, "dim rank"]
    up: Float[Array, "rank dim"]

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return x + relu(x A) B for each feature vector x."""
        features = jnp.asarray(as_features(features, self.down.shape[0]))
        return features + jax.nn.relu(features @ self.down) @ self.up


def fourier_features(
    num_features: int, *, sigma: Scalar = 1.0, seed: int = 0, unit: bool = True
) -> FourierFeatures:
    """Make the map z to random Fourier features of the RBF kernel k(x, y) = exp(−‖x − y‖²/(2σ²)).

    z(x)ᵀ z(y) is unbiased for k = k(x, y): it is the mean of D terms 2 cos(ω_jᵀ x/σ + b_j) cos(ω_jᵀ y/σ +
    b_j), each in [−2, 2], with random directions ω_j and phases b_j. The standard deviation of z(x)ᵀ z(y) is
    √((1 − k² + k⁴/2)/D), at most 1/√D.

    Args:
        num_features: D, the number of mapped features.
        sigma: σ, above 0, in units of the features' distances; may be swept.
        seed: the seed of the random directions and phases; the same for all parties.
        unit: whether to scale features to norm 1 first. Distances are then between 0 and 2, so that one σ
            fits features of any scale.

    Returns:
        The map. It returns float64 for float64 features, or else float32.

    Raises:
        ValueError: if ``num_features`` is below 1, or σ is not finite and above 0.
        TypeError: if ``num_features`` is no integer or σ no number.

    Source: Rahimi and Recht (2007), Alg. 1; as Fed3R-RF uses it, Fanì et al. (2024). Equivalent to
    ``sklearn.kernel_approximation.RBFSampler(gamma=1 / (2 * sigma**2))``, with other random numbers.

    >>> import jax.numpy as jnp
    >>> z = fourier_features(4096, sigma=2.0)(jnp.eye(3))
    >>> bool(abs(z[0] @ z[1] - jnp.exp(-1 / 4)) < 0.1)
    True
    """
    check_positive("num_features", num_features)
    check_above_zero("sigma", sigma)
    return FourierFeatures(sigma, check_seed("seed", seed), num_features, unit)


def relu_features(num_features: int, *, seed: int = 0) -> ReluFeatures:
    """Make the map z to random ReLU features of the arc-cosine kernel of order 1.

    z(x)ᵀ z(y) is unbiased for k(x, y) = ‖x‖ ‖y‖ (sin θ + (π − θ) cos θ)/π with θ the angle between x and y,
    so that k(x, x) = ‖x‖². The standard deviation of z(x)ᵀ z(y) is at most √(5/D) ‖x‖ ‖y‖, reached at θ = 0.
    There is no bandwidth to choose, as scaling the features scales the map.

    Args:
        num_features: D, the number of mapped features.
        seed: the seed of the random directions; the same for all parties.

    Returns:
        The map. It returns float64 for float64 features, or else float32.

    Raises:
        ValueError: if ``num_features`` is below 1.
        TypeError: if ``num_features`` is no integer.

    Source: RanPAC (McDonnell et al. 2023), whose projection differs by the factor √(2/D); the kernel is that
    of Cho and Saul (2009).

    >>> import jax.numpy as jnp
    >>> z = relu_features(4096)(jnp.eye(3))
    >>> bool(abs(z[0] @ z[0] - 1) < 0.15), bool(abs(z[0] @ z[1] - 1 / jnp.pi) < 0.15)
    (True, True)
    """
    check_positive("num_features", num_features)
    return ReluFeatures(check_seed("seed", seed), num_features)


def to_norm_one(features: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Scale each feature vector to norm 1; 0 stays 0."""
    # Divide by the largest entry first, so that squares neither overflow nor vanish.
    largest = jax.lax.stop_gradient(jnp.abs(features).max(-1, keepdims=True, initial=0))
    features = features / jnp.where(largest > 0, largest, 1)
    square = jnp.square(features).sum(-1, keepdims=True)
    return features / jnp.sqrt(jnp.where(square > 0, square, 1))


def accurate(features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Convert features to float32, or to float64 if they are float64."""
    return jnp.asarray(features, accumulation_dtype(features))


def _directions(key: jax.Array, dim: int, num_features: int) -> Float[Array, "dim num_features"]:
    return jax.random.normal(derive(key, "directions"), (dim, num_features), jnp.float32)


def described(feature_map: FeatureMap) -> str:
    """Return a text that identifies a map: its type, number of features, and a checksum of its other numbers.

    The checksum covers seeds, scalars and settings. Only the shapes of arrays enter, as devices may have
    rounded their numbers differently.
    """
    numbers = b"".join(map(_imprint, jax.tree.leaves(feature_map)))
    # Add static fields (e.g. whether features are scaled to norm 1), which are not leaves.
    numbers += "".join(_settings(feature_map)).encode()
    return f"{type(feature_map).__name__} of {feature_map.num_features} ({zlib.crc32(numbers):08x})"


def _settings(feature_map: Any) -> list[str]:
    """Return a map's settings, static fields that are booleans, numbers or strings, as texts "name=value".

    The number of features is left out, as the text of `described` has it already.
    """
    if not is_dataclass(feature_map):
        return []
    static = [own.name for own in fields(feature_map) if own.metadata.get("static")]
    held = {name: getattr(feature_map, name) for name in static if name != "num_features"}
    return [f"{name}={value}" for name, value in held.items() if isinstance(value, bool | int | float | str)]


def _imprint(leaf: Any) -> bytes:
    """Return bytes that identify an array or number of a feature map, and are the same on all devices.

    Only the shape of an array of floats is used, as devices round its numbers differently.
    """
    dtype, shape = jnp.result_type(leaf), jnp.shape(leaf)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf)).tobytes()
    if jnp.issubdtype(dtype, jnp.floating):
        return f"{shape}".encode() if shape else np.float32(leaf).tobytes()
    return np.asarray(leaf).astype(np.int64).tobytes()
