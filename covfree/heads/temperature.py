"""Choose the softmax temperature of a head by its loss on examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from covfree.core.checks import check_above_zero
from covfree.core.compiling import jit
from covfree.core.products import divide_or_zero
from covfree.core.types import AnyArray, Head, LinearHead, Scalar, accumulation_dtype
from covfree.heads.composed import CorrectedHead, MappedHead, taken
from covfree.statistics.groups import as_examples

# β = 1/T is sought between 1/(_RANGE·s) and _RANGE/s, with s the spread of the scores. At the lower end all
# probabilities are nearly equal; at the upper end a score that is s/10 lower than another has a probability
# exp(−100) times as high.
_RANGE = 1e3
# The largest number of steps. The search usually takes five to ten. Bisection alone would take 30 to narrow
# log β from an interval of length log(_RANGE²) to one of √eps, for float64's eps.
_STEPS = 100


def calibrate_temperature(
    head: Head,
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
) -> Float[Array, ""]:
    """Find the T > 0 that minimises the mean cross-entropy of softmax(head(x)/T), e.g. before fine-tuning.

    The loss is convex in β = 1/T. Newton's method finds the zero of its derivative within a bracket. If a
    step would leave the bracket, or exceeds half the previous step, the bracket is halved in log β.

    The minimum may lie at an end: at β = ∞ if the scores put every example's class first, at β = 0 if they
    are no better than chance. T is therefore kept within a factor of 1,000 of the spread of the scores
    (their standard deviation over classes, root mean square over examples). Without examples, or if the
    scores of each example are equal, every T is equally good and T = 1.

    Args:
        head: any function from features to scores, e.g. a `LinearHead`.
        features: features of the examples; Fed3R takes the training examples.
        labels: classes of the examples; a label outside [0, classes) is padding. So is a label whose score
            is −∞, as its loss is infinite at every temperature.

    Returns:
        T. Differentiable in the leaves of the head and in the features, by the implicit function theorem.
        Apply it with `with_temperature`.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if labels are no integers.

    Source: Fed3R (Fanì et al. 2024), which calibrates on the training loss before fine-tuning from its head;
    Guo et al. (2017), who calibrate on held-out examples.

    >>> import jax.numpy as jnp
    >>> head = LinearHead(jnp.array([[1.0, 0.0]]), jnp.zeros(2))
    >>> features, labels = jnp.ones((4, 1)), jnp.array([0, 0, 0, 1])  # P(0) = ¾ if 1/T = log 3
    >>> calibrate_temperature(head, features, labels).round(4)
    Array(0.9102, dtype=float32)
    """
    gap, kept = _gaps(head, features, labels)
    frozen = jax.lax.stop_gradient(gap)
    _, curvature = _slopes(frozen, kept, jnp.zeros((), gap.dtype))
    known = curvature != 0
    unit = jnp.sqrt(jnp.where(known, curvature / jnp.maximum(kept.sum(), 1).astype(gap.dtype), 1))
    low, high = 1 / (unit * _RANGE), _RANGE / unit
    beta = _search(frozen, kept, low, high)
    # β was found without derivatives. One more Newton step changes it only by rounding, but gives it the
    # derivative −d(slope)/curvature of the implicit function theorem.
    slope, curvature = _slopes(gap, kept, beta)
    curvature = jax.lax.stop_gradient(curvature)
    inside = (beta > low) & (beta < high) & (curvature > 0)
    step = divide_or_zero(slope, curvature, inside)
    return jnp.where(known, 1 / (beta - step), 1)


Scaled = TypeVar("Scaled", LinearHead, MappedHead, CorrectedHead)


def with_temperature(head: Scaled, temperature: Scalar) -> Scaled:
    """Divide a head's scores by T, which makes the softmax softer or harder and keeps the predictions.

    Args:
        head: a `LinearHead` or `CorrectedHead`, perhaps after a feature map.
        temperature: T above 0; may be traced.

    Raises:
        TypeError: if the head has another type, or the temperature is no number.
        ValueError: if the temperature is not finite and above 0.

    >>> import jax.numpy as jnp
    >>> with_temperature(LinearHead(jnp.ones((1, 1)), jnp.ones(1)), 0.5).weight
    Array([[2.]], dtype=float32)
    """
    head = taken(head)
    if isinstance(head, MappedHead):
        return replace(head, head=with_temperature(cast(LinearHead, head.head), temperature))
    if isinstance(head, CorrectedHead):
        linear = with_temperature(head.linear, temperature)
        return replace(head, scale=head.scale / temperature, linear=linear)
    if not isinstance(head, LinearHead):
        raise TypeError(f"head: expected a linear or corrected head, got {type(head).__name__}")
    check_above_zero("temperature", temperature)
    temperature = jnp.asarray(temperature, head.weight.dtype)
    return replace(head, weight=head.weight / temperature, bias=head.bias / temperature)


def _gaps(
    head: Head, features: AnyArray, labels: AnyArray
) -> tuple[Float[Array, "examples classes"], Bool[Array, " examples"]]:
    """Return s_ic − s_iy, and a mask of the examples that are not padding.

    s_ic is the score of class c for example i, and y the example's label. The difference is 0 in padding, and
    −∞ where s_ic is −∞.
    """
    features, labels = as_examples(features, labels=labels)
    classes = jax.eval_shape(lambda x: head(x), features).shape[1]
    inside = (labels >= 0) & (labels < classes)
    # Set the features of padding to 0: NaN in them would make derivatives NaN.
    scores = head(jnp.where(inside[:, None], features, 0))
    scores = scores.astype(accumulation_dtype(scores))
    own = jnp.take_along_axis(scores, jnp.where(inside, labels, 0)[:, None], axis=1)
    kept = inside & (own[:, 0] != -jnp.inf)
    # Not `isfinite`, so that a NaN score of a counted example makes the result NaN.
    possible = scores != -jnp.inf
    gap = jnp.where(possible, scores, 0) - jnp.where(kept[:, None], own, 0)
    return jnp.where(kept[:, None], jnp.where(possible, gap, -jnp.inf), 0), kept


def _slopes(
    gap: Float[Array, "examples classes"], kept: Bool[Array, " examples"], beta: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the first and second derivative by β of the cross-entropy Σ_i log Σ_c exp(β·gap_ic)."""
    possible = gap != -jnp.inf
    # Mask first, as β·(−∞) is NaN at β = 0.
    finite = jnp.where(possible, gap, 0)
    exponent = jnp.where(possible, beta * finite, -jnp.inf)
    loss = jax.nn.logsumexp(exponent, axis=1)
    probability = jnp.exp(exponent - loss[:, None])
    slope = jnp.sum(probability * finite, axis=1)
    curvature = jnp.sum(probability * jnp.square(finite - slope[:, None]), axis=1)
    return jnp.where(kept, slope, 0).sum(), jnp.where(kept, curvature, 0).sum()


