"""Sums of products of a client's examples: Gram matrices, scatters times directions; and AFL's solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_strength
from covfree.core.doors import compiled
from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.products import product, symmetric_product
from covfree.core.sums import deviations, fold_parts, sum_groups
from covfree.core.types import AnyArray, Scalar, accumulation_dtype, is_traced
from covfree.statistics.groups import as_examples, check_one_client


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GramStatistics:
    """What a client of Fed3R sends: sums over its examples. The server adds them up over clients.

    Attributes:
        gram: A = F Fᵀ = Σ_i f_i f_iᵀ; the columns of F are the examples' features f_i.
        class_sum: for each class, the sum of its examples' features; the transpose of the paper's b.
        count: the number of examples of each class.
    """

    gram: Float[Array, "dim dim"]
    class_sum: Float[Array, "classes dim"]
    count: Integer[Array, " classes"]


@compiled(("num_classes",), check=check_one_client, padded={"features": 0, "labels": -1})
def gram(
    features: Float[AnyArray, "examples dim"], labels: Integer[AnyArray, " examples"], num_classes: int
) -> GramStatistics:
    """Compute the Gram matrix F Fᵀ, class sums and counts of one client; F has features as columns.

    Args:
        features: features of the client's examples. Half precisions are summed in float32.
        labels: their classes; a label outside [0, num_classes) is padding.
        num_classes: C, static.

    Returns:
        The statistics. Batch over clients with ``jax.vmap``; add them up with ``jax.tree.map``.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if features are no floats or labels no integers.

    Source: Fed3R (Fanì et al. 2024), eq. 5 and 6.

    >>> import jax.numpy as jnp
    >>> gram(jnp.array([[1.0, 2.0]]), jnp.array([0]), 1).gram.tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    features, labels = as_examples(features, labels=labels)
    dtype = accumulation_dtype(features)

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> jax.Array:
        values, labels = part
        kept = (labels >= 0) & (labels < num_classes)
        return total + symmetric_product(jnp.where(kept[:, None], values, 0).astype(dtype))

    zeros = jnp.zeros((features.shape[1],) * 2, dtype)
    sums, count = sum_groups(features, labels, num_classes)
    return GramStatistics(fold_parts(add, zeros, (features, labels)), sums, count)


class Analytic(NamedTuple):
    """The message that one client of AFL (analytic federated learning) sends.

    Attributes:
        weight: W = C⁻¹ Xᵀ Y, the client's ridge solution, with X the features and Y the one-hot labels.
        gram: C = Xᵀ X + γ I, with γ the strength of the ridge.
    """

    weight: Float[Array, "dim classes"]
    gram: Float[Array, "dim dim"]


def local_solution(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    num_classes: int,
    gamma: Scalar,
) -> Analytic:
    """Compute a client's ridge solution W = (Xᵀ X + γI)⁻¹ Xᵀ Y, and C = Xᵀ X + γI.

    X holds the features, one example a row, and Y the one-hot labels; γ is ``gamma``.

    Returns:
        The message, W and C. Batch over clients with ``jax.vmap``.

    Source: AFL (He et al. 2025), the local stage. Equivalent to
    ``sklearn.linear_model.Ridge(gamma, fit_intercept=False)`` on one-hot labels.

    >>> import jax.numpy as jnp
    >>> message = local_solution(jnp.array([[3.0], [1.0]]), jnp.array([0, 1]), 2, 2.0)
    >>> (12 * message.weight).round(4).tolist(), message.gram.tolist()
    ([[3.0, 1.0]], [[12.0]])
    """
    check_strength("gamma", gamma)
    sums = gram(features, labels, num_classes)
    scatter = Scatter.from_matrix(sums.gram).shifted(gamma)
    weight = solve(factorise(scatter), sums.class_sum.T)
    return Analytic(weight, scatter.dense())


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TargetSums:
    """Sums over a client's examples, with features f, targets y and weights w; they add up over clients.

    Attributes:
        gram: G = Σ w f fᵀ.
        cross: B = Σ w f yᵀ.
        feature_sum: Σ w f.
        target_sum: Σ w y.
        weight: Σ w, the number of examples if all weights are 1.
    """

    gram: Float[Array, "dim dim"]
    cross: Float[Array, "dim targets"]
    feature_sum: Float[Array, " dim"]
    target_sum: Float[Array, " targets"]
    weight: Float[Array, ""]


