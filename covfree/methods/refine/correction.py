"""The rounds that correct a method's head: the server's state, its broadcast, and the clients' answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.core.linalg import Factorisation, factorise
from covfree.core.products import divide_or_zero, product
from covfree.core.types import Head, LinearHead, Moments, Rows, Scalar
from covfree.estimators.moments import centred_means
from covfree.heads.columns import head_for_present
from covfree.heads.composed import CorrectedHead
from covfree.methods.refine.descent import Descent, begin_descent, descend, last_point
from covfree.methods.rounds import moments_of
from covfree.statistics.softmax import ScaledLosses, SoftmaxSums, scaled_losses, softmax_sums

# Candidates of β, the factor of the method's scores, in units of `Correction.unit`.
_SCALES = np.logspace(-1, 3, 17)
# The weight of a penalty on the candidate's square, which is added to the mean loss. It hardly matters if
# classes overlap. If the head separates the examples, it bounds β: without it a larger β would always have a
# smaller loss, until all probabilities are 0 or 1.
_CONFIDENCE = 1e-5


class Correction(NamedTuple):
    """The server's state while it corrects a method's head h₀ to β·h₀(x) + Wᵀ(x − μ_g) + a, see `corrected`.

    Attributes:
        moments: counts and sums of each class, from which the mean μ_g of all examples follows.
        start: h₀.
        scale: β, by which h₀'s scores are multiplied.
        unit: the unit in which candidates for β are given: 1 over the standard deviation of h₀'s scores at
            the class means.
        metric: the factorisation of a shrunk covariance of the features.
        descent: the state of the minimisation over [W; a].
    """

    moments: Moments
    start: Head
    scale: Float[Array, ""]
    unit: Float[Array, ""]
    metric: Factorisation
    descent: Descent


class Asked(NamedTuple):
    """A classifier that the server sends to clients; its scores are ``scale · head(x) + linear(x − centre)``.

    Attributes:
        centre: μ_g, the mean of all examples. It is subtracted, as products of large numbers lose digits.
        linear: the linear summand; a bias of −∞ marks an absent class. None for no summand.
        head: h₀, the head of the method that is corrected; None if h₀ is linear: ``linear`` then includes it.
        scale: β, the factor of h₀'s scores; None without ``head``.
    """

    centre: Float[Array, " dim"]
    linear: LinearHead | None
    head: Head | None = None
    scale: Float[Array, ""] | None = None

    def scores(self, features: jax.Array, centred: jax.Array) -> jax.Array:
        """Compute the classifier's scores for features; ``centred`` must be the features minus ``centre``."""
        if self.head is None or self.scale is None:
            assert self.linear is not None
            return self.linear(centred)
        own = self.scale * self.head(features)
        return own if self.linear is None else own + self.linear(centred)


class CorrectedNumbers(NamedTuple):
    """The hyperparameters of a corrected method, which ``vmap`` may sweep.

    Attributes:
        first: the ``params`` of the method whose head is corrected.
        penalty: λ, the weight of the penalty on the correction, see `covfree.corrected`.
    """

    first: Any
    penalty: Scalar


@dataclass(frozen=True)
class Plan:
    """The settings of `corrected` that are static under ``jit``, for the method whose head is corrected.

    Attributes:
        system: the method's function ``system``, which makes the regularised matrix; None if it has none.
        head: the method's function ``head``, which makes the head.
        covariance: ``(params, *state) -> Scatter``, which computes Σ̃, the method's shrunk covariance.
        own: ``system`` and ``head`` get the first ``own`` entries of the server's state, a tuple of totals;
            None for all. Later entries are only for ``covariance``.
        pairs: the largest number of past steps that L-BFGS keeps, see `Descent`.
    """

    system: Callable[..., Any] | None
    head: Callable[..., Any]
    covariance: Callable[..., Any]
    own: int | None
    pairs: int


def _own_head(first: Any, state: tuple[Any, ...], plan: Plan) -> tuple[Any, Head]:
    """Compute the method's own head, before any correction.

    ``first`` has the method's ``params``; ``state`` is the server's state after the method's last round.

    Returns:
        The regularised matrix with which the head is solved, or None if the method has none; and the head.
    """
    state = state[: plan.own]
    system = None if plan.system is None else plan.system(first, *state)
    return system, plan.head(first, system, *state)


