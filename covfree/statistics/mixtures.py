"""Fit Gaussian mixtures to a client's classes, as FedPFT sends them."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_choice, check_positive
from covfree.core.compiling import jit
from covfree.core.keys import derive
from covfree.core.products import product
from covfree.core.types import AnyArray, PRNGKey, Rows, accumulation_dtype, is_traced
from covfree.statistics.groups import as_examples, subset_groups
from covfree.statistics.mixture_steps import Mixture as Mixture
from covfree.statistics.mixture_steps import Structure, log_densities, maximise, nearest_seeds
from covfree.statistics.rows import client_pairs

# EM ends when a step improves the log-likelihood by less than this, for each example and feature: a few times
# the rounding of float32.
_GAIN = 1e-6
# The most array entries that the computation of a batch of groups may need: 64 MiB in float32.
_BATCH_NUMBERS = 2**24


@partial(jit, static_argnames=("num_components", "covariance", "num_steps"))
def gaussian_mixture(
    features: Float[AnyArray, "examples dim"],
    kept: Bool[AnyArray, " examples"],
    *,
    num_components: int,
    covariance: Structure,
    key: PRNGKey,
    num_steps: int = 50,
) -> Mixture:
    """Fit a mixture to one group of examples (a client's class) by expectation maximisation (EM).

    The components start at examples drawn one after another, far from those drawn before (greedy k-means++),
    each with its nearest examples. Every variance is raised by 1e-4 of the group's mean variance (and a full
    covariance by its trace times eps on the diagonal, so that its Cholesky factor exists). EM ends early when
    a step improves the log-likelihood by less than 1e-6 for each example and feature.

    A group of n examples gets min(num_components, ⌊n/2⌋) components, at least one, and at most as many as it
    has distinct examples. (A component of one example would have no covariance, and would reveal the
    example.) If all examples are equal, or there is one, the result is one component with covariance 0.

    The examples are first sorted along a random direction, so their original order affects the result only by
    rounding. Moving or scaling the examples moves or scales the mixture. A step costs 8·n·components·d
    operations (for full covariances 3·n·d² + d³/3 for each component), and makes no array of n·components·d
    numbers.

    Args:
        features: features of the examples. Half precisions are computed in float32.
        kept: False for padding, whose features may hold anything.
        num_components: the largest number of components, static.
        covariance: "full", "diagonal" or "spherical", static.
        key: PRNG key that draws the direction and the first means.
        num_steps: the largest number of steps of EM, static.

    Returns:
        The mixture. Its covariances divide by the (weighted) number of examples n, not n − 1. Batch over
        groups with ``jax.vmap``. Reverse-mode differentiation is not supported.

    Source: FedPFT (Beitollahi et al. 2024). A step is equivalent to a step of
    ``sklearn.mixture.GaussianMixture(covariance_type=..., reg_covar=floor)``.

    >>> import jax
    >>> x = jax.numpy.array([[0.0], [2.0], [10.0], [12.0]])
    >>> mixture = gaussian_mixture(
    ...     x, x[:, 0] >= 0, num_components=2, covariance="diagonal", key=jax.random.key(0))
    >>> sorted(mixture.mean.round(2).ravel().tolist()), mixture.weight.round(2).tolist()
    ([1.0, 11.0], [0.5, 0.5])
    """
    (features,), kept = as_examples(features), jnp.asarray(kept)
    if kept.shape != features.shape[:1] or features.shape[0] == 0:
        raise ValueError(
            f"kept: expected shape [{features.shape[0]}], one for each example and at least one, "
            f"got {list(kept.shape)}"
        )
    check_positive("num_components", num_components)
    check_positive("num_steps", num_steps)
    check_choice("covariance", covariance, get_args(Structure))
    dtype = accumulation_dtype(features)
    dim = features.shape[1]
    values = jnp.where(kept[:, None], features, 0).astype(dtype)
    direction = jax.random.normal(derive(key, "direction"), (dim, 1), dtype)
    order = jnp.argsort(jnp.where(kept, product(values, direction)[:, 0], jnp.inf))
    values, kept = values[order], kept[order]
    count = jnp.maximum(kept.sum(), 1).astype(dtype)

    # Subtract one example first, so that equal ones give exactly 0; then the mean; then scale to variance 1.
    first = values[0]
    values = jnp.where(kept[:, None], values - first[None, :], 0)
    centre = values.sum(0) / count
    values = jnp.where(kept[:, None], values - centre[None, :], 0)
    spread = jnp.sqrt(jnp.square(values).sum() / (count * dim))
    values = values / jnp.where(spread > 0, spread, 1)

    nearest = nearest_seeds(values, kept, num_components, derive(key, "starts"))
    start = (nearest[:, None] == jnp.arange(num_components, dtype=jnp.int32)[None, :]) & kept[:, None]
    mixture = maximise(values, start.astype(dtype), count, covariance)

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        _, _, gain, step = carry
        return (step < num_steps) & (gain > _GAIN * dim)

    def one_step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        mixture, likelihood, _, step = carry
        joint = log_densities(values, mixture, covariance)
        total = jax.nn.logsumexp(joint, axis=1)
        share = jnp.where(kept[:, None], jnp.exp(joint - total[:, None]), 0)
        now = jnp.where(kept, total, 0).sum() / count
        return maximise(values, share, count, covariance), now, jnp.abs(now - likelihood), step + 1

    infinite = jnp.full((), jnp.inf, dtype)
    mixture = jax.lax.while_loop(unfinished, one_step, (mixture, -infinite, infinite, jnp.int32(0)))[0]
    used = mixture.weight > 0
    mean = jnp.where(used[:, None], (first + centre)[None, :] + spread * mixture.mean, 0)
    return Mixture(mixture.weight, mean, jnp.square(spread) * mixture.covariance)


def client_mixtures(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    num_groups: int,
    group_size: int,
    num_components: int,
    covariance: Structure,
    key: PRNGKey,
) -> Rows:
    """Fit a mixture for each class of each client; each component is a row with a covariance.

    A group is a client's class. Its mixture is the result of `gaussian_mixture` with the key
    ``fold_in(fold_in(derive(key, "mixtures"), label), client)`` (`covfree.core.keys.derive`). It depends
    neither on other groups nor on the examples' order, so a client alone computes the same mixture with the
    same key, up to rounding. All groups together cost a sort of n small keys and work for
    num_groups·group_size examples, whatever the groups' own sizes. Groups are computed in batches, so that
    extra memory is bounded.

    Args:
        features: features of all clients' examples, in any order.
        labels: their classes; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        num_groups: at least the number of client-class pairs, static; from `mixture_sizes`.
        group_size: at least the number of examples of every pair, static; from `mixture_sizes`.
        num_components: the largest number of components of a group, static.
        covariance: "full", "diagonal" or "spherical", static.
        key: PRNG key.

    Returns:
        num_groups·num_components rows, ordered by client, class and component. A row's count is its group's
        number of examples times the component's weight. Unused components are padding: count 0, label and
        client −1.

    Source: FedPFT (Beitollahi et al. 2024).

    >>> import jax
    >>> labels, clients = jax.numpy.array([0, 0, 1]), jax.numpy.array([7, 7, 2])
    >>> rows = client_mixtures(
    ...     jax.numpy.array([[1.0], [3.0], [9.0]]), labels, clients, num_groups=2, group_size=2,
    ...     num_components=1, covariance="spherical", key=jax.random.key(0))
    >>> rows.mean.ravel().tolist(), rows.count.tolist(), rows.covariance.round(3).tolist()
    ([9.0, 2.0], [1.0, 2.0], [0.0, 1.0])
    """
    features, labels, clients = as_examples(features, labels=labels, clients=clients)
    check_positive("num_groups", num_groups)
    check_positive("group_size", group_size)
    check_positive("num_components", num_components)
    if features.shape[0] == 0:
        raise ValueError("features: expected at least one example (padding will do), got none")
    rows, num_pairs, size = _mixture_rows(
        features, labels, clients, key, num_groups, group_size, num_components, covariance
    )
    if not is_traced(size) and (num_pairs > num_groups or size > group_size):
        raise ValueError(
            f"num_groups, group_size: {num_groups} groups of at most {group_size} examples cannot hold all "
            f"client-class pairs: {num_pairs} of at most {size}; see mixture_sizes"
        )
    return rows


def mixture_sizes(
    labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]
) -> tuple[int, int]:
    """Compute static sizes for `client_mixtures`, on the host from concrete arrays.

    Returns:
        The number of client-class pairs, and the number of examples of the largest pair; both at least 1.

    >>> import numpy as np
    >>> mixture_sizes(np.array([0, 0, 1, 1, -1]), np.array([0, 0, 0, 5, 5]))
    (3, 2)
    """
    sizes = client_pairs(labels, clients)[1]
    return max(len(sizes), 1), int(sizes.max(initial=1))


@partial(jit, static_argnames=("num_groups", "group_size", "num_components", "covariance"))
def _mixture_rows(
    features: Float[Array, "examples dim"],
    labels: Integer[Array, " examples"],
    clients: Integer[Array, " examples"],
    key: PRNGKey,
    num_groups: int,
    group_size: int,
    num_components: int,
    covariance: Structure,
) -> tuple[Rows, Integer[Array, ""], Integer[Array, ""]]:
    """Return the rows of `client_mixtures`, the number of client-class pairs, and the largest pair's size."""
    kept = (labels >= 0) & (clients >= 0)
    # The pair of each example; −1 for padding.
    pair = subset_groups((clients, labels), kept, 1, None)
    group = jnp.where(kept, pair, num_groups)
    size = jax.ops.segment_sum(kept.astype(jnp.int32), group, num_groups)
    owners = tuple(
        jnp.where(size > 0, jax.ops.segment_max(x, group, num_groups), -1) for x in (labels, clients)
    )
    mixtures = _fit_groups(
        features, group, size, owners, key, group_size, num_components=num_components, covariance=covariance
    )
    count = (size.astype(mixtures.weight.dtype)[:, None] * mixtures.weight).reshape(-1)
    label, client = (jnp.where(count > 0, jnp.repeat(x, num_components), -1) for x in owners)
    mean, spread = (x.reshape(-1, *x.shape[2:]) for x in (mixtures.mean, mixtures.covariance))
    return Rows(mean, count, label, client, spread), pair.max() + 1, size.max()


