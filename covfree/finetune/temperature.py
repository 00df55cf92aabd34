"""Train a model whose scores are divided by a fixed number, the softmax temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from covfree.core.checks import check_above_zero
from covfree.finetune.model import Model, check_model
from covfree.heads.temperature import with_temperature
from covfree.methods.rounds import bound


def at_temperature(model: Model, temperature: float) -> Model:
    """Return the model with its scores divided by T, in training and in the result; T is not trained.

    `covfree.with_temperature` instead divides the head's weights W once, so that W/T is trained. The first
    predictions are the same, but the steps are not: gradient descent on W at rate η with the scores Wx/T
    equals descent on W/T at rate η/T². So with T = 0.1 the head moves 100 times as fast here.

    Args:
        model: a model whose head has not been divided by T.
        temperature: T above 0, a number.

    Raises:
        TypeError: if ``model`` is not a `Model`, or ``temperature`` is no number.
        ValueError: if ``temperature`` is not finite and above 0.

    Source: Fed3R, App. C and the authors' code, which use T = 0.1 in this way.
    """
    number = float(check_above_zero("temperature", temperature))
    scores = bound(_divided, scores=check_model(model).scores, temperature=number)
    finish = model.finish and bound(_finished, finish=model.finish, temperature=number)
    return replace(model, scores=scores, finish=finish)


def _divided(trained: Any, frozen: Any, features: Any, *, scores: Any, temperature: float) -> Any:
    return scores(trained, frozen, features) / temperature


def _finished(trained: Any, frozen: Any, statistics: Any, *, finish: Any, temperature: float) -> Any:
    return with_temperature(finish(trained, frozen, statistics), temperature)
