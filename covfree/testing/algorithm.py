"""Laws that every federated algorithm must satisfy; `check_algorithm` tests them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from covfree.rounds import Algorithm, ClientData, Placement, add, cohort, run
from covfree.rounds.adding import Parts, packed
from covfree.rounds.algorithm import check_algorithm as check_is_algorithm
from covfree.testing.case import assert_copied
from covfree.testing.federations import CLASSES
from covfree.testing.laws import SINGLE, Law, assert_close, assert_numbers, assert_same, centred, hold

# Function from (features, labels, clients) to the result of all rounds, in float64 NumPy: a pytree or, for a
# classifier, a function from features to scores.
Reference: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]

_SIZES = (5, 0, 8, 3, 8, 6)
_EMPTY, _FEW = 1, 3


@dataclass(frozen=True)
class _Subject:
    """An algorithm to be checked, with the examples on which the laws run it."""

    algorithm: Any
    features: Any
    labels: Any
    reference: Reference | None
    traced: list[int] = field(default_factory=list)  # one entry for each trace of a client

    @cached_property
    def clients(self) -> np.ndarray:
        """The client of each example; one client has no example."""
        return np.repeat(np.arange(len(_SIZES)), _SIZES)

    def run(self, **options: Any) -> Any:
        """Run all rounds with all clients; three rounds if the algorithm has no fixed number of rounds."""
        rounds = self.algorithm.rounds or 3
        key = jax.random.key(0)
        return run(
            self.algorithm, self.features, self.labels, self.clients, key=key, rounds=rounds, **options
        )

    @cached_property
    def done(self) -> Any:
        """The run with default options."""
        return self.run()

    @cached_property
    def start(self) -> tuple[Any, Any]:
        """The server's first state, and what each client remembers at first."""
        return cohort.start(self.algorithm, jax.random.key(1), num_clients=len(_SIZES))

    def result(self, state: Any) -> Any:
        """Compute the algorithm's result, such as a head, from a server's state.

        Clients' memory is taken as at the start.
        """
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(_SIZES), *x.shape)), self.start[1])
        return self.algorithm.result(self.algorithm.params, state, memory)

    def scores(self, result: Any) -> np.ndarray | None:
        """Apply the algorithm's result to all examples; return the scores, or None if it is no classifier.

        If the result has a model for each client, the model of client ``_FEW`` is applied.
        """
        model = result.of(_FEW) if hasattr(result, "of") else result
        return np.asarray(model(jnp.asarray(self.features))) if callable(model) else None

    def answer(self, data: ClientData, algorithm: Any = None, memory: Any = None) -> tuple[Any, Any]:
        """Return what a client uploads in the first round, and what it remembers afterwards.

        ``memory`` is what it remembers before the round; by default what every client starts with.
        """
        algorithm = self.algorithm if algorithm is None else algorithm
        state, first = self.start
        memory = first if memory is None else memory
        sent = cohort.broadcast(algorithm, state)
        upload, memory, _ = self._client(algorithm, sent, data, memory, jax.random.key(2))
        return upload, memory

    @cached_property
    def _client(self) -> Any:
        def client(algorithm: Any, *arguments: Any) -> Any:
            self.traced.append(1)
            return algorithm.client(algorithm.params, *arguments)

        return jax.jit(client)

    def serve(self, total: Any) -> Any:
        """Return the server's state after the first round, given the sum of what clients upload."""
        return self.algorithm.server(self.algorithm.params, self.start[0], total)

    def data(self, client: int, padding: int = 0) -> ClientData:
        """Return a client's examples, padded to the size of the largest client plus ``padding``."""
        index = np.flatnonzero(self.clients == client)
        size = max(_SIZES) + padding
        index = np.append(index, np.full(size - len(index), -1)).astype(np.int32)
        features, labels = jnp.asarray(self.features), jnp.asarray(self.labels, jnp.int32)
        return ClientData(features, labels, jnp.asarray(index), jnp.asarray(client, jnp.int32))


def pytree(subject: _Subject) -> None:
    """The algorithm, its states and its broadcasts are pytrees of finite numbers."""
    assert_copied(subject.algorithm, "the algorithm")
    state, memory = subject.start
    assert_numbers((state, memory), "the first state, and what clients remember")
    assert_numbers(cohort.broadcast(subject.algorithm, state), "the broadcast")
    assert_numbers(subject.done.state, "the last state")


def pure(subject: _Subject) -> None:
    """The same run gives the same state, to the bit."""
    again = subject.run()
    for what in ("state", "memory"):
        assert_same(getattr(again, what), getattr(subject.done, what), f"the {what} of the second run")


def empty(subject: _Subject) -> None:
    """A client without examples uploads zeros and empty tables, and its memory does not change."""
    # Check with the first memory, which is often 0, and with one that a client with examples has changed.
    for before in (subject.start[1], subject.answer(subject.data(0))[1]):
        upload, memory = subject.answer(subject.data(_EMPTY), memory=before)
        parts = Parts.of(upload)
        assert_same(parts.sums, [np.zeros_like(leaf) for leaf in parts.sums], "sums of the upload")
        for table in parts.tables:
            assert not len(packed(table)[-1]), "expected empty tables"
        assert_same(memory, before, "what the client remembers")


def padding(subject: _Subject) -> None:
    """Padding after a client's examples does not change its upload."""
    few, more = (Parts.of(subject.answer(subject.data(2, padding))[0]) for padding in (0, 5))
    assert_close(more.sums, few.sums, SINGLE, "sums of the upload")
    for one, other in zip(more.tables, few.tables, strict=True):
        assert_close(packed(one), packed(other), SINGLE, "tables of the upload")