def _fit_groups(
    features: Float[Array, "examples dim"],
    group: Integer[Array, " examples"],
    size: Integer[Array, " groups"],
    owners: tuple[Integer[Array, " groups"], ...],
    key: PRNGKey,
    group_size: int,
    *,
    num_components: int,
    covariance: Structure,
) -> Mixture:
    """Fit a mixture to each group, in batches that bound memory; ``owners`` are its label and its client."""
    order = jnp.argsort(group)
    within = jnp.arange(group_size, dtype=jnp.int32)
    key = derive(key, "mixtures")
    label, client = owners
    # Empty groups are fitted too, and draw random numbers. Give them client numbers below 0, so that no real
    # group has their keys.
    client = jnp.where(size > 0, client, -1 - jnp.arange(len(size), dtype=client.dtype))

    def one_group(operand: tuple[jax.Array, ...]) -> Mixture:
        start, size, label, client = operand
        own = jax.random.fold_in(jax.random.fold_in(key, label), client)
        mine = features[order.at[start + within].get(mode="clip")]
        return gaussian_mixture(
            mine, within < size, num_components=num_components, covariance=covariance, key=own
        )

    dim = features.shape[1]
    matrices = dim * dim if covariance == "full" else dim
    held = 4 * group_size * (dim + num_components) + (2 + num_components) * matrices
    batch = max(1, min(len(size), _BATCH_NUMBERS // held))
    return jax.lax.map(one_group, (jnp.cumsum(size) - size, size, label, client), batch_size=batch)
