"""The yardstick of a federation: logistic regression on all clients' examples in one place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from covfree.core.optional import optional
from covfree.core.types import AnyArray, Head, LinearHead
from covfree.heads.columns import head_for_present
from covfree.methods import Method, keep_examples

TITLE = "All data in one place (logistic regression)"
# λ of the mean loss plus λ/2 times the squared weights, for features of which the mean variance is 1.
PENALTIES = (0.1, 0.01, 0.001, 0.0001, 0.00001)
_FOLDS, _STEPS, _TOLERANCE = 3, 100, 1e-3


def _no_head(params: Any, system: Any, *state: Any) -> Head:
    raise TypeError("expected pooled_head, as the examples are in one place")


# Stands for `pooled_head` among the methods of a study.
POOLED: Method[Any] = Method(None, "pooled", keep_examples(), (), None, _no_head)


def pooled_head(
    features: AnyArray,
    labels: AnyArray,
    num_classes: int,
    *,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
) -> tuple[LinearHead, float]:
    """Train logistic regression on examples in one place, by scikit-learn.

    Features are centred, and divided by the root of their mean variance. Of several penalties, the one with
    the best accuracy in three-fold cross-validation is taken, the first of equals; the first if there are too
    few examples for it.

    Returns:
        The head, and its λ.
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
    present, (most, second) = counts > 0, [*np.sort(counts)[::-1], 0][:2]
    weight, bias = np.zeros((x.shape[1], num_classes)), np.zeros(num_classes)
    penalty = penalties[0]
    with warnings.catch_warnings():
        # A class with fewer examples than folds, and steps that end before the tolerance, are no errors.
        warnings.simplefilter("ignore")
        # Without so many examples there are no folds, or one that leaves a single class.
        if len(penalties) > 1 and most >= _FOLDS and second > 1:
            folds = split(_FOLDS, shuffle=True, random_state=seed).split(x, y)
            hits = sum(
                np.array(
                    [(m.predict(x[held]) == y[held]).sum() for m in _trained(x[rest], y[rest], penalties)]
                )
                for rest, held in folds
            )
            penalty = penalties[int(np.argmax(hits))]
        if present.sum() > 1:
            (model,) = _trained(x, y, [penalty])
            own, start = model.coef_, model.intercept_
            # Of two classes there is one score, that of the second.
            own, start = (
                (own, start) if len(own) > 1 else (np.stack([-own[0], own[0]]) / 2, start * [-0.5, 0.5])
            )
            weight[:, model.classes_] = own.T / scale
            bias[model.classes_] = start - mean.astype(float) @ weight[:, model.classes_]
    own_weight, own_bias = jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)
    return head_for_present(own_weight, own_bias, jnp.asarray(present)), penalty


def _trained(x: np.ndarray, y: np.ndarray, penalties: Sequence[float]) -> Iterator[Any]:
    """Yield a model for each penalty; it starts from the solution before, and is valid until the next."""
    make = optional("sklearn.linear_model", "cli").LogisticRegression
    model = make(warm_start=True, max_iter=_STEPS, tol=_TOLERANCE)
    for each in penalties:
        yield model.set_params(C=1 / (each * len(y))).fit(x, y)
