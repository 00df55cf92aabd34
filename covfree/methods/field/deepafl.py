"""DeepAFL: a residual network whose layers are solved in closed form from sums over all clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_above_zero, check_positive, check_seed, check_strength
from covfree.core.lapack import eigh
from covfree.core.products import product, symmetric_product
from covfree.core.types import LinearHead, Scalar
from covfree.heads.composed import MappedHead
from covfree.methods.field.least_squares import Normal, least_squares, normal_terms, over_examples
from covfree.methods.method import Method
from covfree.methods.rounds import Round
from covfree.methods.summary import keep_examples
from covfree.statistics.deep_features import DeepFeatures


class _Known(NamedTuple):
    """The server's state after the first round.

    Attributes:
        features: the feature map with the layers so far.
        head: the head on the last layer; None until it is solved.
    """

    features: DeepFeatures
    head: LinearHead | None


class _Layer(NamedTuple):
    """The sums over examples from which `solve_layer` computes one layer of the network.

    F holds the layer's random features, one example a row.

    Attributes:
        gram: FᵀF.
        cross: Fᵀ(Y − ΦW), for one-hot labels Y, the features Φ before the layer and the head W on them.
    """

    gram: Float[Array, "inner inner"]
    cross: Float[Array, "inner classes"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Numbers:
    """The arguments of `deepafl`; ``vmap`` may sweep ``ridge``, ``layer_ridge`` and ``seed``."""

    ridge: Scalar
    layer_ridge: Scalar
    seed: Scalar
    width: int = field(metadata={"static": True})
    inner: int = field(metadata={"static": True})
    layers: int = field(metadata={"static": True})


def _head_terms(
    numbers: _Numbers,
    state: _Known | tuple[()],
    features: jax.Array,
    targets: jax.Array,
    kept: jax.Array,
) -> Normal:
    return normal_terms(_known(numbers, state).features(features), targets, kept)


def _solve_head(numbers: _Numbers, state: _Known | tuple[()], total: Normal) -> _Known:
    return _known(numbers, state)._replace(head=least_squares(total, numbers.ridge))


def _known(numbers: _Numbers, state: _Known | tuple[()]) -> _Known:
    return state or _Known(DeepFeatures((), numbers.seed, numbers.width, numbers.inner), None)


def _layer_terms(
    numbers: _Numbers, known: _Known, features: jax.Array, targets: jax.Array, kept: jax.Array
) -> _Layer:
    assert known.head is not None
    mapped = known.features(features)
    random = known.features.random(mapped, len(known.features.layers))
    random = jnp.where(kept[:, None], random, 0)
    residual = targets - product(mapped, known.head.weight)
    return _Layer(symmetric_product(random), product(random.T, residual))


def solve_layer(
    gram: Float[Array, "inner inner"],
    cross: Float[Array, "inner classes"],
    weight: Float[Array, "width classes"],
    ridge: Scalar,
) -> Float[Array, "inner width"]:
    """Compute the Ω that minimises ‖R − FΩW‖² + γ‖Ω‖² (see `deepafl`), from G = FᵀF and H = FᵀR.

    The gradient is 0 if GΩWWᵀ + γΩ = HWᵀ. With G = V diag(b) Vᵀ and WᵀW = Z diag(a) Zᵀ the solution is
    Ω = V [(VᵀHZ) ⊘ (γ + b aᵀ)] (WZ)ᵀ. (Its rows lie in the column space of W, as those of HWᵀ do, and
    W Wᵀ (W z_j) = a_j W z_j.) So no width × width matrix is decomposed, and clients send only G and H.

    Args:
        gram: G.
        cross: H.
        weight: W.
        ridge: γ, above 0.
    """
    values, vectors = eigh(gram)
    inner, turned = eigh(product(weight.T, weight))
    inner, values = jnp.maximum(inner, 0), jnp.maximum(values, 0)
    middle = product(product(vectors.T, cross), turned) / (ridge + values[:, None] * inner[None, :])
    return product(product(vectors, middle), product(weight, turned).T)


def _solve_layer(numbers: _Numbers, known: _Known, total: _Layer) -> _Known:
    assert known.head is not None
    layer = solve_layer(total.gram, total.cross, known.head.weight, numbers.layer_ridge)
    return _Known(replace(known.features, layers=(*known.features.layers, layer)), None)


def _head(numbers: _Numbers, system: None, features: DeepFeatures, head: LinearHead) -> MappedHead:
    return MappedHead(features, head)


def _flops(numbers: _Numbers, num_examples: int, dim: int, num_classes: int) -> int:
    """Return the number of operations of all clients together, in all rounds; see `Method.flops`.

    A client computes each layer only once: it keeps the layer's output for later rounds.
    """
    width, inner, layers = numbers.width, numbers.inner, numbers.layers
    heads = (layers + 1) * width * (width + num_classes)
    each = 2 * inner * width + inner * (inner + num_classes) + width * num_classes
    return 2 * num_examples * (dim * width + heads + layers * each)


def deepafl(
    num_layers: int = 5,
    width: int = 1024,
    inner: int = 1024,
    *,
    ridge: Scalar = 1.0,
    layer_ridge: Scalar = 0.05,
    seed: Scalar = 0,
) -> Method[MappedHead]:
    """Make DeepAFL: a network of T residual layers, each solved in closed form, in 2·T + 1 rounds of sums.

    Φ, with a row for each example, starts as tanh([x̂, 1] A), where x̂ is x scaled to norm √d for d features,
    and A is random (`DeepFeatures`). For one-hot labels Y the server solves W = (ΦᵀΦ + λI)⁻¹ΦᵀY from sums
    over all clients. A layer adds FΩ to Φ, where F = gelu([Φ, 1] B) has a random B. Ω minimises ‖R − FΩW‖² +
    γ‖Ω‖² with the residual R = Y − ΦW, and is solved from FᵀF and FᵀR. Then W is solved again. Clients send
    only sums, so secure aggregation can be used, and the head does not depend on how examples are divided
    among clients.

    Bytes up of each client: 4·[(T + 1)·(h² + h·C) + T·(f² + f·C)] for C classes, and C counts in each round
    for W. Bytes down in each round: the layers so far and, before a new layer, W; a client that keeps layers
    needs only the newest.

    Args:
        num_layers: T.
        width: h, the number of columns of Φ.
        inner: f, the number of columns of F.
        ridge: λ.
        layer_ridge: γ, above 0.
        seed: the seed of A and of each layer's B; the same for all parties.

    Returns:
        The method. Its clients send sums in each round; no single message replaces all rounds.

    Raises:
        TypeError: if ``num_layers``, ``width``, ``inner`` or ``seed`` is not an integer.
        ValueError: if a number is out of range.

    Source: Tang, Huang, Fan et al. (2026), "DeepAFL: Deep Analytic Federated Learning". There clients send
    Fᵀ(Y − ΦW)Wᵀ, f·h numbers; as the server knows W, the f·C numbers of Fᵀ(Y − ΦW) are enough. There features
    are not scaled, and A and B are drawn uniformly.

    >>> import covfree, numpy as np
    >>> x = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]] * 5, np.float32)
    >>> y = np.array([0, 1, 0, 1] * 5)  # no linear head tells these apart
    >>> head = covfree.fit(deepafl(1, 16, 16, ridge=0.01), x, y, clients=np.zeros(20, int))
    >>> float(covfree.evaluate(head, x, y))
    1.0
    """
    check_positive("num_layers", num_layers)
    check_positive("width", width)
    check_positive("inner", inner)
    check_strength("ridge", ridge)
    check_above_zero("layer_ridge", layer_ridge)
    numbers = _Numbers(ridge, layer_ridge, check_seed("seed", seed), width, inner, num_layers)
    head = Round(over_examples(_head_terms), _solve_head, head=True)
    layer = Round(over_examples(_layer_terms), _solve_layer)
    rounds = (head, *(layer, head) * num_layers)
    return Method(numbers, "deepafl", keep_examples(), rounds, None, _head, flops=_flops)
