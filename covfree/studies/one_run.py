"""One method on one federation: its accuracy, what it costs, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import covfree
from covfree.core.gathered import Features
from covfree.core.types import Message
from covfree.data import FeatureSet
from covfree.engine.examples import over_examples, over_rows
from covfree.engine.totals import How, InMemory, through
from covfree.heads import metrics
from covfree.methods import Method
from covfree.studies.federation import Federation, LeftOut, left_out
from covfree.studies.predictions import Predictions, count_predictions, scores_of
from covfree.studies.timing import timed

_NOTHING = LeftOut(0, 0)


@dataclass(frozen=True)
class Run:
    """One method on one federation.

    Attributes:
        method: its name.
        seed: of the split, the partition and the method.
        accuracy: share of the test examples that the head gets right, in [0, 1].
        sent: bytes up of all clients.
        received: bytes down to all clients, before the head.
        clients: clients that hold examples.
        rows: rows that the phases summed over.
        client_flops: floating-point operations of all clients, from features to what they send.
        client_seconds: time of all clients' work, run as one batch, compilation left out.
        server_seconds: time from what the clients sent to the head, compilation left out.
        left_out: training examples and classes that no client holds.
        dataset: name of the data.
        federation: how the examples were spread, if the data did not say so.
        figures: other figures of the test examples, by their names in `covfree.metrics.NAMES`.
        predictions: of the test examples, by class and client; None if they were not counted.
    """

    method: str
    seed: int
    accuracy: float
    sent: covfree.SentBytes
    received: int
    clients: int
    rows: int
    client_flops: int
    client_seconds: float
    server_seconds: float
    left_out: LeftOut = _NOTHING
    dataset: str = ""
    federation: Federation | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    predictions: Predictions | None = None


@dataclass(frozen=True)
class Place:
    """A federation of a seed, and its examples on the device.

    Attributes:
        data: features and labels, of training and test.
        features: [examples, dim], of training; large ones stay on the host.
        labels: [examples].
        clients: [examples]; below 0 is on no client.
        seed: of the split, the partition and the methods.
        dataset: name of the data.
        federation: how the examples were spread.
    """

    data: FeatureSet
    features: jax.Array | Features
    labels: jax.Array
    clients: np.ndarray
    seed: int
    dataset: str
    federation: Federation


class _Solved(NamedTuple):
    """A head, what clients sent for it, and how long that took."""

    head: Any
    sent: covfree.SentBytes
    rows: int
    client_seconds: float
    server_seconds: float


def run_method(
    name: str,
    method: Method,
    place: Place,
    figures: Sequence[str] = (),
    predictions: bool = False,
) -> Run:
    """Run a method: `covfree.fit` and `covfree.evaluate`, step by step, so that each can be timed."""
    data, owners = place.data, place.clients
    sizes, dim = (data.train_labels, owners), place.features.shape[1]
    solved = _solved(method, place)
    measured, counted = _measured(solved.head, data, figures, predictions)
    return Run(
        method=name,
        seed=place.seed,
        accuracy=float(covfree.evaluate(solved.head, data.test_features, data.test_labels)),
        sent=solved.sent,
        received=covfree.received_bytes(method, *sizes, dim=dim),
        clients=len(np.unique(owners[owners >= 0])),
        rows=solved.rows,
        client_flops=covfree.client_flops(method, *sizes, dim=dim),
        client_seconds=solved.client_seconds,
        server_seconds=solved.server_seconds,
        left_out=left_out(data.train_labels, owners),
        dataset=place.dataset,
        federation=place.federation,
        figures=measured,
        predictions=counted,
    )


def _solved(method: Method, place: Place) -> _Solved:
    """The method's rounds, those over the rows that clients make and those over their examples."""
    data, features, labels, owners = place.data, place.features, place.labels, place.clients
    key, classes = jax.random.key(place.seed), data.num_classes
    first, how = method.rounds_over_rows, How(classes, method.whole_clients)
    source, summary_seconds = timed(partial(over_rows, method, features, labels, owners, how, key))
    # Where the message is rows, the server evaluates the rounds over them; else clients do, and send sums.
    by_server = method.message is None and method.message_rounds > 0
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
    sent = covfree.sent_bytes(method, data.train_labels, owners, dim=features.shape[1])
    if by_server and isinstance(source, InMemory):
        # Rows are counted as they are, as a transform may have dropped some.
        own = replace(method, rounds=method.rounds[:first])
        before = covfree.sent_bytes(own, data.train_labels, owners, dim=features.shape[1])
        made = covfree.message_bytes(Message(source.rows))
        sent = made._replace(statistics=made.statistics + sent.statistics - before.statistics)
    return _Solved(head, sent, source.num_rows, seconds["clients"], seconds["server"])


def _measured(
    head: Any, data: FeatureSet, names: Sequence[str], predictions: bool
) -> tuple[dict[str, float], Predictions | None]:
    """Figures of the test examples, and the counts of predictions, if they are asked for."""
    if not names and not predictions:
        return {}, None
    scores, labels, clients = scores_of(head, data.test_features), data.test_labels, data.test_clients
    figures = metrics.measure(scores, labels, tuple(names), clients=clients) if names else {}
    return figures, count_predictions(scores, labels, clients) if predictions else None
