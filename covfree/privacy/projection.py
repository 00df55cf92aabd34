"""Project features to fewer random dimensions, so that the second moment gets less noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_positive, check_seed
from covfree.core.lapack import orthonormal
from covfree.core.products import product
from covfree.core.types import AnyArray, LinearHead, Scalar
from covfree.statistics.feature_maps import accurate


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PublicProjection:
    """The map x [d] ↦ √(d/p)·Qᵀx, where Q [d, p] has random orthonormal columns.

    The result's squared norm is ‖x‖² on average over Q.

    Attributes:
        seed: the seed of Q; public, as the map does not depend on data.
        num_features: p.
    """

    seed: Scalar
    num_features: int = field(metadata={"static": True})

    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch num_features"]:
        """Project each feature vector."""
        features = accurate(features)
        dim = features.shape[-1]
        basis = self.basis(dim).astype(features.dtype)
        return math.sqrt(dim / self.num_features) * product(features.reshape(-1, dim), basis).reshape(
            *features.shape[:-1], self.num_features
        )

    def basis(self, dim: int) -> Float[Array, "dim num_features"]:
        """Return the matrix Q, with random orthonormal columns, for features of dimension ``dim``."""
        if self.num_features > dim:
            raise ValueError(f"projection: expected at most the features' {dim}, got {self.num_features}")
        drawn = jax.random.normal(jax.random.key(self.seed), (dim, self.num_features), jnp.float32)
        return orthonormal(drawn)

    def unprojected(self, head: LinearHead, dim: int) -> LinearHead:
        """Convert a head for projected features to a head for original features x, with the same scores.

        The scores of the result for x are the scores of ``head`` for the projection of x. ``dim`` is d, the
        number of original features.
        """
        basis = self.basis(dim).astype(head.weight.dtype)
        return replace(head, weight=math.sqrt(dim / self.num_features) * product(basis, head.weight))


def public_projection(num_features: int, *, seed: int = 0) -> PublicProjection:
    """Make a random projection to ``num_features`` dimensions, the same for all parties with the same seed.

    The second moment of p features has p(p + 1)/2 numbers, each with noise. If the noise is strong, a smaller
    p may raise the accuracy, although it loses information (docs/privacy.md).

    Args:
        num_features: p, at most the dimension of the features.
        seed: public seed.

    >>> import jax.numpy as jnp
    >>> public_projection(8)(jnp.ones((3, 32))).shape
    (3, 8)
    """
    return PublicProjection(check_seed("seed", seed), check_positive("num_features", num_features))
