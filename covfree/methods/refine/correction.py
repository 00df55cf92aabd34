"""The rounds of a correction: what the server keeps, what it asks, and what clients answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.core.linalg import Factorisation, factorise
from covfree.core.products import product
from covfree.core.types import Head, LinearHead, Moments, Rows, Scalar
from covfree.heads.corrected import CorrectedHead
from covfree.heads.mapped import MappedHead
from covfree.methods.refine.descent import Descent, begin_descent, descend, last_point
from covfree.statistics.softmax import SoftmaxSums, scaled_losses, softmax_sums

# Inverse temperatures that are tried, as multiples of 1/(deviation of the scores over classes).
_SCALES = np.logspace(-1, 3, 17)
# Times the square of such a multiple, added to the mean loss: too little to matter where classes overlap. If
# the head separates the examples, the loss falls for ever, and all probabilities would become 0 or 1.
_CONFIDENCE = 1e-5


class Correction(NamedTuple):
    """The server's state from the first head on.

    Attributes:
        moments: counts and sums of each class, of mapped features if the head maps them.
        start: h₀, the head of the method.
        scale: β, its inverse temperature.
        unit: 1/(deviation of the scores of h₀ over classes), about which β is sought.
        metric: Σ̃, factorised.
        descent: the minimisation over [W; a], with the linear term Wᵀ(x − μ_g) + a.
    """

    moments: Moments
    start: Head
    scale: Float[Array, ""]
    unit: Float[Array, ""]
    metric: Factorisation
    descent: Descent


class Asked(NamedTuple):
    """What clients are sent in a round of gradients.

    Attributes:
        head: h₀; None if it is linear, and so a part of ``linear``.
        scale: β.
        linear: the linear part of the scores, of centred features.
        centre: μ_g.
        feature_map: the map of features that is a part of the method's head; None if there is none.
    """

    head: Head | None
    scale: Float[Array, ""]
    linear: LinearHead
    centre: Float[Array, " dim"]
    feature_map: Head | None


class Numbers(NamedTuple):
    """Numbers that may be swept: those of the method, and λ."""

    first: Any
    penalty: Scalar


@dataclass(frozen=True)
class Plan:
    """The static parts of a correction.

    Attributes:
        system: the method's ``system``.
        head: the method's ``head``.
        covariance: ``(params, *state) -> Scatter``, the matrix in whose metric the correction is made.
        own: how many totals the method's own rounds leave; those after them are for ``covariance``.
        pairs: pairs of differences that are kept.
    """

    system: Callable[..., Any] | None
    head: Callable[..., Any]
    covariance: Callable[..., Any]
    own: int | None
    pairs: int


def _own_head(first: Any, state: tuple[Any, ...], plan: Plan) -> tuple[Any, Head]:
    """Return the system and the head of the method's state."""
    state = state[: plan.own]
    system = None if plan.system is None else plan.system(first, *state)
    return system, plan.head(first, system, *state)


def begin(first: Any, state: tuple[Any, ...], *, plan: Plan) -> tuple[Correction]:
    """Start from the head of the method's state."""
    system, start = _own_head(first, state, plan)
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Moments))
    moments = next(node for node in nodes if isinstance(node, Moments))
    # The automatic shrinkage takes long to compile, so it is not to be there twice.
    metric = factorise(system if plan.covariance == plan.system else plan.covariance(first, *state))
    # The pivot is NaN if Cholesky broke down, and a run would reject the state as not finite.
    metric = metric._replace(smallest_pivot=jnp.zeros_like(metric.smallest_pivot))
    scores = _inner(start)(moments.mean)
    share = jnp.where(jnp.outer(moments.present, moments.present), moments.count[:, None], 0)
    share = jnp.where(scores > -jnp.inf, share.astype(scores.dtype), 0)
    scores = jnp.where(share > 0, scores, 0)
    own = scores - _mean(scores, share > 0)[:, None]
    spread = jnp.sqrt(_mean(jnp.square(own).ravel()[None], share.ravel()[None])[0])
    unit = 1 / jnp.where(spread > 0, spread, 1)
    dim, num_classes = moments.total.shape[1], moments.count.shape[0]
    descent = begin_descent(jnp.zeros((dim + 1, num_classes), moments.total.dtype), plan.pairs)
    return (Correction(moments, start, jnp.ones_like(unit), unit, metric, descent),)