def begin(first: Any, state: tuple[Any, ...], *, plan: Plan) -> tuple[Correction]:
    """Make the method's own head, and the state from which the server starts to correct it.

    ``first`` has the method's ``params``; ``state`` is the server's state after the method's last round.
    """
    system, start = _own_head(first, state, plan)
    moments = moments_of(state)
    # If the covariance is the head's own system, reuse it: the automatic shrinkage takes long to compile.
    metric = factorise(system if plan.covariance == plan.system else plan.covariance(first, *state))
    metric = _usable(metric)
    zero = jnp.zeros((moments.total.shape[1] + 1, moments.count.shape[0]), moments.total.dtype)
    one = jnp.ones((), zero.dtype)
    known = Correction(moments, start, one, one, metric, begin_descent(zero, plan.pairs))
    scores = _first_asked(known).scores(moments.mean, centred_means(moments))
    share = jnp.where(jnp.outer(moments.present, moments.present), moments.count[:, None], 0)
    share = jnp.where(scores > -jnp.inf, share.astype(scores.dtype), 0)
    scores = jnp.where(share > 0, scores, 0)
    own = scores - _mean(scores, share > 0)[:, None]
    spread = jnp.sqrt(_mean(jnp.square(own).ravel()[None], share.ravel()[None])[0])
    unit = 1 / jnp.where(spread > 0, spread, 1)
    return (known._replace(scale=jnp.ones_like(unit), unit=unit),)


def _usable(metric: Factorisation) -> Factorisation:
    """Replace numbers that are not finite in a factorisation, so that a run can continue.

    After a Cholesky breakdown (``deficient``) the pivot may be NaN. Then `solve` uses eigenvalues, and steps
    stay in the span of the eigenvectors whose eigenvalues are positive. If the matrix is not finite, only
    biases are corrected.
    """
    metric = metric._replace(smallest_pivot=jnp.nan_to_num(metric.smallest_pivot, nan=0))
    sound = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(metric)]).all()
    metric = jax.tree.map(lambda leaf: jnp.where(sound, leaf, jnp.zeros_like(leaf)), metric)
    return metric._replace(deficient=metric.deficient | ~sound)


def rank(metric: Factorisation) -> jax.Array:
    """Return the rank of the covariance whose factorisation is ``metric``."""
    kept = (metric.diagonal > 0).sum()
    return jnp.where(metric.deficient, kept, metric.scatter.dim)


def _mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Average each row with weights; 0 where all weights of a row are 0."""
    weight = weight.astype(values.dtype)
    whole = weight.sum(1)
    return (values * weight).sum(1) / jnp.where(whole > 0, whole, 1)


def _combined(known: Correction, point: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return weights, biases and present classes of the correction ``point``, plus β·h₀ if h₀ is linear.

    ``point`` has the weights W, and the biases a as the last row. Biases are for features minus their grand
    mean.
    """
    start, scale, moments = known.start, known.scale, known.moments
    weight, bias = point[:-1], point[-1]
    if not isinstance(start, LinearHead):
        return weight, bias, moments.present
    # Multiply by β after the product, so that ``own`` has the same rounding error for every β.
    own = start.bias + product(moments.grand_mean[None, :], start.weight)[0]
    present = moments.present if start.present is None else start.present > 0
    return weight + scale * start.weight, bias + scale * own, present


def _asked(known: Correction) -> Asked:
    """Make the classifier that clients receive: β·h₀ plus the correction whose loss is evaluated next."""
    weight, bias, present = _combined(known, known.descent.trial)
    # Subtract the mean bias: it changes no probability, and may be so large that the rest is rounded away.
    level = jnp.where(present, bias, 0).sum() / jnp.maximum(present.sum(), 1).astype(bias.dtype)
    linear = LinearHead(weight, jnp.where(present, bias - level, -jnp.inf))
    asked = Asked(known.moments.grand_mean, linear)
    return (
        asked if isinstance(known.start, LinearHead) else asked._replace(head=known.start, scale=known.scale)
    )


def _first_asked(known: Correction) -> Asked:
    """Return h₀ in the form in which clients receive heads, before β and a correction are chosen."""
    asked = _asked(known)
    return asked if asked.head is None else asked._replace(linear=None)


def ask_losses(numbers: CorrectedNumbers, state: tuple[Correction]) -> tuple[Asked, jax.Array]:
    """Return what clients receive in the round that chooses β, the inverse temperature of h₀.

    These are h₀, the method's own head, and a unit: clients try fixed multiples of this unit as β.
    """
    (known,) = state
    return _first_asked(known), known.unit


