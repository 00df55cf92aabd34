"""SAFLe: least squares on features in buckets; sums over clients give the thresholds between buckets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from covfree.core.checks import check_above_zero, check_positive, check_seed
from covfree.core.types import LinearHead, Scalar
from covfree.heads.composed import MappedHead
from covfree.methods.field.least_squares import Normal, least_squares, normal_terms, over_examples
from covfree.methods.method import Method
from covfree.methods.rounds import Round
from covfree.methods.summary import keep_examples
from covfree.statistics.buckets import BucketFeatures, bucket_features, gaussian_thresholds


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Numbers:
    """The arguments of `safle`: hyperparameters, which ``vmap`` may sweep, and static settings."""

    ridge: Scalar
    seed: Scalar
    num_buckets: int = field(metadata={"static": True})
    group_size: int = field(metadata={"static": True})


class _Mean(NamedTuple):
    """The sums of the first round, which give c, the mean of the features x.

    Attributes:
        number: n, the number of examples.
        total: Σx.
    """

    number: Int[Array, ""]
    total: Float[Array, " dim"]


class _Scale(NamedTuple):
    """Sums over all clients' examples, from which `gaussian_thresholds` computes thresholds.

    They are the total of the second round. In the first, the server learned c, the features' mean.

    Attributes:
        number: n, the number of examples.
        total: Σ(x − c), for features x.
        square: Σ(x − c)².
    """

    number: Int[Array, ""]
    total: Float[Array, " dim"]
    square: Float[Array, " dim"]


def _mean_terms(
    numbers: _Numbers, state: tuple[()], features: jax.Array, targets: jax.Array, kept: jax.Array
) -> _Mean:
    return _Mean(kept.sum(dtype=jnp.int32), features.sum(0))


def _centre(numbers: _Numbers, state: tuple[()], total: _Mean) -> tuple[jax.Array]:
    return (total.total / jnp.maximum(total.number, 1).astype(total.total.dtype),)


def _scale_terms(
    numbers: _Numbers, state: tuple[jax.Array], features: jax.Array, targets: jax.Array, kept: jax.Array
) -> _Scale:
    (centre,) = state
    away = jnp.where(kept[:, None], features - centre.astype(features.dtype)[None, :], 0)
    return _Scale(kept.sum(dtype=jnp.int32), away.sum(0), jnp.square(away).sum(0))


def _buckets(numbers: _Numbers, state: tuple[jax.Array], total: _Scale) -> tuple[BucketFeatures]:
    thresholds = gaussian_thresholds(*total, numbers.num_buckets, centre=state[0])
    return (bucket_features(thresholds, numbers.group_size, seed=numbers.seed),)


def _head_terms(
    numbers: _Numbers, state: tuple[BucketFeatures], features: jax.Array, targets: jax.Array, kept: jax.Array
) -> Normal:
    return normal_terms(state[0](features), targets, kept)


def _solve(
    numbers: _Numbers, state: tuple[BucketFeatures], total: Normal
) -> tuple[BucketFeatures, LinearHead]:
    return (*state, least_squares(total, numbers.ridge))


def _head(numbers: _Numbers, system: None, features: BucketFeatures, head: LinearHead) -> MappedHead:
    return MappedHead(features, head)


_ROUNDS = (
    Round(over_examples(_mean_terms), _centre),
    Round(over_examples(_scale_terms), _buckets),
    Round(over_examples(_head_terms), _solve),
)


def _flops(numbers: _Numbers, num_examples: int, dim: int, num_classes: int) -> int:
    """Return the number of operations of all clients together.

    The product ΦᵀΦ of the mapped features Φ is counted as dense, though most entries of Φ are 0.
    """
    bits = dim * numbers.num_buckets
    mapped = -(-bits // numbers.group_size) * 2**numbers.group_size
    return num_examples * (5 * dim + bits + 2 * mapped * (mapped + num_classes))


def safle(
    num_buckets: int = 3, group_size: int = 3, *, ridge: Scalar = 10.0, seed: Scalar = 0
) -> Method[MappedHead]:
    """Make SAFLe: features become bits, and groups of bits index tables of scores; three rounds of sums.

    In the first round clients send n and Σx, which give the mean c. In the second they send n, Σ(x − c) and
    Σ(x − c)², which give the thresholds of the bits: Gaussian quantiles of each feature
    (`gaussian_thresholds`). Squares about c are accurate even if features are far from zero. In the third
    they send ΦᵀΦ and ΦᵀY, for mapped features Φ (`bucket_features`) and one-hot labels Y; the server solves
    W = (ΦᵀΦ + λI)⁻¹ΦᵀY. Clients send only sums, so the head does not depend on how examples are divided among
    them.

    Bytes up of each client: 4·(3·d + D² + D·C + 2 + C) for d features, D = ⌈d·L/G⌉·2ᴳ mapped features and C
    classes; 2 + C of the numbers are counts. The defaults give D = 8·d. Bytes down: 4·(d·(1 + L) + 1), as the
    seed is sent too.

    Args:
        num_buckets: L, the number of thresholds, and so of bits, of each feature.
        group_size: G, the number of bits that index a table.
        ridge: λ, above 0: as the entries of Φ that belong to a table add up to 1, ΦᵀΦ is singular.
        seed: the seed of the permutation that makes the groups; the same for all parties.

    Returns:
        The method. Its clients send sums in each round; no single message replaces all rounds.

    Raises:
        TypeError: if ``num_buckets``, ``group_size`` or ``seed`` is not an integer.
        ValueError: if a number is out of range.

    Source: Bacellar, Munir, França, Lima, Marculescu and John (2026), "Single-Round Scalable Analytic
    Federated Learning". The exact definition of their "binary overlapping" buckets was not available:
    half-lines above Gaussian quantiles are covfree's choice, and so are the two rounds that give these.

    >>> import covfree, numpy as np
    >>> x = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]] * 5, np.float32)
    >>> y = np.array([0, 0, 1, 1] * 5)  # no linear head tells these apart
    >>> head = covfree.fit(safle(1, 2, ridge=0.1), x, y, clients=np.zeros(20, int))
    >>> float(covfree.evaluate(head, x, y))
    1.0
    """
    check_positive("num_buckets", num_buckets)
    check_positive("group_size", group_size)
    check_seed("seed", seed)
    numbers = _Numbers(check_above_zero("ridge", ridge), seed, num_buckets, group_size)
    return Method(numbers, "safle", keep_examples(), _ROUNDS, None, _head, flops=_flops)
