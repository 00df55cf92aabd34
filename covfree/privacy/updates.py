"""Encode each client's training update as integers plus a share of noise, for private sums (DP-FedAvg)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_above_zero, check_choice, check_integer, check_positive
from covfree.privacy.accounting import Neighbours, Promise, Release, rho_for, spent
from covfree.privacy.clipping import bounded, clipped
from covfree.privacy.discrete import RandomBytes, summed_discrete_gaussians
from covfree.secure.words import Words, shaped

# log₂ of the standard deviation of a client's noise, in steps of the grid.
_LOG_DEVIATION = 18
# The largest norm of a sum without noise. Words hold numbers below 2⁶³, so there is room for noise.
_ROOM = 2**61
# The bound on norms must be at least this many grid steps.
_LEAST = 32


@dataclass(frozen=True)
class PrivateUpdates:
    """An encoding of clients' float uploads as words (integers modulo 2⁶⁴) with noise; see `private_updates`.

    Pass it to `covfree.secure` in place of a `covfree.secure.FixedPoint`.

    Attributes:
        clip: the largest norm of an upload; uploads with a larger norm are scaled down.
        bound: the largest norm of the upload's integers, without noise.
        num_clients: the largest number of clients whose uploads may be added.
        rounds: the number of rounds that the promise covers.
        promise: the privacy promise; it holds only if nobody sees a single client's upload.
    """

    clip: float
    bound: int
    num_clients: int
    rounds: int
    promise: Promise

    @property
    def least(self) -> int:
        """The least number of clients whose uploads may be added.

        It is ``promise.honest``, the number of clients on whose noise the promise relies, but at least 2.
        """
        return max(2, self.promise.honest or 0)

    def encode(self, upload: Any, random_bytes: RandomBytes = os.urandom) -> Words:
        """Return an upload as words: clipped, rounded to integers, plus one client's share of the noise.

        Args:
            upload: a pytree of float arrays. If a number is not finite, only noise is sent.
            random_bytes: source of the noise; use anything but `os.urandom` only for experiments.

        Raises:
            ValueError: if an array is not of floats.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(upload)]
        if wrong := [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]:
            raise ValueError(f"upload: expected floats alone, got {wrong[0]}")
        vector = np.concatenate([np.zeros(0), *(leaf.astype(np.float64).ravel() for leaf in leaves)])
        # Round towards 0, so that the integers' norm stays within the bound; 1 − 1e-9 leaves room for float
        # rounding.
        scaled = clipped(vector[None], self.clip) * ((1 - 1e-9) * self.bound)
        integers = bounded(np.trunc(scaled).astype(np.int64), self.bound)[0]
        noise = summed_discrete_gaussians(_LOG_DEVIATION, 1, integers.size, random_bytes)
        return (integers + noise).view(np.uint64)

    def decode(self, total: Words, like: Any) -> Any:
        """Convert the sum of encoded uploads to floats: the sum of the clipped uploads, plus the noise.

        Args:
            total: the sum, modulo 2⁶⁴, of all clients' words from `encode`.
            like: a pytree with the structure, shapes and data types of an upload.

        Returns:
            A pytree of floats, with this structure.
        """
        return shaped(total.view(np.int64) * (self.clip / self.bound), like)


def private_updates(
    *,
    epsilon: float,
    delta: float,
    clip: float,
    rounds: int,
    honest: int,
    num_clients: int,
    neighbours: Neighbours = "add_remove",
) -> PrivateUpdates:
    """Make an encoding that clips an upload and adds a share of the noise, so that the sum hides the upload.

    Each upload, as a vector of all its arrays, is scaled down to norm ``clip`` and rounded to a public grid
    of integers. Each client adds discrete Gaussian noise of standard deviation s, so the noise of ``honest``
    clients has the standard deviation σ = s√honest. This noise protects as well as that of `private_rounds`,
    but without a trusted server, provided that uploads are seen only in `covfree.secure` sums. The grid's
    steps are far smaller than the noise. For FedAvg use ``weighting="uniform"``, where the weight in an
    upload is 1, and a ``clip`` above 1. ε is the same if only some clients are drawn in a round.

    Args:
        epsilon: ε of all rounds together.
        delta: δ.
        clip: bound on an upload's norm.
        rounds: the number of rounds of the run.
        honest: the number of clients that surely take part in each round and keep their noise secret.
        num_clients: the largest number of clients of a round.
        neighbours: whether a client's upload is added or removed, or replaced by another.

    Returns:
        The encoding, for `covfree.secure.run_securely` and `covfree.secure.secure_sum`; its ``promise`` says
        what is guaranteed.

    Raises:
        ValueError: if a number is out of range, or the grid would have too few steps for this much noise.

    Source: McMahan, Ramage, Talwar and Zhang (2018), with noise on the sum instead of the mean; Kairouz, Liu
    and Steinke (2021) for noise that clients add within secure sums.

    >>> hidden = private_updates(epsilon=4.0, delta=1e-5, clip=2.0, rounds=10, honest=900, num_clients=1000)
    >>> round(hidden.promise.epsilon, 3), hidden.promise.hidden
    (4.0, 'whether all examples of one client were there at all')
    """
    check_above_zero("clip", clip)
    check_choice("neighbours", neighbours, ("add_remove", "replace_one"))
    number, most = check_positive("rounds", rounds), check_positive("num_clients", num_clients)
    if check_integer("honest", honest, 1) > most:
        raise ValueError(f"honest: expected at most the {most} clients, got {honest}")
    moved = 1 if neighbours == "add_remove" else 2
    deviation = 2.0**_LOG_DEVIATION * math.sqrt(honest)
    # The factor 1 − 1e-12 makes up for float rounding, so that the cost is not above ρ.
    allowed = math.sqrt(2 * rho_for(epsilon, delta) / number) * deviation * (1 - 1e-12)
    # Sums on a finer grid could exceed the range of words and wrap around. If that range limits the grid, the
    # noise is larger than ε requires.
    bound = min(math.floor(allowed / moved), _ROOM // most)
    if bound < _LEAST:
        short, expected = ("num_clients", "fewer") if _ROOM // most < _LEAST else ("epsilon", "a larger one")
        text = f"the grid to which uploads are rounded has {bound} steps up to the clip, fewer than {_LEAST}"
        raise ValueError(f"{short}: expected {expected}; {text}")
    rho = (moved * bound / deviation) ** 2 / 2
    releases = tuple(Release(f"round {each}", rho) for each in range(number))
    promise = Promise(spent(releases, delta), delta, "client", neighbours, "distributed", honest, releases)
    return PrivateUpdates(float(clip), bound, most, number, promise)