def losses_of(
    numbers: CorrectedNumbers, sent: tuple[Asked, jax.Array], rows: Rows, num_classes: int
) -> ScaledLosses:
    """Compute a client's loss for each candidate of β, the factor by which the scores h₀(x) are multiplied.

    The loss of the scores β·h₀(x) is summed over the client's examples, ``rows``. The client also uploads the
    number of examples. ``sent`` has h₀ and a unit; the candidates are fixed multiples of this unit.
    """
    asked, unit = sent
    scales = unit * jnp.asarray(_SCALES, unit.dtype)
    return scaled_losses(asked.scores, *_examples(rows), asked.centre, scales, num_classes)


def _examples(rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(rows.mean), jnp.asarray(rows.label), jnp.asarray(rows.count)


def take_losses(
    numbers: CorrectedNumbers, state: tuple[Correction], total: ScaledLosses
) -> tuple[Correction]:
    """Choose β, the factor of the scores of the method's head; return the server's state with it.

    ``total`` has the loss of all clients' examples for each candidate of β. Draw a parabola in log β through
    the candidate with the least loss and its two neighbours: β is at the minimum of the parabola.
    """
    (known,) = state
    scales = jnp.asarray(_SCALES, total.loss.dtype)
    came = total.number > 0
    losses = total.loss / jnp.where(came, total.number, 1) + _CONFIDENCE * jnp.square(scales)
    losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
    least = jnp.argmin(losses)
    place = jnp.clip(least, 1, losses.shape[0] - 2)
    before, here, after = (losses[place + shift] for shift in (-1, 0, 1))
    bend = before - 2 * here + after
    inside = (place == least) & jnp.isfinite(bend) & (bend > 0)
    shift = divide_or_zero(0.5 * (before - after), bend, inside)
    step = math.log(_SCALES[1] / _SCALES[0])
    found = known.unit * scales[least] * jnp.exp(step * shift)
    came &= jnp.isfinite(losses.min())
    value = losses.min()
    descent = known.descent._replace(value=jnp.where(came, value, known.descent.value))
    return (known._replace(scale=jnp.where(came, found, known.scale), descent=descent),)


def ask(numbers: CorrectedNumbers, state: tuple[Correction]) -> Asked:
    """Return the broadcast of an L-BFGS step: the classifier whose loss and gradient clients compute."""
    return _asked(state[0])


def answer(numbers: CorrectedNumbers, asked: Asked, rows: Rows, num_classes: int) -> SoftmaxSums:
    """Sum the losses (−log softmax) of a client's examples, and their gradients, for the classifier sent."""
    return softmax_sums(asked.scores, *_examples(rows), asked.centre, num_classes)


def take(numbers: CorrectedNumbers, state: tuple[Correction], total: SoftmaxSums) -> tuple[Correction]:
    """Take an L-BFGS step with ``total``, the clients' summed losses and gradients.

    If no client answered, return the same state.
    """
    (known,) = state
    came = total.number > 0
    number = jnp.where(came, total.number, 1)
    trial = known.descent.trial
    pulled = known.metric.scatter.times(trial[:-1]) * jnp.asarray(numbers.penalty, trial.dtype)
    value = total.loss / number + 0.5 * jnp.sum(pulled * trial[:-1])
    slope = total.slope / number + jnp.concatenate([pulled, jnp.zeros_like(trial[-1:])])
    new = descend(known.descent, value, slope, known.metric)
    return (known._replace(descent=jax.tree.map(lambda a, b: jnp.where(came, a, b), new, known.descent)),)


def finish(numbers: CorrectedNumbers, system: None, *state: Any, plan: Plan) -> Head:
    """Make the head from the server's state: β·h₀ plus the linear correction found so far.

    If the state has no `Correction` yet, make the method's own head h₀.
    """
    known = state[0]
    if not isinstance(known, Correction):
        return _own_head(numbers.first, state, plan)[1]
    weight, bias, present = _combined(known, last_point(known.descent))
    bias = bias - product(known.moments.grand_mean[None, :], weight)[0]
    linear = head_for_present(weight, bias, present)
    return linear if isinstance(known.start, LinearHead) else CorrectedHead(known.start, linear, known.scale)
