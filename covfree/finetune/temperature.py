"""Train a model whose scores are divided by a fixed number, the softmax temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from covfree.core.checks import check_above_zero
from covfree.finetune.model import Model, check_model
from covfree.heads.temperature import with_temperature


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
    finish = check_model(model).finish
    finish = None if finish is None else _Finished(finish, number)
    return replace(model, scores=_Divided(model.scores, number), finish=finish)


# Instances with equal fields are equal, so another model of the same kind needs no compilation.
@dataclass(frozen=True)
class _Divided:
    scores: Callable[..., Any]
    temperature: float

    def __call__(self, trained: Any, frozen: Any, features: Any) -> Any:
        return self.scores(trained, frozen, features) / self.temperature


@dataclass(frozen=True)
class _Finished:
    finish: Callable[..., Any]
    temperature: float

    def __call__(self, trained: Any, frozen: Any, statistics: Any) -> Any:
        return with_temperature(self.finish(trained, frozen, statistics), self.temperature)