def _mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Average each row by weights; 0 if they are all 0."""
    weight = weight.astype(values.dtype)
    whole = weight.sum(1)
    return (values * weight).sum(1) / jnp.where(whole > 0, whole, 1)


def _inner(head: Head) -> Head:
    return head.head if isinstance(head, MappedHead) else head


def ask_losses(numbers: Numbers, state: tuple[Correction]) -> tuple[Head, jax.Array]:
    """Send the start, and the unit of β."""
    return state[0].start, state[0].unit


def losses_of(numbers: Numbers, sent: tuple[Head, jax.Array], rows: Rows, num_classes: int) -> jax.Array:
    """Answer with the losses of the start at all candidates for β."""
    start, unit = sent
    scales = unit * jnp.asarray(_SCALES, unit.dtype)
    return scaled_losses(start, *_examples(rows), scales, num_classes)


def _examples(rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(rows.mean), jnp.asarray(rows.label), jnp.asarray(rows.count)


def take_losses(numbers: Numbers, state: tuple[Correction], losses: jax.Array) -> tuple[Correction]:
    """Choose β: the minimum of the parabola in log β through the least loss and its neighbours."""
    (known,) = state
    scales = jnp.asarray(_SCALES, losses.dtype)
    came = losses.max() > 0
    losses = losses / jnp.maximum(known.moments.num_examples, 1) + _CONFIDENCE * jnp.square(scales)
    losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
    least = jnp.argmin(losses)
    place = jnp.clip(least, 1, losses.shape[0] - 2)
    before, here, after = (losses[place + shift] for shift in (-1, 0, 1))
    bend = before - 2 * here + after
    inside = (place == least) & jnp.isfinite(bend) & (bend > 0)
    shift = jnp.where(inside, 0.5 * (before - after) / jnp.where(inside, bend, 1), 0)
    step = math.log(_SCALES[1] / _SCALES[0])
    found = known.unit * scales[least] * jnp.exp(step * shift)
    came &= jnp.isfinite(losses.min())
    value = losses.min()
    descent = known.descent._replace(value=jnp.where(came, value, known.descent.value))
    return (known._replace(scale=jnp.where(came, found, known.scale), descent=descent),)


def ask(numbers: Numbers, state: tuple[Correction]) -> Asked:
    """Send the classifier at which the loss is to be evaluated."""
    return _scorer(state[0], state[0].descent.trial)


def _scorer(known: Correction, point: jax.Array) -> Asked:
    """Make the classifier of a point."""
    inner, centre = _inner(known.start), known.moments.grand_mean
    weight, bias = point[:-1], point[-1]
    present = known.moments.present.astype(weight.dtype)
    if isinstance(inner, LinearHead):
        weight = weight + known.scale * inner.weight
        bias = bias + known.scale * (inner.bias + product(centre[None, :], inner.weight)[0])
        present = present if inner.present is None else inner.present
        inner = None
    mapped = known.start.feature_map if isinstance(known.start, MappedHead) else None
    return Asked(inner, known.scale, LinearHead(weight, bias, present), centre, mapped)


def answer(numbers: Numbers, asked: Asked, rows: Rows, num_classes: int) -> SoftmaxSums:
    """Answer with the sums of the losses and of their gradients."""

    def scores(features: jax.Array, centred: jax.Array) -> jax.Array:
        own = asked.linear(centred)
        return own if asked.head is None else own + asked.scale * asked.head(features)

    if asked.feature_map is not None:
        rows = replace(rows, mean=asked.feature_map(rows.mean))
    return softmax_sums(scores, *_examples(rows), asked.centre, num_classes)


def take(numbers: Numbers, state: tuple[Correction], total: SoftmaxSums) -> tuple[Correction]:
    """Take one step; if nobody answered, the round changes nothing."""
    (known,) = state
    came = total.number > 0
    number = jnp.where(came, total.number, 1)
    trial = known.descent.trial
    pulled = known.metric.scatter.times(trial[:-1]) * jnp.asarray(numbers.penalty, trial.dtype)
    value = total.loss / number + 0.5 * jnp.sum(pulled * trial[:-1])
    slope = total.slope / number + jnp.concatenate([pulled, jnp.zeros_like(trial[-1:])])
    new = descend(known.descent, value, slope, known.metric)
    return (known._replace(descent=jax.tree.map(lambda a, b: jnp.where(came, a, b), new, known.descent)),)


def finish(numbers: Numbers, system: None, *state: Any, plan: Plan) -> Head:
    """Make the head of a state: the method's own before the correction starts."""
    known = state[0]
    if not isinstance(known, Correction):
        return _own_head(numbers.first, state, plan)[1]
    inner, point = _inner(known.start), last_point(known.descent)
    asked = _scorer(known, point)
    linear = asked.linear if isinstance(inner, LinearHead) else LinearHead(point[:-1], point[-1])
    linear = replace(linear, bias=linear.bias - product(asked.centre[None, :], linear.weight)[0])
    found = linear if isinstance(inner, LinearHead) else CorrectedHead(inner, linear, known.scale)
    return found if asked.feature_map is None else MappedHead(asked.feature_map, found)
