"""Fed3R-RF: Fed3R on random Fourier features. By default the kernel width comes from sums over clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_positive, check_seed, check_strength
from covfree.core.linalg import Scatter
from covfree.core.types import LinearHead, Moments, Rows, Scalar
from covfree.estimators.moments import valid_rows
from covfree.heads import ridge_head
from covfree.heads.composed import MappedHead
from covfree.methods.fed3r import fed3r, gram_terms
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round
from covfree.methods.summary import keep_examples
from covfree.statistics.feature_maps import FourierFeatures, accurate, fourier_features, to_norm_one

# σ in units of √tr Σ, with Σ the features' covariance. The root mean square distance of two examples is
# √2·√tr Σ, so the kernel between them is about exp(−1/16) = 0.94.
_WIDTHS = 4.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Numbers:
    """The arguments of `fed3r_random`: hyperparameters, which ``vmap`` may sweep, and static settings."""

    ridge: Scalar
    seed: Scalar
    num_features: int = field(metadata={"static": True})
    unit: bool = field(metadata={"static": True})
    bias: bool = field(metadata={"static": True})

    def map_of(self, sigma: Scalar) -> FourierFeatures:
        return FourierFeatures(sigma, self.seed, self.num_features, self.unit)


class _Sizes(NamedTuple):
    """The sums that clients send in the first round, over examples x; `_width` computes σ from them.

    Attributes:
        number: n, the number of examples.
        total: Σ x.
        square: Σ ‖x‖².
    """

    number: Float[Array, ""]
    total: Float[Array, " dim"]
    square: Float[Array, ""]


def _valid(rows: Rows, num_classes: int) -> tuple[Rows, jax.Array]:
    """Set the features of padding to zero; also return which rows are valid."""
    kept = valid_rows(rows, num_classes)
    return replace(rows, mean=jnp.where(kept[:, None], accurate(rows.mean), 0)), kept


def _size_terms(numbers: _Numbers, sent: tuple[()], rows: Rows, num_classes: int) -> _Sizes:
    rows, kept = _valid(rows, num_classes)
    features = to_norm_one(jnp.asarray(rows.mean)) if numbers.unit else jnp.asarray(rows.mean)
    return _Sizes(kept.sum(dtype=features.dtype), features.sum(0), jnp.square(features).sum())


def _width(numbers: _Numbers, state: tuple[()], total: _Sizes) -> tuple[jax.Array]:
    """Compute the kernel's width σ = 4·√v, with v the total variance of the features over all examples.

    If all examples equal x, σ is 4·√eps·‖x‖, or 4 if x = 0.
    """
    count = jnp.maximum(total.number, 1)
    square = total.square / count
    variance = square - jnp.square(total.total / count).sum()
    # For features far from 0 the difference is mostly rounding, so bound it from below.
    variance = jnp.maximum(variance, jnp.finfo(square.dtype).eps * square)
    return (_WIDTHS * jnp.sqrt(jnp.where(variance > 0, variance, 1)),)


def _gram_terms(
    numbers: _Numbers, sent: tuple[jax.Array], rows: Rows, num_classes: int
) -> tuple[Moments, Factor]:
    rows, _ = _valid(rows, num_classes)
    return gram_terms(None, (), replace(rows, mean=numbers.map_of(sent[0])(rows.mean)), num_classes)


def _system(numbers: _Numbers, sigma: jax.Array, total: tuple[Moments, Scatter]) -> Scatter:
    return total[1].shifted(numbers.ridge)


def _head(numbers: _Numbers, system: Scatter, sigma: jax.Array, total: tuple[Moments, Scatter]) -> MappedHead:
    head: LinearHead = ridge_head(system, total[0], bias=numbers.bias)
    return MappedHead(numbers.map_of(sigma), head)


def _flops(numbers: _Numbers, num_examples: int, dim: int, num_classes: int) -> int:
    size = numbers.num_features
    return num_examples * (3 * dim + 2 * dim * size + size + 2 * size**2)


def fed3r_random(
    ridge: Scalar = 0.01,
    num_features: int = 2000,
    sigma: Scalar | str = "auto",
    *,
    unit: bool = False,
    bias: bool = False,
    seed: int = 0,
) -> Method[MappedHead]:
    """Make Fed3R-RF: Fed3R on D random Fourier features, an approximation of kernel ridge regression.

    The kernel is exp(−‖x − y‖²/(2σ²)); σ must fit the scale of the features. With ``"auto"`` there are two
    rounds. In the first, each client sends its number of examples, Σ x and Σ ‖x‖². From these the server
    computes the total variance of all n examples, v = Σ ‖x‖²/n − ‖(Σ x)/n‖², and sends back σ = 4·√v. The
    second round is Fed3R's. The paper has only that round, with σ = 1000, chosen for its backbone's features.

    Bytes up, for K clients and M client-class pairs: 4·(K·D² + M·D). With ``"auto"`` a client sends sums of
    all C classes, even those that it lacks: for d features 4·K·(D² + C·D + 2·C + d + 3). Integer counts and
    labels come on top: 8·M bytes, or 4·K·C with ``"auto"``.

    Args:
        ridge: λ, at least 0.
        num_features: D. With fewer than d features, the result may be worse than without a map.
        sigma: σ above 0, or ``"auto"``.
        unit: whether to scale features to norm 1 first. Distances are then at most 2. With σ far above 2 the
            kernel is almost constant, and the head is fitted to rounding errors.
        bias: see `fed3r`.
        seed: the seed of the random directions; the same for all parties.

    Raises:
        ValueError: if a number is out of its range.
        TypeError: if ``num_features`` or ``seed`` is not an integer, or ``ridge`` or ``sigma`` not a number.

    Source: Fanì, Camoriano, Caputo and Ciccone (2024); the automatic σ is covfree's.

    >>> import covfree, numpy as np
    >>> x = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]] * 5, np.float32)
    >>> y = np.array([0, 1, 0, 1] * 5)  # no linear head tells these apart
    >>> head = covfree.fit(fed3r_random(1e-4, 50), 1000 * x, y, clients=np.zeros(20, int))
    >>> float(covfree.evaluate(head, 1000 * x, y))
    1.0
    """
    check_positive("num_features", num_features)
    if sigma != "auto":
        if isinstance(sigma, str):
            raise ValueError(f"sigma: expected a number above 0 or 'auto', got {sigma!r}")
        feature_map = fourier_features(num_features, sigma=sigma, seed=seed, unit=unit)
        return replace(fed3r(ridge, bias=bias).with_feature_map(feature_map), name="fed3r-random")
    check_strength("ridge", ridge)
    numbers = _Numbers(ridge, check_seed("seed", seed), num_features, unit, bias)
    rounds = (Round(_size_terms, _width), Round(_gram_terms))
    return Method(numbers, "fed3r-random", keep_examples(), rounds, _system, _head, flops=_flops)
