"""Laws that a federated algorithm keeps, so that whoever runs it may choose how."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.rounds import Algorithm, ClientData, cohort, run
from covfree.rounds.uploads import Parts, packed
from covfree.testing.laws import SINGLE, assert_close, assert_numbers, assert_same, hold

_SIZES = (5, 0, 8, 3, 8, 6)


@dataclass(frozen=True)
class _Subject:
    """An algorithm under check, with examples that it can work on."""

    algorithm: Any
    features: Any
    labels: Any
    traced: list[int] = field(default_factory=list)  # a number for each time that a client was traced

    @cached_property
    def clients(self) -> np.ndarray:
        """The client of each example; one of them has none."""
        return np.repeat(np.arange(len(_SIZES)), _SIZES)

    @cached_property
    def rounds(self) -> int:
        return self.algorithm.rounds or 3

    def run(self, algorithm: Any = None, **options: Any) -> Any:
        """All rounds with all clients."""
        options = {"rounds": self.rounds, **options}
        return run(
            self.algorithm if algorithm is None else algorithm,
            self.features,
            self.labels,
            self.clients,
            key=jax.random.key(0),
            **options,
        )

    @cached_property
    def done(self) -> Any:
        """The plain run."""
        return self.run()

    @cached_property
    def start(self) -> tuple[Any, Any]:
        """The server's first state, and what a client remembers."""
        return cohort.start(self.algorithm, jax.random.key(1), num_clients=len(_SIZES))

    def answer(self, data: ClientData, algorithm: Any = None) -> tuple[Parts, Any]:
        """A client's upload in its parts, and what it remembers, in the first round."""
        algorithm = self.algorithm if algorithm is None else algorithm
        state, memory = self.start
        sent = cohort.broadcast(algorithm, state)
        upload, memory, _ = self._client(algorithm, sent, data, memory, jax.random.key(2))
        return Parts.of(upload), memory

    @cached_property
    def _client(self) -> Any:
        def client(algorithm: Any, *arguments: Any) -> Any:
            self.traced.append(1)
            return algorithm.client(algorithm.params, *arguments)

        return jax.jit(client)

    def data(self, client: int, padding: int = 0) -> ClientData:
        """The examples of a client, padded."""
        index = np.flatnonzero(self.clients == client)
        size = max(_SIZES) + padding
        index = np.append(index, np.full(size - len(index), -1)).astype(np.int32)
        features, labels = jnp.asarray(self.features), jnp.asarray(self.labels, jnp.int32)
        return ClientData(features, labels, jnp.asarray(index), jnp.asarray(client, jnp.int32))


def pytree(subject: _Subject) -> None:
    """The algorithm, its states and its broadcasts are pytrees of finite numbers."""
    assert_numbers(subject.algorithm, "the algorithm")
    structure = jax.tree.structure(subject.algorithm)
    assert jax.tree.structure(copy.deepcopy(subject.algorithm)) == structure, "a copy has another structure"
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
    """The upload of a client without examples is zero, and it remembers what it did."""
    parts, memory = subject.answer(subject.data(1))
    for leaf in parts.sums:
        assert not np.asarray(leaf).any(), f"expected sums of zeros, got {np.asarray(leaf)}"
    for table in parts.tables:
        assert not len(packed(table)[-1]), "expected empty tables"
    structure = jax.tree.structure(subject.start[1])
    assert jax.tree.structure(memory) == structure, "what the client remembers has another structure"


def padding(subject: _Subject) -> None:
    """Padding behind a client's examples changes nothing in its upload."""
    few, more = (subject.answer(subject.data(2, padding))[0] for padding in (0, 5))
    assert_close(more.sums, few.sums, SINGLE, "sums of the upload")
    for one, other in zip(more.tables, few.tables, strict=True):
        assert_close(packed(one), packed(other), SINGLE, "tables of the upload")


def cutting(subject: _Subject) -> None:
    """A cohort that is cut into clients, into several at once or over devices gives the same state."""
    options: dict[str, Any] = {"width": 4}
    if len(devices := jax.devices()) > 1:
        # In one run, as each is compiled anew; two at once on each of two devices are four.
        options = {"width": 2, "mesh": jax.sharding.Mesh(np.array(devices[:2]), ("clients",))}
    assert_close(subject.run(**options).state, subject.done.state, SINGLE, "four clients at once")


def absence(subject: _Subject) -> None:
    """Without a single upload the state stays finite."""
    if subject.algorithm.rounds is not None:
        return
    nobody = np.full((2, 1), -1)
    assert_numbers(
        subject.run(rounds=2, participation=nobody).state, "the state after rounds without clients"
    )


def trace(subject: _Subject) -> None:
    """A copy of the algorithm compiles nothing anew: its functions are the same, its numbers are leaves."""
    subject.answer(subject.data(0))
    before = len(subject.traced)
    subject.answer(subject.data(0), copy.deepcopy(subject.algorithm))
    assert len(subject.traced) == before, "a copy was traced anew"


ALGORITHM_LAWS = (pytree, pure, empty, padding, cutting, absence, trace)


def check_algorithm(
    algorithm: Algorithm,
    features: Any = None,
    labels: Any = None,
    *,
    exclude: Mapping[str, str] | None = None,
) -> None:
    """Hold a federated algorithm to the laws that let anybody run it in any way.

    Args:
        algorithm: e.g. ``covfree.finetune.fedavg(…)``.
        features: 30 examples that it can work on, of any rank; by default vectors of 5 numbers.
        labels: their classes; by default of three.
        exclude: laws that are none for this algorithm, each with the reason.

    Raises:
        AssertionError: if a law is broken: its name, what it says, and the numbers.
        ImportError: if the ``testing`` extra is not installed.
        ValueError: if ``exclude`` names no law, or a reason is missing.

    >>> import covfree, covfree.rounds
    >>> check_algorithm(covfree.rounds.as_algorithm(covfree.fedncm(), num_classes=3))
    """
    rng = np.random.default_rng(0)
    number = sum(_SIZES)
    features = rng.normal(size=(number, 5)).astype(np.float32) if features is None else features
    labels = rng.integers(0, 3, number) if labels is None else labels
    subject = _Subject(algorithm, features, labels)
    hold(ALGORITHM_LAWS, f"algorithm {getattr(algorithm, 'name', algorithm)!r}", subject, exclude)