def cutting(subject: _Subject) -> None:
    """The state is the same whether clients run one by one, four at once, or on two devices."""
    place = Placement(width=4)
    if len(devices := jax.devices()) > 1:
        # Each run is compiled, so check width and devices in one run: two clients at once on each of two
        # devices.
        place = Placement(width=2, mesh=jax.sharding.Mesh(np.array(devices[:2]), ("clients",)))
    assert_close(subject.run(place=place).state, subject.done.state, SINGLE, "four clients at once")


def absence(subject: _Subject) -> None:
    """If no upload arrives, the next state is finite (tested unless the number of rounds is fixed)."""
    if subject.algorithm.rounds is None:
        nothing = jax.tree.map(jnp.zeros_like, subject.answer(subject.data(_EMPTY))[0])
        assert_numbers(subject.serve(nothing), "the state after a round without clients")


def trace(subject: _Subject) -> None:
    """A deep copy of the algorithm reuses the original's compiled code: jax does not trace it again."""
    subject.answer(subject.data(0))
    before = len(subject.traced)
    subject.answer(subject.data(0), copy.deepcopy(subject.algorithm))
    assert len(subject.traced) == before, "a copy was traced anew"


def learns(subject: _Subject) -> None:
    """Training lowers a classifier's loss; a closed form is no worse than predicting the largest class."""
    after, labels = subject.scores(subject.done.result), np.asarray(subject.labels)
    before = None if after is None else subject.scores(subject.result(subject.start[0]))
    if after is None:
        return
    own = subject.clients == _FEW if hasattr(subject.done.result, "of") else labels >= 0
    if before is None:
        right, most = (after.argmax(-1) == labels).mean(), np.bincount(labels).max() / len(labels)
        assert right >= most, (
            f"accuracy: expected at least {most:.3g}, the largest class's share, got {right:.3g}"
        )
        return
    losses = [float(_losses(scores, labels)[own].mean()) for scores in (before, after)]
    assert losses[1] < losses[0], f"the cross-entropy goes from {losses[0]:.6g} to {losses[1]:.6g}"


def _losses(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.asarray(jax.nn.log_softmax(scores))[np.arange(len(labels)), labels]


def copies(subject: _Subject) -> None:
    """If two clients have equal examples and keys, a round of both gives the classifier of a round of one."""
    if subject.scores(subject.result(subject.start[0])) is None:
        return
    one = subject.data(_FEW)
    other = ClientData(one.features, one.labels, one.index, one.client - 1)
    uploads = [subject.answer(each)[0] for each in (one, other)]
    found = [subject.scores(subject.result(subject.serve(total))) for total in (uploads[0], add(*uploads))]
    assert_close(centred(found[1]), centred(found[0]), 10 * SINGLE, "scores after a round of both")


def reference(subject: _Subject) -> None:
    """The result equals the reference formula's, if one is given; scores up to a constant per example."""
    if subject.reference is None:
        return
    features = np.asarray(subject.features)
    expected = subject.reference(features.astype(np.float64), np.asarray(subject.labels), subject.clients)
    if callable(expected):
        scores = np.asarray(expected(features.astype(np.float64)))
        assert_close(centred(subject.scores(subject.done.result)), centred(scores), 10 * SINGLE, "scores")
    else:
        assert_close(subject.done.result, expected, 10 * SINGLE, "the result")


ALGORITHM_LAWS: tuple[Law, ...] = (
    pytree,
    pure,
    empty,
    padding,
    cutting,
    absence,
    trace,
    learns,
    copies,
    reference,
)


def check_algorithm(
    algorithm: Algorithm,
    features: Any = None,
    labels: Any = None,
    *,
    reference: Reference | None = None,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Check the laws of a federated algorithm: however it is run, its result is the same.

    The laws: ``pytree``, ``pure``, ``empty``, ``padding``, ``cutting``, ``absence``, ``trace``, ``learns``,
    ``copies``, ``reference``. ``learns`` checks only classifiers, ``copies`` only those that give scores
    before the first round. No law checks that clients draw from their keys: a fixed
    ``jax.random.key(0)`` could mean a draw that all clients share on purpose, such as random features.

    Args:
        algorithm: e.g. ``covfree.finetune.fedavg(…)``.
        features: 30 examples for the algorithm, of any rank; by default vectors of 5 numbers.
        labels: the examples' classes; by default three well separated classes.
        reference: the formula in float64 NumPy: function of features, labels and clients that returns the
            result after all rounds (three if the algorithm takes any number); for a classifier, a function
            from features to scores.
        exclude: laws that do not apply to this algorithm, each with the reason: e.g. ``learns`` if it
            minimises another loss than cross-entropy.

    Raises:
        AssertionError: if laws are broken, with the name and statement of each, and the numbers.
        TypeError: if it is no `Algorithm`.
        ValueError: if ``exclude`` contains an unknown law, or a reason is missing.

    >>> import covfree
    >>> check_algorithm(covfree.rounds.as_algorithm(covfree.fedncm(), num_classes=3))
    """
    check_is_algorithm(algorithm)
    rng = np.random.default_rng(0)
    number = sum(_SIZES)
    labels = rng.integers(0, CLASSES // 2, number) if labels is None else labels
    if features is None:
        features = (rng.normal(size=(number, 5)) + 3 * np.eye(CLASSES // 2, 5)[labels]).astype(np.float32)
    subject = _Subject(algorithm, features, labels, reference)
    hold(ALGORITHM_LAWS, f"algorithm {algorithm.name!r}", subject, exclude)
