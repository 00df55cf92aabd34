"""Affine maps that move each client's features to one common Gaussian, the barycentre."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check, check_example_structure, check_share, check_type
from covfree.core.compiling import jit
from covfree.core.doors import compiled
from covfree.core.padding import blocks_of_groups
from covfree.core.products import product
from covfree.core.sums import PART
from covfree.core.types import AnyArray, Rows, Scalar
from covfree.estimators import estimate_covariances, first_moments, ledoit_wolf
from covfree.methods.field.alignment.gaussians import (
    Gaussian,
    barycentre,
    between,
    check_basis,
    power_of_two,
    roots,
    scaled,
)


# Hashed by identity, as `jax.jit(map)` needs a hashable function.
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AffineMap:
    """A client's map of a feature vector: x ↦ x + strength · Q (T(Qᵀx) − Qᵀx).

    Here T(z) = target + matrix (z − mean). Features change only in the subspace that the columns of Q span.
    An `Alignment` stores the maps of all clients in one `AffineMap`, whose ``mean`` and ``matrix`` then have
    a first axis for the client.

    Attributes:
        basis: Q, with orthonormal columns.
        mean: the mean of the client's features in the subspace; [clients, rank] for several clients.
        matrix: a symmetric matrix, see `affine_map`; [clients, rank, rank] for several clients.
        target: mean of the barycentre, the Gaussian to which all clients' features are moved.
        strength: how far to move features: 1 all the way to the barycentre, 0 not at all.
    """

    basis: Float[Array, "dim rank"]
    mean: Float[Array, "*clients rank"]
    matrix: Float[Array, "*clients rank rank"]
    target: Float[Array, " rank"]
    strength: Float[Array, ""]

    def __call__(self, features: Float[AnyArray, "examples dim"]) -> Float[Array, "examples dim"]:
        """Apply the map to each row x of ``features``."""
        features = jnp.asarray(features)
        inside = product(features, self.basis)
        return features + self.strength * product(self.inside(inside) - inside, self.basis.T)

    def inside(self, features: Float[Array, "examples rank"]) -> Float[Array, "examples rank"]:
        """Apply the client's map T to features Qᵀx in the subspace, which the columns of Q span."""
        return self.target[None, :] + product(features - self.mean[None, :], self.matrix)


@dataclass(frozen=True)
class Alignment:
    """Each client's map, which moves its features towards a Gaussian common to all clients; made by `align`.

    Call it with features and the client of each; it returns the moved features.

    Attributes:
        client: the clients' numbers, in increasing order.
        maps: their maps; ``mean`` and ``matrix`` have a client axis, the other fields are shared.
        target: the common Gaussian, the Wasserstein barycentre of the clients' Gaussians.
    """

    client: Integer[np.ndarray, " clients"]
    maps: AffineMap
    target: Gaussian

    def __call__(
        self, features: Float[AnyArray, "examples dim"], clients: Integer[AnyArray, " examples"]
    ) -> Float[Array, "examples dim"]:
        """Move each feature vector by the map of its client; vectors without a client (below 0) stay.

        Raises:
            ValueError: if shapes do not fit, or a client has no map.
        """
        clients = np.asarray(clients)
        check_example_structure(features, clients)
        place = np.searchsorted(self.client, clients).clip(max=max(0, len(self.client) - 1))
        known = self.client[place] == clients if len(self.client) else np.zeros(len(clients), bool)
        if (lost := ~known & (clients >= 0)).any():
            raise ValueError(
                f"clients: expected clients with a map, got {clients[np.argmax(lost)]}; a new client makes "
                "its own, of client_gaussian of its features and the barycentre"
            )
        places, of = blocks_of_groups(np.where(known, place, -1), PART)
        return _moved(jnp.asarray(features), jnp.asarray(places), jnp.asarray(of), self.maps)


@jit
def _moved(features: jax.Array, places: jax.Array, of: jax.Array, maps: AffineMap) -> jax.Array:
    features = features.astype(jnp.result_type(features, maps.mean))
    inside = product(features, maps.basis)

    def one_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        places, client = block
        own = replace(maps, mean=maps.mean[client], matrix=maps.matrix[client])
        return own.inside(inside[jnp.maximum(places, 0)])

    blocks = jax.lax.map(one_block, (places, of)).reshape(-1, inside.shape[1])
    kept = jnp.where(places >= 0, places, len(features)).reshape(-1)
    moved = inside.at[kept].set(blocks, mode="drop")
    return features + maps.strength * product(moved - inside, maps.basis.T)


def _check_map(own: Gaussian, target: Gaussian, basis: AnyArray, strength: Scalar = 1.0) -> None:
    check_share("strength", strength)
    rank = jnp.shape(basis)[-1]
    for name, gaussian in (("own", own), ("target", target)):
        check_type(name, gaussian, Gaussian)
        shapes = jnp.shape(gaussian.mean), jnp.shape(gaussian.covariance)
        if shapes != ((rank,), (rank, rank)):
            raise ValueError(
                f"{name}: expected a mean and a covariance of rank {rank}, that of the basis, got "
                f"{list(shapes[0])} and {list(shapes[1])}"
            )


