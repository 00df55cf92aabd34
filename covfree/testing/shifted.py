"""Draw true means and covariances that differ from client to client, and examples from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covfree.core.checks import check_positive, check_strength
from covfree.testing.federations import SmallFederation


class ShiftedClients(NamedTuple):
    """The true distributions of the clients, in float64.

    Attributes:
        means: [clients, classes, dim] mean of each class at each client.
        covariances: [clients, classes, dim, dim] covariance of each class at each client.
        counts: [clients, classes] number of examples.
    """

    means: np.ndarray
    covariances: np.ndarray
    counts: np.ndarray

    def draw(self, seed: int | np.random.Generator) -> SmallFederation:
        """Draw normally distributed examples, as a `SmallFederation` without padding."""
        rng = np.random.default_rng(seed)
        who, what = np.indices(self.counts.shape).reshape(2, -1).repeat(self.counts.ravel(), axis=1)
        noise = rng.standard_normal((len(who), self.means.shape[-1]))
        roots = np.linalg.cholesky(self.covariances)
        features = self.means[who, what] + np.einsum("nij,nj->ni", roots[who, what], noise)
        return SmallFederation(features, what.astype(np.int32), who.astype(np.int32))


def shifted_clients(
    counts: np.ndarray,
    dim: int,
    *,
    mean_shift: float = 0.3,
    covariance_shift: float = 0.3,
    seed: int = 0,
) -> ShiftedClients:
    """Draw means and covariances that differ from client to client.

    A class has a mean μ_c and a covariance Σ_c = R_c R_cᵀ. Client k's mean is μ_c + s·R_c z with z standard
    normal, so that s is a shift in standard deviations; its covariance is R_c Q diag(e^{t g}) Qᵀ R_cᵀ with g
    standard normal and Q a random orthogonal matrix.

    Args:
        counts: [clients, classes] integers, the number of examples of each class at each client.
        dim: d, the number of features.
        mean_shift: s; 0 for the same means at all clients.
        covariance_shift: t; 0 for the same covariances at all clients.
        seed: the seed of all draws.

    Raises:
        ValueError: if a number is out of its range, or ``counts`` is no two-dimensional array of integers.

    >>> import numpy as np
    >>> clients = shifted_clients(np.array([[3, 2], [0, 4]]), dim=5)
    >>> clients.covariances.shape, clients.draw(0).features.shape
    ((2, 2, 5, 5), (9, 5))
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(f"counts: expected integers [clients, classes] of at least 0, got {counts!r}")
    check_positive("dim", dim)
    check_strength("mean_shift", mean_shift)
    check_strength("covariance_shift", covariance_shift)
    rng = np.random.default_rng(seed)
    clients, classes = counts.shape
    centres = 2 * rng.standard_normal((classes, dim))
    roots = rng.standard_normal((classes, dim, dim)) / np.sqrt(dim) + np.eye(dim)
    moved = mean_shift * rng.standard_normal((clients, classes, dim))
    turns = np.linalg.qr(rng.standard_normal((clients, classes, dim, dim)))[0]
    scales = np.exp(covariance_shift * rng.standard_normal((clients, classes, dim)) / 2)
    own = roots @ turns * scales[..., None, :]
    means = centres + np.einsum("cij,kcj->kci", roots, moved)
    return ShiftedClients(means, own @ own.swapaxes(-1, -2), counts)
