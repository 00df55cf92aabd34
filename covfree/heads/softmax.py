"""The softmax head: logistic regression on the features of examples, or on features drawn at random."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Real

from covfree.core.checks import check_positive, check_strength
from covfree.core.compiling import jit
from covfree.core.products import magnitude, product
from covfree.core.types import AnyArray, LinearHead, Scalar, accumulation_dtype
from covfree.heads.columns import head_for_present
from covfree.heads.lbfgs import minimise
from covfree.statistics.groups import as_examples


def softmax_head(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    num_classes: int,
    *,
    l2: Scalar = 1e-3,
    weight: Real[AnyArray, " examples"] | None = None,
    num_steps: int = 100,
) -> LinearHead:
    """Train multinomial logistic regression by L-BFGS on all examples at once.

    V and b minimise Σ_i w_i (log Σ_c exp s_ic − s_iy_i) / Σ_i w_i + (l2/2) ‖V‖² for labels y_i and the scores
    s = z V + b of standardised features z = (x − m) / σ, where m is the mean of x and σ² the average variance
    of its entries, both weighted by w_i. The solution is converted back to the original features, so neither
    their scale nor their offset changes the classifier. One σ for all features keeps their proportions;
    dividing each feature by its own standard deviation would enlarge a feature that is nearly always 0. The
    start is V = 0, b = 0, and nothing is random. The steps end early when no entry of the gradient is above
    √eps.

    Args:
        features: features of the examples. Half precisions are computed in float32.
        labels: classes of the examples; a label outside [0, num_classes) is padding.
        num_classes: C, the number of classes, static.
        l2: strength of the penalty on V, at least 0; the bias is not penalised.
        weight: w_i of each example, at least 0; by default 1.
        num_steps: maximum number of L-BFGS steps, static. A step costs one to two passes of 4·n·d·C
            operations, and needs memory for a copy of the features, n·C scores and 20 heads.

    Returns:
        The head; its scores are log-posteriors up to a constant. A class without examples of positive weight
        has weight 0 and bias 0, and is marked absent.

    Raises:
        ValueError: if shapes do not fit, or a number is out of its range.
        TypeError: if labels are no integers.

    With n examples of weight 1, equivalent to ``sklearn.linear_model.LogisticRegression(C=1 / (l2 * n))`` on
    z.

    >>> import jax.numpy as jnp
    >>> head = softmax_head(jnp.array([[1.0], [2.0], [5.0], [6.0]]), jnp.array([0, 0, 1, 1]), 2)
    >>> head(jnp.array([[3.0], [4.0]])).argmax(-1).tolist()
    [0, 1]
    """
    features, labels = as_examples(features, labels=labels)
    check_positive("num_classes", num_classes)
    check_positive("num_steps", num_steps)
    dtype = accumulation_dtype(features)
    l2 = jnp.asarray(check_strength("l2", l2), dtype)
    kept = (labels >= 0) & (labels < num_classes)
    share = kept.astype(dtype)
    if weight is not None:
        if jnp.shape(weight) != labels.shape:
            raise ValueError(
                f"weight: expected shape [{labels.shape[0]}], one for each example, "
                f"got {list(jnp.shape(weight))}"
            )
        share = jnp.where(kept, weight, 0).astype(dtype)
    return _fit(features, jnp.where(kept, labels, -1), share, l2, num_classes, num_steps)


@partial(jit, static_argnames=("num_classes", "num_steps"))
def _fit(
    features: Float[Array, "examples dim"],
    labels: Integer[Array, " examples"],
    share: Float[Array, " examples"],
    l2: Float[Array, ""],
    num_classes: int,
    num_steps: int,
) -> LinearHead:
    """Train the head of `softmax_head`; ``share`` has the examples' weights w_i; padding has label −1."""
    dtype = share.dtype
    kept = labels >= 0
    share = share / jnp.where(share.sum() > 0, share.sum(), 1)
    class_of = jnp.where(kept, labels, 0)
    present = jax.ops.segment_sum(share, class_of, num_classes) > 0

    # Set padding to 0: it may hold NaN.
    values = jnp.where(kept[:, None], features, 0).astype(dtype)
    # Subtract one example first. The mean of equal values has a rounding error, which would look like spread.
    first = values[jnp.argmax(kept)][None, :]
    values = jnp.where(kept[:, None], values - first, 0)
    unit = magnitude(values)
    values = values / unit
    mean = product(share[None, :], values)
    values, mean = jnp.where(kept[:, None], values - mean, 0), first + unit * mean
    spread = jnp.sqrt(jnp.mean(product(share[None, :], jnp.square(values))))
    spread = jnp.where(spread > 0, spread, 1)
    values = values / spread

    # If no class is present, include all: the loss is then 0, not NaN.
    shown = present | ~present.any()

    start = LinearHead(jnp.zeros((features.shape[1], num_classes), dtype), jnp.zeros(num_classes, dtype))
    head = minimise(_loss, start, num_steps, values, class_of, share, shown, l2)
    slopes = head.weight / spread / unit
    bias = head.bias - product(mean, slopes)[0]
    return head_for_present(slopes, bias, present)


def _loss(
    head: LinearHead,
    values: Float[Array, "examples dim"],
    class_of: Integer[Array, " examples"],
    share: Float[Array, " examples"],
    shown: Bool[Array, " classes"],
    l2: Float[Array, ""],
) -> Float[Array, ""]:
    scores = jnp.where(shown[None, :], product(values, head.weight) + head.bias[None, :], -jnp.inf)
    chosen = jnp.take_along_axis(scores, class_of[:, None], axis=1)[:, 0]
    # Leave out examples of weight 0: their class may be excluded, with a score of −∞.
    each = jnp.where(share > 0, jax.nn.logsumexp(scores, axis=1) - chosen, 0)
    return jnp.sum(share * each) + 0.5 * l2 * jnp.sum(jnp.square(head.weight))