# Compile this function: a call of `while_loop` outside ``jit`` would compile its closures each time.
@jit
def _search(
    gap: Float[Array, "examples classes"],
    kept: Bool[Array, " examples"],
    low: Float[Array, ""],
    high: Float[Array, ""],
) -> Float[Array, ""]:
    """Find the β in [low, high] for which β times the scores have the smallest softmax loss.

    There the loss's slope is 0, or β is an end of the interval. `_gaps` returns ``gap``, the scores minus the
    score of the example's label, and ``kept``, a mask of the examples that count.
    """
    precision = jnp.sqrt(jnp.finfo(gap.dtype).eps)

    def unfinished(state: Any) -> Any:
        step, _, _, beta, previous = state
        return (step < _STEPS) & (jnp.abs(beta - previous) > precision * beta)

    def improve(state: Any) -> Any:
        step, low, high, beta, previous = state
        slope, curvature = _slopes(gap, kept, beta)
        # A positive slope says that β is past the minimum. A slope of 0 does not: at a large β it may be
        # underflow.
        passed = slope > 0
        low, high = jnp.where(passed, low, beta), jnp.where(passed, beta, high)
        newton = beta - slope / jnp.where(curvature > 0, curvature, 1)
        # Bisect if Newton's step is over half the last, as this converges too slowly (for classes that are
        # nearly separable), or if the curvature is 0, as such a step would end the search.
        good = (newton > low) & (newton < high) & (curvature > 0)
        good &= 2 * jnp.abs(newton - beta) < jnp.abs(beta - previous)
        return step + 1, low, high, jnp.where(good, newton, jnp.sqrt(low * high)), beta

    ends = [_slopes(gap, kept, end)[0] for end in (low, high)]
    state = (0, low, high, jnp.sqrt(low * high), high)
    beta = jax.lax.while_loop(unfinished, improve, state)[3]
    # Unless the slope is below 0 at ``low`` and above 0 at ``high``, the minimum is not between them: return
    # an end. A slope of 0 may be underflow.
    return jnp.where(ends[0] >= 0, low, jnp.where(ends[1] <= 0, high, beta))