@compiled(check=_check_map)
def affine_map(
    own: Gaussian, target: Gaussian, basis: Float[AnyArray, "dim rank"], strength: Scalar = 1.0
) -> AffineMap:
    """Make a client's map to the barycentre: the optimal transport between the two Gaussians.

    From a client's N(m_k, Σ_k) to the barycentre N(m, S) the transport is T(z) = m + A (z − m_k), where A =
    Σ_k^−½ (Σ_k^½ S Σ_k^½)^½ Σ_k^−½ gives A Σ_k A = S. Directions in which the client has no variance are
    mapped to m; a client without examples gets the identity. With strength t the map is z + t·(T(z) − z).

    Args:
        own: the client's `client_gaussian`.
        target: the `barycentre`.
        basis: Q, orthonormal columns that span the subspace.
        strength: t, from 0 to 1.

    Raises:
        TypeError: if ``own`` or ``target`` is not a `Gaussian`.
        ValueError: if shapes do not fit, or ``strength`` is outside [0, 1].
    """
    (own_unit, own_covariance), (unit, covariance) = (
        scaled(jnp.asarray(each.covariance)) for each in (own, target)
    )
    root, inverse = roots(own_covariance)
    matrix = between(inverse, roots(between(root, covariance))[0]) * (unit / own_unit)
    some, strength = jnp.asarray(own.count) > 0, jnp.asarray(strength, matrix.dtype)
    matrix = jnp.where(some, matrix, jnp.eye(len(matrix), dtype=matrix.dtype))
    return AffineMap(
        jnp.asarray(basis), jnp.where(some, own.mean, target.mean), matrix, target.mean, strength
    )


def align(
    features: Float[AnyArray, "examples dim"],
    clients: Integer[AnyArray, " examples"],
    basis: Float[AnyArray, "dim rank"],
    strength: Scalar = 1.0,
) -> Alignment:
    """Compute the maps of all clients of a simulation from their training features.

    Then ``alignment(features, clients)`` moves training and test features of these clients, before any
    method. In addition to the method's bytes, each client sends a mean and a covariance in the r dimensions
    of the subspace (r + r² numbers). It receives as many numbers, and the subspace (d·r).

    Clients are aligned as a whole, without labels. That helps if clients' features differ because of their
    origin. It harms if they differ because the clients have other classes: then alignment removes what
    separates classes. Costs n·d·r for n examples, and r³ for each client and each step of `barycentre`.

    Args:
        features: features of all clients' training examples.
        clients: the client of each example; below 0 is padding.
        basis: Q, orthonormal columns, e.g. from `principal_basis`. ``jnp.eye(d)`` aligns in all directions.
        strength: see `affine_map`.

    Raises:
        TypeError: if a data type is wrong.
        ValueError: if shapes do not fit, features of a client are not finite, columns of ``basis`` are not
            orthonormal, ``strength`` is outside [0, 1], or there is no client.

    Source: Berardini, Pastore and Murino (2026), "Distribution Alignment for One-Shot Federated Learning via
    Optimal Transport" (SLOT-Align). Here the caller chooses the subspace, and features outside it do not
    change.

    >>> import covfree, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> clients = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 3)) * (1 + clients)[:, None] + 5 * clients[:, None]
    >>> alignment = covfree.align(np.float32(features), clients, np.eye(3, dtype=np.float32))
    >>> moved = alignment(np.float32(features), clients)
    >>> bool(abs(moved[clients == 0].mean(0) - moved[clients == 1].mean(0)).max() < 1e-4)
    True
    """
    clients = np.asarray(clients)
    check(features, np.zeros(np.shape(features)[:1], np.int32), clients)
    check_basis(features, basis)
    check_share("strength", strength)
    names, place = np.unique(clients, return_inverse=True)
    place, names = place - (names < 0).sum(), names[names >= 0]
    if not len(names):
        raise ValueError("clients: expected a client of 0 or above, got none")
    maps, target = _maps(jnp.asarray(features), jnp.asarray(place), jnp.asarray(basis), strength, len(names))
    return Alignment(names, maps, target)


@partial(jit, static_argnames="num_clients")
def _maps(
    features: jax.Array, place: jax.Array, basis: jax.Array, strength: Scalar, num_clients: int
) -> tuple[AffineMap, Gaussian]:
    inside = product(features, basis)
    kept = (place >= 0)[:, None]
    # Scale, so that fourth powers and products of covariances do not overflow.
    unit = power_of_two(jnp.where(kept, inside - inside[jnp.argmax(place >= 0)][None, :], 0))
    rows = Rows.from_examples(jnp.where(kept, inside, 0) / unit, place)
    moments = first_moments(rows, num_clients)
    covariances = estimate_covariances(rows, num_clients, shrinkage=ledoit_wolf())
    own = Gaussian(moments.mean, covariances, moments.count)
    target = barycentre(own)

    matrix = jax.lax.map(lambda own: affine_map(own, target, basis, strength).matrix, own)
    target = Gaussian(target.mean * unit, target.covariance * unit * unit, target.count)
    strength = jnp.asarray(strength, matrix.dtype)
    return AffineMap(basis, own.mean * unit, matrix, target.mean, strength), target