def _check(features: Any, targets: Any, weights: Any = None) -> None:
    shapes = {"features": jnp.shape(features), "targets": jnp.shape(targets)}
    for name, shape in shapes.items():
        if len(shape) != 2:
            raise ValueError(f"{name}: expected [examples, numbers], got {list(shape)}")
    length = shapes["features"][0]
    if shapes["targets"][0] != length:
        raise ValueError(f"targets: expected {length}, a row for each of features, got {len(targets)}")
    if jnp.iscomplexobj(targets):
        raise TypeError(f"targets: expected real numbers, got {jnp.asarray(targets).dtype}")
    for name, array in {"features": features, "weights": weights}.items():
        if array is not None and not jnp.issubdtype(jnp.asarray(array).dtype, jnp.floating):
            raise TypeError(f"{name}: expected floating-point numbers, got {jnp.asarray(array).dtype}")
    if weights is None:
        return
    if jnp.shape(weights) != (length,):
        raise ValueError(
            f"weights: expected {length}, one for each row of features, got {list(jnp.shape(weights))}"
        )
    if not is_traced(weights) and not (np.isfinite(weights) & (np.asarray(weights) >= 0)).all():
        raise ValueError("weights: expected finite numbers of at least 0")


@compiled(check=_check)
def target_sums(
    features: Float[AnyArray, "examples dim"],
    targets: AnyArray,
    weights: Float[AnyArray, " examples"] | None = None,
) -> TargetSums:
    """Sum a client's features and targets, from which `regression_head` solves ridge regression.

    Targets may be any numbers: probabilities of classes (soft labels), 0 and 1 for each of several labels,
    measurements. One-hot targets give the sums of `gram`. Added up over clients, the results are the
    sums of the pooled examples.

    Args:
        features: features of the client's examples. Half precisions are summed in float32.
        targets: [examples, targets], a row for each example.
        weights: the examples' weights, at least 0, by default 1. A row of weight 0 is padding, and may hold
            anything.

    Returns:
        The sums. Batch over clients with ``jax.vmap``; add them up with ``jax.tree.map``.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if features or weights are no floats.

    Source: Fed3R (Fanì et al. 2024), eq. 4 to 6, with any Y in b = ZᵀY.

    >>> import jax.numpy as jnp
    >>> sums = target_sums(jnp.array([[1.0, 2.0]]), jnp.array([[0.7, 0.3]]))
    >>> sums.cross.tolist()
    [[0.699999988079071, 0.30000001192092896], [1.399999976158142, 0.6000000238418579]]
    """
    features, targets = jnp.asarray(features), jnp.asarray(targets)
    dtype = accumulation_dtype(features)
    weight = jnp.ones(len(features), dtype) if weights is None else jnp.asarray(weights, dtype)

    def add(total: TargetSums, part: tuple[Any, Any, Any]) -> TargetSums:
        x, y, w = part
        used = (w > 0)[:, None]
        x, y = (jnp.where(used, each, 0).astype(dtype) for each in (x, y))
        more = TargetSums(
            symmetric_product(x * jnp.sqrt(w)[:, None]),
            product(x.T, w[:, None] * y),
            product(w[None], x)[0],
            product(w[None], y)[0],
            w.sum(),
        )
        return jax.tree.map(jnp.add, total, more)

    dim, number = features.shape[1], targets.shape[1]
    shapes = (dim, dim), (dim, number), (dim,), (number,), ()
    return fold_parts(
        add, TargetSums(*(jnp.zeros(shape, dtype) for shape in shapes)), (features, targets, weight)
    )


class ScatterProducts(NamedTuple):
    """Products of a scatter with directions; they add up over examples.

    Attributes:
        product: S Q for directions Q, with S = Σ_i (f_i − μ_{y_i})(f_i − μ_{y_i})ᵀ, where f_i are the
            features of example i, and μ_{y_i} is the mean of its class.
        trace: tr S.
    """

    product: Float[Array, "dim directions"]
    trace: Float[Array, ""]


def scatter_products(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    mean: Float[Array, "classes dim"],
    directions: Float[Array, "dim directions"],
) -> ScatterProducts:
    """Multiply the scatter of examples about class means by q directions, without forming the scatter.

    A label outside [0, classes) marks padding. The cost is 4·n·d·q operations for n examples of d features.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([0, 0])
    >>> found = scatter_products(x, y, jnp.array([[2.0, 1.0]]), jnp.array([[1.0], [0.0]]))
    >>> found.product.ravel().tolist(), float(found.trace)
    ([2.0, 2.0], 4.0)
    """
    features, labels = as_examples(features, labels=labels)
    kept = (labels >= 0) & (labels < mean.shape[0])

    def add(total: ScatterProducts, part: tuple[jax.Array, jax.Array, jax.Array]) -> ScatterProducts:
        features, labels, kept = part
        label = jnp.where(kept, labels, 0)
        centred = deviations(jnp.where(kept[:, None], features, mean[label]), mean[label])
        return ScatterProducts(
            total.product + product(centred.T, product(centred, directions)),
            total.trace + jnp.square(centred).sum(),
        )

    zeros = ScatterProducts(jnp.zeros_like(directions), jnp.zeros((), directions.dtype))
    return fold_parts(add, zeros, (features, labels, kept))
