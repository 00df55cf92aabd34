"""Uploads of training in rounds as integers with noise, so that secure sums make them private (DP-FedAvg)."""

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
from covfree.privacy.discrete import RandomBytes, summed_discrete_gaussians
from covfree.secure.words import Words, shaped

# log₂ of the deviation of a client's noise, in steps of the grid.
_LOG_DEVIATION = 18
# Uploads of the largest norm by all clients stay below half of 2⁶⁴, with as much room for noise.
_ROOM = 2**61
# The fewest steps of the grid that a norm may have.
_LEAST = 32


@dataclass(frozen=True)
class PrivateUpdates:
    """How clients' uploads of floats become words with noise; `private_updates` makes it.

    It takes the place of a `covfree.secure.FixedPoint`.

    Attributes:
        clip: the largest norm of an upload; what is longer is scaled down.
        bound: the largest norm of its integers.
        num_clients: the most clients whose uploads are added.
        rounds: for how many rounds the promise holds.
        promise: what is promised, if no upload is seen but in the sum.
    """

    clip: float
    bound: int
    num_clients: int
    rounds: int
    promise: Promise

    @property
    def least(self) -> int:
        """The fewest clients whose sum may be seen: as many noises are in it as the promise counts on."""
        return max(2, self.promise.honest or 0)

    def encode(self, upload: Any, random_bytes: RandomBytes = os.urandom) -> Words:
        """Clip an upload, round it to the grid, and add one client's share of the noise.

        Args:
            upload: a pytree of arrays of floats. If a number is not finite, noise alone is sent.
            random_bytes: source of the noise; anything but `os.urandom` is for experiments.

        Raises:
            ValueError: if an array is not of floats.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(upload)]
        if wrong := [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]:
            raise ValueError(f"upload: expected floats alone, got {wrong[0]}")
        vector = np.concatenate([np.zeros(0), *(leaf.astype(np.float64).ravel() for leaf in leaves)])
        norm = float(np.linalg.norm(vector))
        if not math.isfinite(norm):
            vector, norm = np.zeros_like(vector), 0.0
        # Towards 0, so that the integers' norm stays within the bound; the factor allows for float rounding.
        scale = (1 - 1e-9) * self.bound / max(norm, self.clip)
        integers = np.trunc(vector * scale).astype(np.int64)
        noise = summed_discrete_gaussians(_LOG_DEVIATION, 1, integers.size, random_bytes)
        return (integers + noise).view(np.uint64)

    def decode(self, total: Words, like: Any) -> Any:
        """Turn a sum of words into floats.

        Args:
            total: the sum, modulo 2⁶⁴, of words by `encode`.
            like: an upload, or anything with its structure, shapes and data types.
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
    """Make an encoding of uploads in which each client's share of noise hides it in the sum (DP-FedAvg).

    Each upload, as one vector of all its parts, is scaled down to norm ``clip`` and rounded to a public grid
    of integers. Each client adds discrete Gaussian noise of deviation s, so the sum of ``honest`` clients has
    σ = s√honest: that of `private_rounds`, with no server to be trusted, if uploads are only seen in
    `covfree.secure` sums. The grid is made so fine that its steps are lost in the noise. As with
    `private_rounds`, give FedAvg ``weighting="uniform"`` and a ``clip`` above 1, which is the weight; it is
    not used to claim a smaller ε that few clients are drawn.

    Args:
        epsilon: ε of all rounds together.
        delta: δ.
        clip: bound on an upload's norm.
        rounds: the number of rounds of the run.
        honest: clients that surely take part in each round and keep their noise to themselves.
        num_clients: the most clients of a round.
        neighbours: whether a client's upload is added or removed, or replaced by another.

    Returns:
        The encoding, for `covfree.secure.run_securely` and `covfree.secure.secure_sum`; its ``promise`` says
        what holds.

    Raises:
        ValueError: if a number is out of range, or a grid under so much noise has too few steps.

    Source: McMahan, Ramage, Talwar and Zhang (2018), with noise on the sum in place of the mean; Kairouz, Liu
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
    # A last bit of float rounding must not cost more than ρ.
    allowed = math.sqrt(2 * rho_for(epsilon, delta) / number) * deviation * (1 - 1e-12)
    # A finer grid would wrap; then there is more noise than ε asks for.
    bound = min(math.floor(allowed / moved), _ROOM // most)
    if bound < _LEAST:
        raise ValueError(f"epsilon: expected a larger one; an upload's norm has {bound} steps of the grid")
    rho = (moved * bound / deviation) ** 2 / 2
    releases = tuple(Release(f"round {each}", rho) for each in range(number))
    promise = Promise(spent(releases, delta), delta, "client", neighbours, "distributed", honest, releases)
    return PrivateUpdates(float(clip), bound, most, number, promise)
