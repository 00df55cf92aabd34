"""Correct a closed-form head by softmax regression, in a few rounds in which clients upload sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

from covfree.core.checks import check_above_zero, check_integer
from covfree.core.types import Head, LinearHead, Rows, Scalar
from covfree.methods.method import Method, check_method
from covfree.methods.refine.correction import (
    CorrectedNumbers,
    Correction,
    Plan,
    answer,
    ask,
    ask_losses,
    begin,
    finish,
    losses_of,
    rank,
    take,
    take_losses,
)
from covfree.methods.refine.metric import metric_of
from covfree.methods.rounds import Round, bound, of_first

# The largest number of pairs (s, y) that L-BFGS keeps: differences of points and of gradients.
_PAIRS = 12


def _end_of_own(
    first: Any, state: tuple[Any, ...], total: Any, *, each: Round, plan: Plan
) -> tuple[Correction]:
    """Finish ``each``, the last of the method's own rounds, and return the first state of the correction.

    ``state`` is the server's state before this round, and ``total`` the sum of the round's uploads. ``first``
    has the method's ``params``; ``plan`` has the correction's settings.
    """
    state = (*state, total) if each.server is None else each.server(each.own(first), state, total)
    return begin(first, state, plan=plan)


def _last_terms(first: Any, sent: Any, rows: Rows, num_classes: int, *, each: Round) -> Any:
    return each.client(each.own(first), sent, rows, num_classes)


def _last(each: Round, plan: Plan) -> Round:
    """Extend ``each``, the method's own last round: at its end, the server also starts the correction.

    Clients compute the same as in ``each``.
    """
    client = each.client if each.numbers is None else bound(_last_terms, each=each)
    server, numbers = bound(_end_of_own, each=each, plan=plan), bound(of_first, inner=None)
    return replace(each, client=client, server=server, numbers=numbers, head=True)


def _merged(
    numbers: CorrectedNumbers, message: Any, num_classes: int, *, merge: Any, plan: Plan
) -> tuple[Correction]:
    return begin(numbers.first, merge(numbers.first, message, num_classes), plan=plan)


def _message(numbers: CorrectedNumbers, *examples: Any, message: Any) -> Any:
    return message(numbers.first, *examples)


def _report(numbers: CorrectedNumbers, state: Any, *, first: Any) -> dict[str, Any]:
    """Return the numbers that a round adds to the history of a `corrected` method.

    During the correction these are ``loss``, the lowest so far, and ``rank``, the rank of the shrunk
    covariance. Before it, ``first``, the original method's ``report``, makes them; there are none if it is
    None.
    """
    if isinstance(state[0], Correction):
        return {"loss": state[0].descent.value, "rank": rank(state[0].metric)}
    return {} if first is None else first(numbers.first, state)


def _flops(
    numbers: CorrectedNumbers, num_examples: int, dim: int, num_classes: int, *, first: Any, rounds: int
) -> int:
    own = 0 if first is None else first(numbers.first, num_examples, dim, num_classes)
    return own + 2 * rounds * num_examples * dim * num_classes


@overload
def corrected(
    method: Method[LinearHead], rounds: int = 4, *, penalty: Scalar = 0.003
) -> Method[LinearHead]: ...
@overload
def corrected(method: Method[Head], rounds: int = 4, *, penalty: Scalar = 0.003) -> Method[Any]: ...
def corrected(method: Method[Any], rounds: int = 4, *, penalty: Scalar = 0.003) -> Method[Any]:
    """Correct the head of a method by softmax regression, in a few rounds of sums over clients' examples.

    The scores of the method's head h₀ are kept, and a linear correction (W, a) is added to them. For examples
    x_i of class y_i and mean μ_g, the correction minimises the penalised cross-entropy CE

        mean_i CE(β·h₀(x_i) + Wᵀ(x_i − μ_g) + a, y_i) + (λ/2)·tr(WᵀΣ̃W),

    by L-BFGS at the server in coordinates in which Σ̃, the method's shrunk covariance, is the identity. The
    penalty pulls the head towards h₀ and not towards 0, so few examples cannot harm it much. The coordinates
    make L-BFGS converge in few rounds.

    In a first round each client uploads its number of examples and its losses for 17 values of β, the inverse
    temperature of h₀; the server chooses the best β. In each of the following ``rounds`` rounds, each client
    uploads its loss, its gradient and its number of examples: C·(d + 1) + 2 numbers for C classes and d
    features, which add up over clients. The loss after a step is known only in the next round, together with
    the gradient there. A step that does not lower the loss is undone and shortened, which costs a round. The
    first two steps may overshoot, so they enter the head only once their loss is known; later steps enter it
    at once.

    Args:
        method: a method whose clients send class means, or one Gram matrix each: `fedcof` and similar
            methods with any head, `refined` versions of them, `fedncm`, `fed3r`, `qda` from means; with or
            without a feature map.
        rounds: m, evaluations of the gradient, at least 2.
        penalty: λ, above 0. Values from 0.001 to 0.01 gave similar results on all data sets that were tried.

    Returns:
        The method with m + 1 more rounds over clients' examples. If h₀ is linear, so is the head; else it is
        a `CorrectedHead`. A softmax of its scores gives calibrated probabilities. The new ``params`` are
        ``first``, those of the given method, and ``penalty``.

    Raises:
        TypeError: if ``method`` is not a method.
        ValueError: if the method's server knows no covariance of the features, or a number is out of range.

    Source: covfree; docs/corrected.md. It combines hybrid generative and discriminative training (Lasserre,
    Bishop and Minka 2006) with L-BFGS (Nocedal 1980).

    >>> import covfree, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels, clients = rng.integers(0, 3, 300), rng.integers(0, 4, 300)
    >>> features = (rng.normal(size=(300, 8)) * 3 + rng.exponential(size=(3, 8))[labels]).astype(np.float32)
    >>> head = covfree.fit(covfree.corrected(covfree.fedcof()), features, labels, clients)
    >>> head.weight.shape
    (8, 3)
    """
    check_method(method)
    # The first step enters the head only once its loss is known, in the second round. So one round would
    # correct nothing.
    check_integer("rounds", rounds, 2)
    check_above_zero("penalty", penalty)
    more, covariance = metric_of(method)
    pairs = min(rounds - 1, _PAIRS)
    plan = Plan(method.system, method.head, covariance, len(method.rounds) if more else None, pairs)
    every = (*method.rounds, *more)
    own = [replace(each, numbers=bound(of_first, inner=each.numbers)) for each in every[:-1]]
    summary = method.summary
    if summary.merge is not None:
        message, merge = (
            bound(_message, message=summary.message),
            bound(_merged, merge=summary.merge, plan=plan),
        )
        summary = replace(summary, message=message, merge=merge)
    scale = Round(losses_of, take_losses, ask_losses, examples=True, head=True)
    step = Round(answer, take, ask, examples=True, head=True)
    return replace(
        method,
        params=CorrectedNumbers(method.params, penalty),
        name=f"{method.name}-corrected",
        summary=summary,
        rounds=(*own, _last(every[-1], plan), scale, *(step,) * rounds),
        system=None,
        head=bound(finish, plan=plan),
        estimate=None,
        report=bound(_report, first=method.report),
        flops=bound(_flops, first=method.flops, rounds=rounds),
    )
