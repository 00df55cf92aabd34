"""A reference to compare methods with: logistic regression on all clients' examples in one place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.optimize

from covfree.core.optional import optional
from covfree.core.types import AnyArray, Head, LinearHead
from covfree.heads.columns import head_for_present
from covfree.methods import Method, keep_examples

TITLE = "All data in one place (logistic regression)"
# Values of λ in the objective: mean loss + λ/2 · ‖weights‖², for features with a mean variance of 1.
PENALTIES = (0.1, 0.01, 0.001, 0.0001, 0.00001)
_FOLDS, _STEPS = 3, 500
# Training ends when a step lowers the objective f by less than this times max(f, 1); accuracies no longer
# change then.
_TOLERANCE = 1e-6
# The loss's curvature, p(1 − p) for a class of probability p, is estimated as this / number of classes.
_CURVATURE = 0.1


def _no_head(params: Any, system: Any, *state: Any) -> Head:
    raise TypeError("expected pooled_head, as the examples are in one place")


# Represents `pooled_head` among the methods of a study.
POOLED: Method[Any] = Method(None, "pooled", keep_examples(), (), None, _no_head)


def pooled_head(
    features: AnyArray,
    labels: AnyArray,
    num_classes: int,
    *,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
) -> tuple[LinearHead, float]:
    """Train logistic regression on examples in one place, to its optimum.

    Features are centred, and divided by the root of their mean variance. The objective is the mean loss plus
    λ/2 ‖weights‖². λ is the one of ``penalties`` with the best accuracy in three-fold cross-validation, the
    first of equally good ones. With too few examples for that, it is the first of ``penalties``.

    Returns:
        The head, and the λ that was used.
    """
    split = optional("sklearn.model_selection", "cli").StratifiedKFold
    kept = np.asarray(labels) >= 0
    x, y = np.asarray(features)[kept].astype(np.float32), np.asarray(labels)[kept]
    if not len(y):
        raise ValueError("labels: expected at least one example, got none")
    mean = x.mean(0)
    x -= mean
    scale = float(np.sqrt(np.square(x).mean())) or 1.0
    x /= scale
    counts = np.bincount(y, minlength=num_classes)
    most, second = [*np.sort(counts)[::-1], 0][:2]
    weight, bias = np.zeros((x.shape[1], num_classes)), np.zeros(num_classes)
    penalty = penalties[0]
    # Three folds need a class of three examples, and another of two, so that each fold trains on two classes.
    if len(penalties) > 1 and most >= _FOLDS and second > 1:
        with warnings.catch_warnings():
            # Silence the warning about a class with fewer examples than folds.
            warnings.simplefilter("ignore")
            folds = list(split(_FOLDS, shuffle=True, random_state=seed).split(x, y))
        hits = np.zeros(len(penalties))
        for rest, held in folds:
            for place, (w, a) in enumerate(_trained(x[rest], y[rest], num_classes, penalties)):
                scores = np.where(np.bincount(y[rest], minlength=num_classes) > 0, x[held] @ w + a, -np.inf)
                hits[place] += (scores.argmax(1) == y[held]).sum()
        penalty = penalties[int(np.argmax(hits))]
    ((weight, bias),) = _trained(x, y, num_classes, [penalty])
    weight /= scale
    bias -= mean.astype(float) @ weight
    own_weight, own_bias = jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)
    return head_for_present(own_weight, own_bias, jnp.asarray(counts > 0)), penalty


def _trained(
    x: np.ndarray, y: np.ndarray, num_classes: int, penalties: Sequence[float]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Train logistic regression with each L2 penalty in turn; yield its weights [dim, classes] and biases.

    Absent classes have weights and bias 0. Each training starts from the solution of the one before.

    L-BFGS works in coordinates along the features' principal axes, scaled such that the curvature is about 1.
    Without this scaling, hundreds of steps do not reach the optimum, as the variances along the axes differ
    by many orders of magnitude.
    """
    seen, y = np.unique(y, return_inverse=True)
    (size, dim), classes = x.shape, len(seen)
    variance, axes = np.linalg.eigh(x.T @ x / np.float32(size))
    along = x @ axes
    target = np.eye(classes, dtype=np.float32)[y]
    point = np.zeros((dim + 1, classes))
    for penalty in penalties:
        curvature = _CURVATURE / classes * np.append(np.maximum(variance, 0), 1)
        curvature[:-1] += penalty
        unit = 1 / np.sqrt(curvature)[:, None]

        def objective(
            flat: np.ndarray, unit: np.ndarray = unit, penalty: float = penalty
        ) -> tuple[float, np.ndarray]:
            point = unit * flat.reshape(dim + 1, classes)
            scores = along @ point[:-1].astype(np.float32) + point[-1].astype(np.float32)
            scores -= scores.max(1, keepdims=True)
            powers = np.exp(scores)
            whole = powers.sum(1, keepdims=True)
            losses = np.log(whole[:, 0]) - scores[np.arange(size), y]
            residual = (powers / whole - target) / np.float32(size)
            slope = np.concatenate([along.T @ residual + penalty * point[:-1], residual.sum(0)[None]])
            value = losses.mean(dtype=float) + penalty / 2 * np.square(point[:-1]).sum()
            return value, (unit * slope).ravel()

        options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": _TOLERANCE, "gtol": 0}
        start = (point / unit).ravel()
        found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        point = unit * found.x.reshape(dim + 1, classes)
        weight, bias = np.zeros((dim, num_classes)), np.zeros(num_classes)
        weight[:, seen], bias[seen] = axes @ point[:-1], point[-1]
        yield weight, bias
