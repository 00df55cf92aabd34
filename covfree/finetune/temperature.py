"""A fixed temperature of the softmax that a model is trained under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from covfree.core.checks import check_above_zero
from covfree.finetune.model import Model, check_model
from covfree.heads.temperature import with_temperature


def at_temperature(model: Model, temperature: float) -> Model:
    """Divide a model's scores by T in training and in the result: a scale that is not trained.

    `covfree.with_temperature` divides the head's parameters once instead, so that what is trained is W/T. The
    first predictions are the same, the steps are not: gradient descent of W at rate η under the loss of
    Wx/T is descent of W/T at rate η/T². So with T = 0.1 the head moves 100 times as fast here.

    Args:
        model: a model whose head is not divided by T yet.
        temperature: T above 0, a number.

    Raises:
        TypeError: if ``model`` is not a `Model`, or ``temperature`` is no number.
        ValueError: if ``temperature`` is not finite and above 0.

    Source: Fed3R, App. C and the authors' code, which have T = 0.1 so.
    """
    number = float(check_above_zero("temperature", temperature))
    finish = check_model(model).finish
    finish = None if finish is None else _Finished(finish, number)
    return replace(model, scores=_Divided(model.scores, number), finish=finish)


# Compared by value, so that another model of the same kind compiles nothing anew.
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
