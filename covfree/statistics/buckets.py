"""SAFLe's feature map: compare features with thresholds, which gives bits; encode bits as one-hot vectors.

Each vector encodes a few bits, such as 3. The thresholds are computed here too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_positive, check_seed
from covfree.core.keys import derive
from covfree.core.types import AnyArray, Scalar, at_once
from covfree.statistics.feature_maps import accurate

# The largest group size G; a table then has 2²⁰ entries.
MOST_BITS = 20


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BucketFeatures:
    """SAFLe's map of features to one-hot vectors; see `bucket_features`.

    Attributes:
        thresholds: [dim, L], the L numbers with which a feature is compared; each comparison gives a bit.
        seed: the seed of the permutation.
        group_size: G, the number of bits in a group.
    """

    thresholds: Float[AnyArray, "dim buckets"]
    seed: Scalar
    group_size: int = field(metadata={"static": True})

    @property
    def num_features(self) -> int:
        """D = ⌈d·L/G⌉·2ᴳ, the number of mapped features: 2ᴳ entries in each of ⌈d·L/G⌉ tables."""
        return -(-math.prod(self.thresholds.shape) // self.group_size) * 2**self.group_size

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Return, for each feature vector, the one-hot vectors of its groups of bits, concatenated."""
        features = accurate(features)
        thresholds = jnp.asarray(self.thresholds, features.dtype)
        if features.shape[-1] != len(thresholds):
            raise ValueError(
                f"features: expected dim {len(thresholds)}, a row of thresholds for each feature, got dim "
                f"{features.shape[-1]}"
            )
        shape, size = features.shape[:-1], thresholds.size
        inside = features[..., None] > jnp.broadcast_to(thresholds, (*shape, *thresholds.shape))
        bits = inside.reshape(*shape, size)[..., self.drawn(features.shape[-1])["order"]]
        # Fill the last table's missing digits with 0.
        bits = jnp.pad(bits, [*[(0, 0)] * len(shape), (0, -size % self.group_size)])
        bits = bits.reshape(*shape, -(-size // self.group_size), self.group_size)
        powers = jnp.broadcast_to(2 ** jnp.arange(self.group_size, dtype=jnp.int32), bits.shape)
        entry = (bits.astype(jnp.int32) * powers).sum(-1)
        return jax.nn.one_hot(entry, 2**self.group_size, dtype=features.dtype).reshape(
            *shape, self.num_features
        )

    def drawn(self, dim: int) -> dict[str, jax.Array]:
        """Draw, from the seed, the permutation of all bits: L bits for each of the ``dim`` features."""
        size = dim * jnp.shape(self.thresholds)[1]
        return {"order": jax.random.permutation(derive(jax.random.key(self.seed), "permutation"), size)}


def bucket_features(
    thresholds: Float[AnyArray, "dim buckets"], group_size: int = 3, *, seed: Scalar = 0
) -> BucketFeatures:
    """Make SAFLe's feature map to one-hot tables; a linear head on the map is nonlinear in the features.

    Each of the L thresholds t_jl of feature j gives a bit: 1 if x_j > t_jl, else 0. The bits of all d
    features are permuted and cut into groups of G. The bits of a group are the digits of a number below 2ᴳ,
    which is encoded as a one-hot vector. So a linear head on the D = ⌈d·L/G⌉·2ᴳ mapped features is a sum of
    tables, and each table can be any function of its G bits. The derivative with respect to the features is
    0.

    Args:
        thresholds: t_jl, the same for all parties; `gaussian_thresholds` computes them from sums.
        group_size: G, at most 20.
        seed: the seed of the permutation; the same for all parties.

    Raises:
        ValueError: if ``thresholds`` is empty or no matrix, or ``group_size`` is below 1 or above 20.
        TypeError: if ``group_size`` or ``seed`` is no integer.

    Source: SAFLe (Bacellar et al. 2026), whose buckets are called "binary overlapping". Their exact
    definition was not available: half-lines as buckets are covfree's choice.

    >>> import jax.numpy as jnp
    >>> z = bucket_features(jnp.array([[0.0], [1.0]]), group_size=2)
    >>> z(jnp.array([[-1.0, 0.0], [2.0, 2.0]]))  # in no bucket; in both
    Array([[1., 0., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    """
    if jnp.ndim(thresholds) != 2 or 0 in jnp.shape(thresholds):
        raise ValueError(f"thresholds: expected shape [dim, buckets], got {list(jnp.shape(thresholds))}")
    check_positive("group_size", group_size)
    if group_size > MOST_BITS:
        raise ValueError(
            f"group_size: expected at most {MOST_BITS}, as a table has 2ᴳ entries, got {group_size}"
        )
    return BucketFeatures(thresholds, check_seed("seed", seed), group_size)


def gaussian_thresholds(
    count: Scalar,
    total: Float[AnyArray, " dim"],
    square: Float[AnyArray, " dim"],
    num_buckets: int = 3,
    *,
    centre: Float[AnyArray, " dim"] | None = None,
) -> Float[Array, "dim num_buckets"]:
    """Compute thresholds of each feature, the quantiles of a Gaussian, from sums over all examples.

    t_jl = m_j + s_j Φ⁻¹(l/(L + 1)) for l = 1, …, L, with the features' means m and standard deviations s, and
    the standard normal quantile function Φ⁻¹. Clients send their number n of examples x, Σ(x − c) and
    Σ(x − c)²: 2·d + 1 numbers that add up. In float32, s has a relative error of about eps·(1 + (m − c)²/s²).
    So features far from 0 need a centre c near their mean, which a first round of n and Σx gives.

    Args:
        count: n.
        total: Σ(x − c).
        square: Σ(x − c)².
        num_buckets: L, thresholds of each feature.
        centre: c, the same for all clients; by default 0.

    >>> import jax.numpy as jnp
    >>> gaussian_thresholds(2, jnp.array([4.0]), jnp.array([10.0]), 1)  # examples 1 and 3
    Array([[2.]], dtype=float32)
    """
    check_positive("num_buckets", num_buckets)
    total, square = accurate(total), accurate(square)
    count = jnp.maximum(jnp.asarray(count, total.dtype), 1)
    mean = total / count
    deviation = jnp.sqrt(jnp.maximum(square / count - jnp.square(mean), 0))
    shares = jnp.arange(1, num_buckets + 1, dtype=total.dtype) / (num_buckets + 1)
    mean = mean if centre is None else jnp.asarray(centre, mean.dtype) + mean
    return mean[:, None] + deviation[:, None] * jax.scipy.special.ndtri(shares)[None, :]
