"""Run a method in closed form on one federation; measure its accuracy, cost and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

import covfree
from covfree.core.types import Message
from covfree.data import FeatureSet
from covfree.engine.examples import over_examples, over_rows
from covfree.engine.totals import How, InMemory, have_few_numbers, through
from covfree.heads import metrics
from covfree.methods import Method
from covfree.studies.pooled import POOLED, pooled_head
from covfree.studies.predictions import Predictions, count_predictions, scores_of
from covfree.studies.result import Run
from covfree.studies.task import Task
from covfree.studies.timing import timed


def run_method(
    name: str,
    method: Method,
    task: Task,
    *,
    figures: Sequence[str] = (),
    predictions: bool = False,
) -> Run:
    """Run a method as `covfree.fit` and `covfree.evaluate` do, and time clients and server separately.

    ``figures`` names other metrics to measure; ``predictions`` is whether predictions are counted; see `Run`.
    """
    data, clients = task.data, task.clients
    head, costs = _pooled(task) if method is POOLED else _solved(method, task)
    measured, counted = _measured(head, data, figures, predictions)
    return Run(
        method=name,
        seed=task.seed,
        accuracy=float(covfree.evaluate(head, data.test_features, data.test_labels)),
        clients=len(np.unique(clients[clients >= 0])),
        figures=measured,
        predictions=counted,
        **costs,
    )


def _pooled(task: Task) -> tuple[Any, dict[str, Any]]:
    """Train `pooled_head` on all clients' examples; count the bytes of sending these to the server."""
    data, labels = task.data, np.where(task.clients >= 0, np.asarray(task.data.train_labels), -1)
    train = np.asarray(task.inputs), labels, data.num_classes
    (head, _), seconds = timed(partial(pooled_head, *train, seed=task.seed))
    number = int((labels >= 0).sum())
    sent = covfree.SentBytes(4 * number * data.train_features.shape[1], 4 * number)
    return head, {"sent": sent, "received": 0, "rows": number, "server_seconds": seconds}


def _solved(method: Method, task: Task) -> tuple[Any, dict[str, Any]]:
    """Compute a method's head from the training examples; return it, and what it cost, by fields of `Run`."""
    features, labels, owners = task.inputs, task.labels, task.clients
    key, classes, sizes = jax.random.key(task.seed), task.data.num_classes, (task.data.train_labels, owners)
    dim = features.shape[1]
    how = How(classes, method.whole_clients, few=have_few_numbers(owners))
    first = method.rounds_over_rows
    source, summary_seconds = timed(partial(over_rows, method, features, labels, owners, how, key))
    # If clients send rows, the server evaluates the rounds over rows; else clients do, and send sums.
    by_server = not method.summary.stays
    seconds = {"clients": summary_seconds, "server": 0.0}

    def do(who: str, work: Callable[[], Any], owner: str | None = None) -> Any:
        result, taken = timed(work)
        seconds[owner or who] += taken
        return result

    of_rows = partial(do, owner="server") if by_server else do
    state = through(method.rounds[:first], method.params, source, do=of_rows)
    if first < len(method.rounds):
        examples = over_examples(method, features, labels, owners, how)
        state = through(method.rounds[first:], method.params, examples, state, do=do)
    head = do("server", partial(covfree.solve_totals, method, *state))
    sent = covfree.sent_bytes(method, *sizes, dim=dim)
    if by_server and isinstance(source, InMemory):
        # Count the actual rows, as a transform may have dropped some.
        own = replace(method, rounds=method.rounds[:first])
        before = covfree.sent_bytes(own, *sizes, dim=dim)
        made = covfree.message_bytes(Message(source.rows))
        sent = made._replace(statistics=made.statistics + sent.statistics - before.statistics)
    told = {} if method.report is None else method.report(method.params, state)
    return head, {
        "sent": sent,
        "received": covfree.received_bytes(method, *sizes, dim=dim),
        "rows": source.num_rows,
        "client_flops": covfree.client_flops(method, *sizes, dim=dim),
        "client_seconds": seconds["clients"],
        "server_seconds": seconds["server"],
        "taken": int(told["taken"]) if "taken" in told else None,
    }


def _measured(
    head: Any, data: FeatureSet, names: Sequence[str], predictions: bool
) -> tuple[dict[str, float], Predictions | None]:
    """Return the metrics ``names`` and, with ``predictions``, the counts of predictions of test examples."""
    if not names and not predictions:
        return {}, None
    scores, labels, clients = scores_of(head, data.test_features), data.test_labels, data.test_clients
    figures = metrics.measure(scores, labels, tuple(names), clients=clients) if names else {}
    return figures, count_predictions(scores, labels, clients) if predictions else None
